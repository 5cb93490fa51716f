"""Every type that ONNX Runtime takes, in every role; and tensors without elements or without axes: plans for one and for
three devices answer what one session does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.agent.verify.same_answer import differences
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import choose_plan
from edgepart.planner.plans.check import check_plan
from edgepart.planner.plans.plan import Plan
from edgepart.planner.region import Array
from edgepart.planner.search.force_axis import axis_names, force
from edgepart.planner.search.study import Study
from tests.planner.random_plans import CLUSTER, NAMES

FLOAT, INT64, STRING, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL
SHAPE = (4, 6)

make = helper.make_node
value = helper.make_tensor_value_info


def model(
    nodes: list[NodeProto], inputs: list[ValueInfoProto], outputs: list[str], **weights: Array | TensorProto
) -> bytes:
    protos = [
        array if isinstance(array, TensorProto) else numpy_helper.from_array(array, name)
        for name, array in weights.items()
    ]
    results = [ValueInfoProto(name=name) for name in outputs]
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("ai.onnx.ml", 4)]
    graph = helper.make_graph(nodes, "typed", inputs, results, protos)
    return bytes(helper.make_model(graph, opset_imports=imports, ir_version=11).SerializeToString())


def array_of(kind: int, seed: int, *shape: int) -> Array:
    """Values that every type can hold: 0 and 1, as text where the type is text."""
    drawn = np.random.default_rng(seed).integers(0, 2, shape)
    if kind == STRING:
        return np.array([str(one) for one in drawn.ravel()], object).reshape(shape)
    made: Array = drawn.astype(helper.tensor_dtype_to_np_dtype(kind))
    return made


def weight_of(kind: int, seed: int, *shape: int) -> TensorProto:
    array = array_of(kind, seed, *shape)
    if kind == STRING:
        return helper.make_tensor("w", kind, shape, [one.encode() for one in array.ravel()])
    return numpy_helper.from_array(array, "w")


def plans(data: bytes, *, forced: bool = True) -> Mapping[str, Plan]:
    """By strategy, or axis that everything is divided along."""
    graph = load_graph(data)
    problem = Problem(graph, CLUSTER, NAMES[0])
    found = {name: choose_plan(problem, name)[0] for name in ("single", "bbgrap")}
    study, shares = Study(problem), tuple(zip(NAMES, (0.5, 0.3, 0.2), strict=True))
    for axis in axis_names(study.memo) if forced else ():
        found[axis] = make_plan(problem, force(study, axis, shares), model_digest="m")
    return {name: check_plan(plan, graph) for name, plan in found.items()}


def assert_same(data: bytes, inputs: Mapping[str, Any], *, at_most: int = 3) -> None:
    """Each plan's answer is one session's, and at least one plan uses so many devices."""
    expected, graph = run_alone(data, inputs), load_graph(data)
    used = []
    for name, plan in plans(data).items():
        assert differences(LocalRun(plan, graph).run(inputs), expected) == [], name
        used.append(len(plan.programs))
    assert max(used) >= at_most, used


NUMBERS = (
    "FLOAT16",
    "BFLOAT16",
    "DOUBLE",
    "INT8",
    "UINT8",
    "INT16",
    "UINT16",
    "INT32",
    "UINT32",
    "INT64",
    "UINT64",
    "BOOL",
)
"""What ONNX Runtime also moves and cuts."""

STORED = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "INT4", "UINT4")
"""What it only converts."""


@pytest.mark.parametrize("name", [*NUMBERS, *STORED, "STRING"])
def test_inputs_outputs_and_weights_of_every_type(name: str) -> None:
    kind = TensorProto.DataType.Value(name)
    nodes = [
        make("Cast", ["x"], ["f"], to=FLOAT),
        make("Relu", ["f"], ["r"]),
        make("Cast", ["w"], ["v"], to=FLOAT),
        make("Add", ["r", "v"], ["a"]),
        make("Cast", ["r"], ["y"], to=kind),
    ]
    data = model(nodes, [value("x", kind, SHAPE)], ["a", "y"], w=weight_of(kind, 1, *SHAPE))
    assert_same(data, {"x": array_of(kind, 0, *SHAPE)})


@pytest.mark.parametrize("name", [*NUMBERS, "STRING"])
def test_values_between_operators_of_every_type(name: str) -> None:
    """Cut, put together and moved: weights outside of the segment, too. (ONNX Runtime 1.31 gathers only the first string
    of each row, so it is the last axis that is gathered.)"""
    kind = TensorProto.DataType.Value(name)
    nodes = [
        make("Cast", ["x"], ["a"], to=kind),
        make("Gather", ["w", "i"], ["g"], axis=1),
        make("Concat", ["a", "g"], ["c"], axis=1),
        make("Transpose", ["c"], ["t"], perm=[1, 0]),
        make("Slice", ["t", "one", "five"], ["s"]),
        make("Cast", ["s"], ["y"], to=FLOAT),
    ]
    data = model(
        nodes,
        [value("x", FLOAT, SHAPE), value("i", INT64, (3,))],
        ["y"],
        w=weight_of(kind, 1, 4, 400),
        one=np.array([1]),
        five=np.array([8]),
    )
    assert_same(data, {"x": array_of(FLOAT, 0, *SHAPE), "i": np.array([2, 399, 7])})


def test_bytes_of_four_bits_are_packed_on_their_way() -> None:
    nodes = [
        make("DequantizeLinear", ["w", "scale"], ["d"], axis=0, block_size=8),
        make("MatMul", ["x", "d"], ["y"]),
    ]
    weight = numpy_helper.from_array(array_of(TensorProto.INT4, 1, 32, 16), "w")
    scale = np.random.default_rng(2).random((4, 16), np.float32)
    data = model(nodes, [value("x", FLOAT, (5, 32))], ["y"], w=weight, scale=scale)
    assert_same(data, {"x": array_of(FLOAT, 0, 5, 32)})


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 4), (2, 0, 3)])
def test_scalars_and_tensors_without_elements(shape: tuple[int, ...]) -> None:
    nodes = [
        make("Relu", ["x"], ["r"]),
        make("Add", ["r", "w"], ["a"]),
        make("Shape", ["a"], ["s"]),
        make("Mul", ["a", "a"], ["y"]),
        make("ReduceSum", ["y"], ["z"], keepdims=0),
    ]
    data = model(nodes, [value("x", FLOAT, shape)], ["y", "z", "s"], w=np.array(2, np.float32))
    assert_same(data, {"x": np.ones(shape, np.float32)}, at_most=1)


def test_parts_without_elements_beside_those_that_have_some() -> None:
    nodes = [
        make("Slice", ["x", "nil", "nil"], ["none"]),
        make("Relu", ["none"], ["r"]),
        make("Concat", ["x", "r", "w"], ["c"], axis=0),
        make("MatMul", ["c", "m"], ["y"]),
        make("MatMul", ["r", "m"], ["z"]),
    ]
    data = model(
        nodes,
        [value("x", FLOAT, SHAPE)],
        ["y", "z", "none"],
        nil=np.array([0]),
        w=np.zeros((0, 6), np.float32),
        m=np.random.default_rng(0).random((6, 5), np.float32),
    )
    assert_same(data, {"x": array_of(FLOAT, 0, *SHAPE)})


def test_a_product_over_nothing_is_zeros() -> None:
    nodes = [make("MatMul", ["x", "w"], ["p"]), make("Add", ["p", "b"], ["y"])]
    data = model(
        nodes, [value("x", FLOAT, (4, 0))], ["y"], w=np.zeros((0, 6), np.float32), b=np.ones(6, np.float32)
    )
    assert_same(data, {"x": np.zeros((4, 0), np.float32)}, at_most=1)


def sequence(of: int, shape: tuple[int, ...] | None) -> TypeProto:
    return helper.make_sequence_type_proto(helper.make_tensor_type_proto(of, shape))


def test_sequences_in_between_and_out_of_the_model() -> None:
    nodes = [
        make("Relu", ["x"], ["r"]),
        make("SplitToSequence", ["r"], ["parts"], axis=0, keepdims=1),
        make("SequenceInsert", ["given", "r"], ["longer"]),
        make("SequenceAt", ["parts", "two"], ["third"]),
        make("ConcatFromSequence", ["longer"], ["joined"], axis=0),
        make("Neg", ["third"], ["y"]),
        make("MatMul", ["r", "w"], ["z"]),
    ]
    given = helper.make_value_info("given", sequence(FLOAT, SHAPE))
    data = model(
        nodes,
        [value("x", FLOAT, SHAPE), given],
        ["y", "z", "joined", "parts", "longer"],
        two=np.array(2),
        w=np.eye(6, dtype=np.float32),
    )
    ones = np.ones(SHAPE, np.float32)
    assert_same(data, {"x": array_of(FLOAT, 0, *SHAPE), "given": [ones, 2 * ones]})


def test_optional_values() -> None:
    nodes = [
        make("OptionalHasElement", ["given"], ["there"]),
        make("OptionalGetElement", ["given"], ["inside"]),
        make("Add", ["inside", "x"], ["a"]),
        make("Relu", ["a"], ["y"]),
        make("Optional", ["y"], ["wrapped"]),
        make("OptionalGetElement", ["wrapped"], ["again"]),
        make("Neg", ["again"], ["z"]),
    ]
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, SHAPE))
    inputs = [value("x", FLOAT, SHAPE), helper.make_value_info("given", kind)]
    data = model(nodes, inputs, ["y", "z", "there"])
    assert_same(data, {"x": array_of(FLOAT, 0, *SHAPE), "given": array_of(FLOAT, 1, *SHAPE)})


def test_maps_out_of_and_into_a_model() -> None:
    zipped = make("ZipMap", ["r"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=list(range(6)))
    data = model([make("Relu", ["x"], ["r"]), zipped], [value("x", FLOAT, SHAPE)], ["maps", "r"])
    assert_same(data, {"x": array_of(FLOAT, 0, *SHAPE)})
    kind = helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(FLOAT, ()))
    nodes = [
        make("DictVectorizer", ["m"], ["v"], domain="ai.onnx.ml", string_vocabulary=["a", "b", "c"]),
        make("Relu", ["v"], ["y"]),
        make("Add", ["x", "x"], ["z"]),
    ]
    data = model(nodes, [helper.make_value_info("m", kind), value("x", FLOAT, SHAPE)], ["y", "z"])
    assert_same(data, {"m": {"a": 2.0, "c": -1.0}, "x": array_of(FLOAT, 0, *SHAPE)})


def test_strings_are_computed_with_and_cut() -> None:
    labels: dict[str, Any] = {"keys_strings": ["0", "1"], "values_int64s": [7, 9], "default_int64": -1}
    nodes = [
        make("StringConcat", ["x", "w"], ["c"]),
        make("Equal", ["c", "x"], ["e"]),
        make("LabelEncoder", ["x"], ["n"], domain="ai.onnx.ml", **labels),
        make("Cast", ["n"], ["y"], to=FLOAT),
    ]
    data = model(nodes, [value("x", STRING, SHAPE)], ["y", "c", "e"], w=weight_of(STRING, 1, 6))
    assert_same(data, {"x": array_of(STRING, 0, *SHAPE)})
