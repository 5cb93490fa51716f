"""The law of TDL: a description and the hand-written access map of the same operator read the same, are divided alike, and
the map that follows from the description keeps the law of access maps in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.access.declare.bound import BoundOperator, bind
from edgepart.planner.access.declare.described import Described, described
from edgepart.planner.tdl.analysis import BoundDescription, bind_description
from edgepart.planner.tdl.description import OperatorDescription
from tests.planner.access.law import Case, Checked, boxes, check_any_region, check_whole, floats, ints
from tests.planner.tdl import standard

EXAMPLES = settings(max_examples=8)


def number(data: st.DataObject, low: int, high: int) -> int:
    return data.draw(st.integers(low, high))


def numbers(data: st.DataObject, count: int, low: int, high: int) -> Sequence[int]:
    return tuple(number(data, low, high) for _ in range(count))


def conv_case(data: st.DataObject, rank: int, *, bias: bool, padding: bool = True) -> Case:
    kernel = numbers(data, rank, 1, 3)
    attributes = {"strides": numbers(data, rank, 1, 3), "dilations": numbers(data, rank, 1, 2)}
    attributes["pads"] = [number(data, 0, k - 1) for k in (*kernel, *kernel)]
    if not padding:
        attributes = {}
    channels, made = number(data, 1, 3), number(data, 1, 3)
    x = floats(number(data, 1, 2), channels, *numbers(data, rank, 5, 9))
    w = floats(made, channels, *kernel, seed=1)
    return Case("Conv", [x, w, *([floats(made, seed=2)] if bias else [])], attributes)


def depthwise_case(data: st.DataObject) -> Case:
    channels, kernel = number(data, 2, 4), number(data, 1, 3)
    attributes = {"strides": numbers(data, 1, 1, 2), "pads": numbers(data, 2, 0, kernel - 1)}
    x, w = floats(2, channels, number(data, 5, 9)), floats(channels, 1, kernel, seed=1)
    return Case("Conv", [x, w], {**attributes, "group": channels})


def pool_case(data: st.DataObject, op_type: str) -> Case:
    kernel = numbers(data, 2, 1, 3)
    attributes = {"kernel_shape": kernel, "strides": numbers(data, 2, 1, 3)}
    attributes["pads"] = [number(data, 0, k - 1) for k in (*kernel, *kernel)]
    return Case(op_type, [floats(2, 2, *numbers(data, 2, 4, 9))], attributes)


def elementwise_case(data: st.DataObject) -> Case:
    shape = numbers(data, 3, 1, 4)
    small = [extent if number(data, 0, 1) else 1 for extent in shape][number(data, 0, 2) :]
    return Case("Add", [floats(*shape), floats(*small, seed=1)])


def matmul_case(data: st.DataObject) -> Case:
    rows, inner, columns, batch = numbers(data, 4, 1, 5)
    before = [(), (batch,), (1,)][number(data, 0, 2)]
    return Case("MatMul", [floats(batch, rows, inner), floats(*before, inner, columns, seed=1)])


def gemm_case(data: st.DataObject, *, transposed: bool) -> Case:
    rows, inner, columns = numbers(data, 3, 1, 5)
    if not transposed:
        return Case("Gemm", [floats(rows, inner), floats(inner, columns, seed=1)])
    turned = {"transA": 1, "transB": 1, "alpha": 0.5}
    return Case(
        "Gemm", [floats(inner, rows), floats(columns, inner, seed=1), floats(columns, seed=2)], turned
    )


def reduce_case(data: st.DataObject, op_type: str) -> Case:
    x = floats(*numbers(data, 3, 1, 5))
    if op_type == "ArgMax":
        return Case(op_type, [x], {"axis": 1, "keepdims": 0})
    if op_type == "ReduceSum":
        return Case(op_type, [x, ints(1)], {"keepdims": 0}, constants=frozenset({1}))
    return Case(op_type, [x], {"axes": [1], "keepdims": 0})


def pair(data: st.DataObject) -> tuple[int, int]:
    return number(data, 2, 5), number(data, 2, 5)


def statistics_case(data: st.DataObject, op_type: str, inputs: int) -> Case:
    """A normalisation of pictures, with inputs of one value for each channel."""
    shape = numbers(data, 4, 2, 4)
    return Case(op_type, [floats(*shape), *(floats(shape[1], seed=n, low=0.5) for n in range(inputs))])


def concat_case(data: st.DataObject) -> Case:
    columns = number(data, 1, 5)
    return Case("Concat", [floats(2, columns), floats(3, columns)], {"axis": 0})


def einsum_case(data: st.DataObject) -> Case:
    k, i, j, c = numbers(data, 4, 1, 4)
    return Case("Einsum", [floats(k, i, c), floats(j, k, c)], {"equation": "kic,jkc->ijc"})


def attention_case(data: st.DataObject) -> Case:
    batch, queries, keys = numbers(data, 3, 1, 4)
    inputs = [floats(batch, rows, 8, seed=n) for n, rows in enumerate((queries, keys, keys))]
    heads = {"num_heads": 2}
    return Case("MultiHeadAttention", inputs, heads, version=1, domain="com.microsoft", opset=17)


CASES: dict[str, tuple[OperatorDescription, Callable[[st.DataObject], Case]]] = {
    "relu": (standard.relu, lambda data: Case("Relu", [floats(*pair(data))])),
    "add": (standard.add, elementwise_case),
    "where": (
        standard.where,
        lambda data: Case("Where", [floats(3, 1) > 0, floats(2, 3, 4), floats(1, 4, seed=1)]),
    ),
    "matmul": (standard.matmul, matmul_case),
    "gemm": (standard.gemm, lambda data: gemm_case(data, transposed=False)),
    "gemm transposed": (standard.gemm_transposed, lambda data: gemm_case(data, transposed=True)),
    "transpose": (
        standard.transpose,
        lambda data: Case("Transpose", [floats(*numbers(data, 3, 1, 4))], {"perm": [2, 0, 1]}),
    ),
    "conv1d": (standard.conv1d, lambda data: conv_case(data, 1, bias=False)),
    "conv2d": (standard.conv2d, lambda data: conv_case(data, 2, bias=bool(number(data, 0, 1)))),
    "conv1d unpadded": (
        standard.unpadded_conv1d,
        lambda data: conv_case(data, 1, bias=False, padding=False),
    ),
    "conv1d depthwise": (standard.depthwise_conv1d, depthwise_case),
    "max pool": (standard.max_pool, lambda data: pool_case(data, "MaxPool")),
    "average pool": (standard.average_pool, lambda data: pool_case(data, "AveragePool")),
    "softmax": (standard.softmax, lambda data: Case("Softmax", [floats(*pair(data))])),
    "layer normalization": (
        standard.layer_normalization,
        lambda data: Case("LayerNormalization", [floats(2, *pair(data), 4), floats(4), floats(4, seed=1)]),
    ),
    "batch normalization": (
        standard.batch_normalization,
        lambda data: statistics_case(data, "BatchNormalization", 4),
    ),
    "instance normalization": (
        standard.instance_normalization,
        lambda data: statistics_case(data, "InstanceNormalization", 2),
    ),
    "reduce sum": (standard.reduce_sum, lambda data: reduce_case(data, "ReduceSum")),
    "reduce max": (standard.reduce_max, lambda data: reduce_case(data, "ReduceMax")),
    "reduce min": (standard.reduce_min, lambda data: reduce_case(data, "ReduceMin")),
    "reduce prod": (standard.reduce_prod, lambda data: reduce_case(data, "ReduceProd")),
    "arg max": (standard.arg_max, lambda data: reduce_case(data, "ArgMax")),
    "top k": (
        standard.top_k,
        lambda data: Case("TopK", [floats(*pair(data)), ints(2)], outputs=2, constants=frozenset({1})),
    ),
    "cumulative sum": (
        standard.cumulative_sum,
        lambda data: Case("CumSum", [floats(*pair(data)), ints(1)], constants=frozenset({1})),
    ),
    "gather": (
        standard.gather,
        lambda data: Case("Gather", [floats(4, number(data, 1, 5)), ints(3, 0, 0, 2)]),
    ),
    "concat": (standard.concat, concat_case),
    "pad": (
        standard.pad,
        lambda data: Case("Pad", [floats(*pair(data))], {"pads": numbers(data, 4, 0, 2)}, version=10),
    ),
    "einsum": (standard.einsum, einsum_case),
    "attention": (standard.attention, attention_case),
}

REDUCED = -1
BY_HAND = {
    "gemm transposed": {REDUCED: "the term that is added once is left out of all parts but the first"},
    "conv2d": {REDUCED: "the bias is left out of all parts but the first"},
    "conv1d depthwise": {1: "the local node has another `group`"},
    "softmax": {REDUCED: "parts are combined by their maxima and sums"},
    "layer normalization": {REDUCED: "parts are combined by their moments"},
    "instance normalization": {REDUCED: "parts are combined by their moments"},
    "concat": {0: "a part of the output needs some of the inputs"},
    "attention": {
        REDUCED: "parts are combined by their maxima and sums",
        2: "heads are blocks of the features",
    },
}
"""Ways to divide an operator that only the hand-written map knows, by axis, and what the map does there."""
BY_DESCRIPTION = {"conv1d unpadded": {REDUCED: "the elements of a kernel are a reduced axis too"}}
"""Ways that only the description knows."""
READ_WHOLE = {"concat", "attention"}
"""Descriptions with an opaque function of whole axes, of which the hand-written map reads a part."""


def both(name: str, data: st.DataObject) -> tuple[Checked, Described, BoundOperator]:
    """The case with its hand-written map, and the map from its description."""
    description, make = CASES[name]
    checked = check_whole(make(data))
    (operator,) = checked.graph.operators
    bound = bind(operator, checked.graph)
    assert isinstance(bound, BoundOperator)
    found = described(bound, [description])
    assert isinstance(found, Described), found.opaque
    return checked, found, bound


@pytest.mark.parametrize("name", CASES)
@EXAMPLES
@given(st.data())
def test_the_map_from_a_description_keeps_the_law(name: str, data: st.DataObject) -> None:
    checked, found, _ = both(name, data)
    check_any_region(replace(checked, access=found), data)


@pytest.mark.parametrize("name", CASES)
@EXAMPLES
@given(st.data())
def test_a_description_reads_what_the_hand_written_map_reads(name: str, data: st.DataObject) -> None:
    checked, _, bound = both(name, data)
    analysed = bind_description(CASES[name][0], bound.inputs, bound.outputs, bound.operator.attributes)
    assert isinstance(analysed, BoundDescription)
    wanted = {n: data.draw(boxes(result.shape)) for n, result in enumerate(checked.results[:1])}
    by_hand = checked.access.needs(wanted)
    for index, (one, two) in enumerate(zip(analysed.input_regions(wanted), by_hand, strict=True)):
        if one is None or two is None or one.is_empty:
            # Axes and counts are constants of one map, and no elements of the other; a node cannot read nothing at all.
            continue
        assert one.contains(two), f"input {index} for {wanted[0]}"
        assert one == two or name in READ_WHOLE, f"input {index} for {wanted[0]}"


@pytest.mark.parametrize("name", CASES)
@EXAMPLES
@given(st.data())
def test_a_description_is_divided_as_the_hand_written_map_is(name: str, data: st.DataObject) -> None:
    checked, found, _ = both(name, data)
    mine, theirs = (
        {
            (REDUCED if axis.reducer else axis.index, axis.extent, axis.quantum, axis.reducer)
            for axis in access.axes()
        }
        for access in (found, checked.access)
    )
    assert {way[0] for way in theirs - mine} <= BY_HAND.get(name, {}).keys()
    assert {way[0] for way in mine - theirs} <= BY_DESCRIPTION.get(name, {}).keys()
