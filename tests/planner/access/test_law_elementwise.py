"""The law for element-wise, quantising and normalising operators, contractions and reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.access import access_of, accesses
from edgepart.planner.model.graph import Tensor
from edgepart.planner.region import Array, Region, span
from tests.planner.access.law import Case, check_any_region, check_law, check_whole, declared, floats, ints

FEW = settings(max_examples=3)
SOME = settings(max_examples=10)

SHAPE = (2, 3, 4, 5)


def _whole_numbers(*shape: int, seed: int = 0, kind: Any = np.int32) -> Array:
    return np.random.default_rng(seed).integers(1, 9, shape).astype(kind)


def _truths(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 2, shape).astype(bool)


def _eight(*shape: int, seed: int = 0) -> Array:
    return _whole_numbers(*shape, seed=seed, kind=np.uint8)


def _scale(value: float) -> Array:
    return np.asarray(value, np.float32)


def _zero(value: int) -> Array:
    return np.asarray(value, np.uint8)


UNARY: dict[str, tuple[int, dict[str, Any], Callable[..., Array]]] = {
    "Acosh": (9, {}, lambda *shape: floats(*shape, low=1.0)),
    "Acos": (7, {}, lambda *shape: floats(*shape, low=-0.9, high=0.9)),
    "Asin": (7, {}, lambda *shape: floats(*shape, low=-0.9, high=0.9)),
    "Atanh": (9, {}, lambda *shape: floats(*shape, low=-0.9, high=0.9)),
    "BitwiseNot": (18, {}, _whole_numbers),
    "Cast": (13, {"to": 6}, floats),
    "Celu": (12, {"alpha": 0.7}, floats),
    "Clip": (6, {"min": -0.5, "max": 0.5}, floats),
    "Elu": (6, {"alpha": 0.7}, floats),
    "Gelu": (20, {"approximate": "tanh"}, floats),
    "HardSigmoid": (6, {"alpha": 0.3, "beta": 0.4}, floats),
    "HardSwish": (14, {}, floats),
    "IsInf": (10, {}, floats),
    "LeakyRelu": (6, {"alpha": 0.1}, floats),
    "Log": (13, {}, lambda *shape: floats(*shape, low=0.1)),
    "Mish": (18, {}, floats),
    "Not": (1, {}, _truths),
    "Selu": (6, {"alpha": 1.5}, floats),
    "Shrink": (9, {"lambd": 0.4, "bias": 0.2}, floats),
    "Sqrt": (13, {}, lambda *shape: floats(*shape, low=0.1)),
    "Swish": (24, {"alpha": 1.5}, floats),
    "ThresholdedRelu": (10, {"alpha": 0.5}, floats),
}
PLAIN = [
    "Abs",
    "Asinh",
    "Atan",
    "Ceil",
    "Cos",
    "Cosh",
    "Erf",
    "Exp",
    "Floor",
    "IsNaN",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Tan",
    "Tanh",
    "Identity",
    "Dropout",
]
BINARY: dict[str, tuple[int, dict[str, Any], Callable[..., Array]]] = {
    **{name: (14, {}, floats) for name in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum")},
    **{name: (16, {}, floats) for name in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")},
    **{name: (7, {}, _truths) for name in ("And", "Or", "Xor")},
    **{name: (18, {}, _whole_numbers) for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    "BitShift": (11, {"direction": "LEFT"}, lambda *s, seed=0: _whole_numbers(*s, seed=seed, kind=np.uint32)),
    "Equal": (13, {}, _whole_numbers),
    "Mod": (13, {"fmod": 0}, _whole_numbers),
    "PRelu": (16, {}, floats),
    "Pow": (15, {}, lambda *s, seed=0: floats(*s, seed=seed, low=0.5)),
}
SHAPES = st.sampled_from([(), (5,), (1,), (4, 1), (3, 1, 1), (1, 3, 4, 1), SHAPE, (2, 1, 1, 5)])


def _infinities(*shape: int) -> Array:
    return np.asarray(np.floor(floats(*shape)) / 0.0 if shape else -np.inf, np.float32)


MORE: list[tuple[str, int, dict[str, Any], Callable[..., Array]]] = [
    *(
        (name, version, {}, make)
        for name, (version, given, make) in UNARY.items()
        if given and name != "Cast"
    ),
    ("Cast", 13, {"to": 7}, floats),
    ("Selu", 6, {"gamma": 2.0}, floats),
    ("Cast", 9, {"to": 1}, _truths),
    *(("IsInf", 10, {f"detect_{sign}": 0}, _infinities) for sign in ("negative", "positive")),
]
"""The same with defaults, and with other values."""


@pytest.mark.parametrize("number", range(len(MORE)), ids=lambda n: f"{MORE[n][0]}-{n}")
@FEW
@given(data=st.data())
def test_unary_with_other_attributes(number: int, data: st.DataObject) -> None:
    op_type, version, attributes, make = MORE[number]
    shape = data.draw(st.sampled_from([(), (6,), (4, 5), SHAPE]), "shape")
    with np.errstate(divide="ignore", invalid="ignore"):
        x = make(*shape)
    check_any_region(declared(Case(op_type, [x], attributes, version=version)), data, tries=1)


@pytest.mark.parametrize("op_type", [*UNARY, *PLAIN])
@FEW
@given(data=st.data())
def test_unary(op_type: str, data: st.DataObject) -> None:
    version, attributes, make = UNARY.get(op_type, (13, {}, floats))
    shape = data.draw(st.sampled_from([(), (6,), (4, 5), (2, 3, 4), SHAPE, (1, 2, 2, 3, 4)]), "shape")
    check_any_region(declared(Case(op_type, [make(*shape)], attributes, version=version)), data, tries=2)


@pytest.mark.parametrize("op_type", sorted(BINARY))
@FEW
@given(data=st.data())
def test_broadcasting(op_type: str, data: st.DataObject) -> None:
    version, attributes, make = BINARY[op_type]
    left = SHAPE if op_type == "PRelu" else data.draw(SHAPES, "left")
    inputs = [make(*left), make(*data.draw(SHAPES, "right"), seed=1)]
    if op_type in ("Max", "Mean", "Sum"):
        inputs.append(make(*data.draw(SHAPES, "third"), seed=2))
    check_any_region(declared(Case(op_type, inputs, attributes, version=version)), data, tries=2)


KINDS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

MIXED: list[Case] = [
    Case("Where", [_truths(3, 1, 1), floats(*SHAPE), floats(5, seed=1)]),
    Case("Clip", [floats(*SHAPE), np.asarray(-0.5, np.float32), None]),
    Case("Clip", [floats(*SHAPE), None, np.asarray(0.5, np.float32)]),
    Case("CastLike", [floats(*SHAPE), np.zeros(7, np.int64)], version=15),
    Case("Dropout", [floats(*SHAPE)], {"ratio": 0.3}, version=10),
    Case("Dropout", [floats(*SHAPE)], version=13, outputs=2),
    Case(
        "Dropout",
        [floats(*SHAPE), np.asarray(0.5, np.float32), np.asarray(False)],
        version=13,
        constants=frozenset({2}),
    ),
    Case("Gelu", [floats(*SHAPE)], version=1, domain="com.microsoft", opset=17),
    Case("QuickGelu", [floats(*SHAPE)], version=1, domain="com.microsoft", opset=17),
    Case("FastGelu", [floats(2, 4, 8), floats(8)], version=1, domain="com.microsoft", opset=17),
    Case("BiasGelu", [floats(2, 4, 8), floats(8)], version=1, domain="com.microsoft", opset=17),
    Case("QLinearAdd", [_eight(*SHAPE), _scale(0.1), _zero(3), _eight(5), _scale(0.2), _zero(1), _scale(0.15),
                        _zero(2)], version=1, domain="com.microsoft", opset=17),
    Case("QLinearMul", [_eight(*SHAPE), _scale(0.1), _zero(3), _eight(3, 1, 1), _scale(0.2), _zero(1), _scale(0.05),
                        _zero(2)], version=1, domain="com.microsoft", opset=17),
    *(Case(name, [_eight(*SHAPE), _scale(0.1), _zero(3), _scale(0.05), _zero(2)], version=1,
           domain="com.microsoft", opset=17) for name in ("QLinearSigmoid", "QLinearLeakyRelu")),
    # Normalisations
    *(Case(name, [floats(*SHAPE)], {"axis": axis}, version=version)
      for name in ("Softmax", "LogSoftmax", "Hardmax") for axis, version in ((1, 13), (-1, 13), (2, 11), (1, 9))),
    Case("Softmax", [floats(*SHAPE)], version=11),
    Case("Softmax", [floats(3, 7)], version=13),
    Case("BatchNormalization", [floats(*SHAPE), floats(3), floats(3), floats(3), floats(3, low=0.5)], version=9),
    Case("BatchNormalization", [floats(4, 6), floats(6), floats(6), floats(6), floats(6, low=0.5)], version=15),
    Case("InstanceNormalization", [floats(*SHAPE), floats(3), floats(3, seed=1)]),
    Case("GroupNormalization", [floats(2, 6, 4), floats(3), floats(3, seed=1)], {"num_groups": 3}, version=18),
    Case("GroupNormalization", [floats(2, 6, 4), floats(6), floats(6, seed=1)], {"num_groups": 3}, version=21),
    Case("LayerNormalization", [floats(2, 5, 8), floats(8), floats(8, seed=1)]),
    Case("LayerNormalization", [floats(*SHAPE), floats(4, 5)], {"axis": 2}),
    Case("LpNormalization", [floats(*SHAPE)], {"axis": 1, "p": 1}),
    Case("MeanVarianceNormalization", [floats(*SHAPE)], version=13),
    Case("RMSNormalization", [floats(2, 5, 8), floats(8)], version=23),
    Case("LRN", [floats(2, 9, 3, 3)], {"size": 3, "alpha": 0.5}),
    Case("LRN", [floats(1, 9, 3, 3)], {"size": 5, "alpha": 0.5}),
    Case("LRN", [floats(1, 2, 3, 3)], {"size": 5, "alpha": 0.5, "bias": 2.0}),
    Case(
        "SkipLayerNormalization",
        [floats(2, 5, 8), floats(2, 5, 8, seed=1), floats(8), floats(8, seed=1), floats(8, seed=2)],
        version=1,
        domain="com.microsoft",
        opset=17,
    ),
    # Contractions
    *(Case("MatMul", [floats(*a), floats(*b, seed=1)])
      for a, b in (((4, 5), (5, 6)), ((5,), (5, 6)), ((4, 5), (5,)), ((5,), (5,)), ((2, 3, 4, 5), (5, 6)),
                   ((3, 4, 5), (2, 1, 5, 6)), ((2, 1, 4, 5), (2, 3, 5, 6)), ((5,), (2, 3, 5, 6)),
                   ((2, 3, 4, 5), (5,)), ((4, 5), (3, 5, 6)))),
    *(Case("Gemm", [floats(*(5, 4) if ta else (4, 5)), floats(*(6, 5) if tb else (5, 6)), *c],
           {"transA": ta, "transB": tb, "alpha": 0.5, "beta": 2.0}, version=version)
      for ta in (0, 1) for tb in (0, 1)
      for version, c in ((11, []), (7, [floats(6)]), (13, [floats(4, 1)]), (13, [floats(1)]), (9, [floats(4, 6)]))),
    Case("MatMulInteger", [_whole_numbers(4, 5, kind=np.uint8), _whole_numbers(5, 6, kind=np.uint8, seed=1),
                           np.asarray(3, np.uint8), _whole_numbers(6, kind=np.uint8)]),
    Case("MatMulInteger", [_whole_numbers(2, 4, 5, kind=np.uint8), _whole_numbers(5, 6, kind=np.int8, seed=1)]),
    Case("FusedMatMul", [floats(2, 5, 4), floats(2, 6, 5)], {"transA": 1, "transB": 1, "alpha": 0.5}, version=1,
         domain="com.microsoft", opset=17),
    Case(
        "QLinearMatMul",
        [
            _whole_numbers(2, 4, 5, kind=np.uint8),
            np.asarray(0.1, np.float32),
            np.asarray(3, np.uint8),
            _whole_numbers(5, 6, kind=np.int8, seed=1),
            np.linspace(0.1, 0.2, 6, dtype=np.float32),
            np.zeros(6, np.int8),
            np.asarray(0.2, np.float32),
            np.asarray(9, np.uint8),
        ],
        constants=frozenset({4, 5}),
    ),
    # Reductions
    Case("ReduceMean", [floats(*SHAPE)], {"axes": [2, -1]}),
    Case("ReduceMean", [floats(*SHAPE)], {"axes": [1], "keepdims": 0}),
    Case("ReduceMean", [floats(*SHAPE), ints(0, 3)], {"keepdims": 0}, version=18, constants=frozenset({1})),
    Case("ReduceSum", [floats(*SHAPE), ints(1)], {"keepdims": 0}, version=13, constants=frozenset({1})),
    Case("ReduceSum", [floats(*SHAPE)], {"noop_with_empty_axes": 1}, version=13),
    Case("ReduceSum", [floats(*SHAPE)], version=13),
    Case("ReduceSum", [floats(*SHAPE), None], {"keepdims": 0}, version=13),
    *(Case(f"Reduce{kind}", [floats(*SHAPE, low=0.1)], {"axes": [1, 3]}, version=12)
      for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Min", "Prod", "SumSquare")),
    Case("ArgMax", [floats(*SHAPE)], {"axis": 1, "keepdims": 0}),
    Case("ArgMin", [floats(*SHAPE)], {"axis": -1, "select_last_index": 1}),
    Case("TopK", [floats(*SHAPE), ints(2)], {"axis": 2}, outputs=2),
    Case("CumSum", [floats(*SHAPE), np.asarray(2, np.int64)], {"reverse": 1}, constants=frozenset({1})),
    *(Case("CumProd", [floats(*SHAPE), np.asarray(axis)], {"reverse": axis > 0, "exclusive": axis < 2}, version=26,
           constants=frozenset({1})) for axis in (-1, 1, 2)),
    Case("BitCast", [floats(*SHAPE)], {"to": 6}, version=26),
    Case("BitCast", [_eight(*SHAPE)], {"to": 3}, version=26),
    Case("ArgMax", [floats(*SHAPE)], {"axis": -2, "select_last_index": 1}),
    Case("ArgMin", [floats(*SHAPE)], {"axis": 0, "keepdims": 0}, version=11),
    Case("TopK", [floats(*SHAPE), ints(3)], {"axis": -1, "largest": 0, "sorted": 1}, outputs=2),
    Case("TopK", [floats(*SHAPE), ints(3)], {"axis": 1, "sorted": 0}, outputs=2),
    Case("TopK", [floats(3, 7), ints(2)], version=10, outputs=2),
    Case("CumSum", [floats(*SHAPE), np.asarray(-1, np.int64)], {"exclusive": 1}, constants=frozenset({1})),
    Case("CumSum", [floats(*SHAPE), np.asarray(0, np.int32)], {"exclusive": 1, "reverse": 1}, constants=frozenset({1})),
    *(Case(f"Reduce{kind}", [floats(*SHAPE, low=0.1)], {"axes": [-1, 0], "keepdims": 0}, version=11) for kind in KINDS),
    *(Case(f"Reduce{kind}", [floats(*SHAPE, low=0.1), ints(-2)], {"keepdims": 0}, version=18, constants=frozenset({1}))
      for kind in KINDS),
    *(Case(f"Reduce{kind}", [floats(*SHAPE, low=0.1)], {"noop_with_empty_axes": noop}, version=18)
      for kind in KINDS for noop in (0, 1)),
    Case("BatchNormalization", [floats(*SHAPE), floats(3), floats(3), floats(3), floats(3, low=0.5)],
         {"epsilon": 0.1}, version=7),
    Case("LRN", [floats(1, 5, 3, 3)], {"size": 3, "beta": 0.5, "bias": 2.0}, version=13),
    Case("BitShift", [_whole_numbers(4, 5, kind=np.uint8), _whole_numbers(5, kind=np.uint8)], {"direction": "RIGHT"}),
    Case("Mod", [floats(*SHAPE), floats(5, low=0.5)], {"fmod": 1}),
    # Quantisation
    Case("QuantizeLinear", [floats(4, 6), floats(4, low=0.1), None], {"axis": -2, "output_dtype": 3}, version=21),
    Case("QuantizeLinear", [floats(4, 6), floats(4, 3, low=0.1), np.zeros((4, 3), np.int8)],
         {"axis": -1, "block_size": 2}, version=21),
    Case("QuantizeLinear", [floats(4, 6), floats(6, low=0.1), np.zeros(6, np.uint8)], {"axis": 1}, version=13),
    Case("QuantizeLinear", [floats(*SHAPE), np.asarray(0.02, np.float32), np.asarray(5, np.uint8)], version=10),
    Case("QuantizeLinear", [floats(*SHAPE), np.linspace(0.1, 0.3, 3, dtype=np.float32), np.zeros(3, np.int8)],
         {"axis": 1}),
    Case("DequantizeLinear", [_whole_numbers(4, 6, kind=np.int8), np.linspace(0.1, 0.3, 4, dtype=np.float32)],
         {"axis": 0}, version=13),
    Case("DequantizeLinear", [_whole_numbers(4, 6, kind=np.int8), np.asarray(0.5, np.float16)], {"output_dtype": 10},
         version=23),
    Case("DequantizeLinear", [_whole_numbers(7, kind=np.int32), np.asarray([0.1], np.float32)], version=13),
    Case("DequantizeLinear", [_whole_numbers(4, 6, kind=np.int8), floats(2, 6, low=0.1)],
         {"axis": 0, "block_size": 2}, version=21),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MIXED)), ids=lambda n: f"{MIXED[n].op_type}-{n}")
@settings(max_examples=4)
@given(data=st.data())
def test_mixed(number: int, data: st.DataObject) -> None:
    check_any_region(declared(MIXED[number]), data)


OPERATORS = frozenset({*UNARY, *PLAIN, *BINARY, *(case.op_type for case in MIXED)})


OPAQUE: Sequence[tuple[str, Case]] = [
    ("no declaration", Case("MurmurHash3", [ints(3, 4)], version=1, domain="com.microsoft", opset=17)),
    ("random", Case("RandomNormalLike", [floats(3, 4)], version=13)),
    ("training", Case("Dropout", [floats(4), np.asarray(0.0, np.float32), np.asarray(False)], version=13)),
    ("run time", Case("ReduceSum", [floats(3, 4), ints(1)], version=13)),
    ("mean", Case("LayerNormalization", [floats(3, 4), floats(3, 4)], {"axis": 0}, outputs=2)),
]


@pytest.mark.parametrize(("why", "case"), OPAQUE)
def test_what_cannot_be_split_says_why(why: str, case: Case) -> None:
    access = check_whole(case).access
    assert access.opaque is not None and why in access.opaque
    assert access.axes() == ()


def test_an_opaque_operator_runs_whole_and_a_part_is_cut_out() -> None:
    inputs = [floats(3, 4), np.asarray(0.0, np.float32), np.asarray(False)]
    checked = check_whole(Case("Dropout", inputs, version=13))
    assert checked.access.opaque is not None
    check_law(checked, {0: Region.full((3, 4))})
    check_law(checked, {0: Region((span((1, 3)), span((0, 1), (3, 4))))})


def test_a_shape_that_is_not_known_makes_an_operator_opaque() -> None:
    checked = check_whole(Case("Relu", [floats(3, 4)]))
    tensors = {**checked.graph.tensors, "out_0": Tensor("out_0", None, "float", 4)}
    graph = replace(checked.graph, tensors=tensors)
    access = access_of(graph.operators[0], graph)
    assert access.opaque is not None and "'out_0'" in access.opaque
    assert access.needs({0: Region(())}) == (Region.full((3, 4)),)
    (node,) = access.localize({0: Region(())})
    assert (node.op_type, node.inputs, node.outputs) == ("Relu", (0,), (0,))


def test_accesses_are_bound_once() -> None:
    graph = check_whole(Case("Relu", [floats(3, 4)])).graph
    found = accesses(graph)
    assert list(found) == ["it"] and len(found) == 1
    assert found["it"] is found["it"]
    with pytest.raises(KeyError):
        found["another"]


def test_columns_of_a_dense_layer_read_columns_of_the_weights() -> None:
    case = Case("Gemm", [floats(1, 8), floats(6, 8), floats(6)], {"transB": 1})
    access = declared(case).access
    assert [(axis.name, axis.reducer) for axis in access.axes()] == [("channel", None), ("inner", "sum")]
    wanted = {0: Region.box((0, 1), (2, 5))}
    assert access.needs(wanted) == (Region.full((1, 8)), Region.box((2, 5), (0, 8)), Region.box((2, 5)))
    assert access.flops(wanted) == 2 * 3 * 8
    assert access.family == "gemm"


def test_softmax_of_old_opsets_is_flat() -> None:
    case = Case("Softmax", [floats(2, 3, 4)], {"axis": 1}, version=11)
    assert [axis.name for axis in declared(case).access.axes()] == ["batch"]
