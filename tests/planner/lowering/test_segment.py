"""Segments as models: crops, captured values, what has no elements, types and opsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgepart.agent.execution.runtime.loaded_segments import load_segment
from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.planner.access import accesses
from edgepart.planner.errors import InternalError
from edgepart.planner.layout.strategy import Layout, Strategy
from edgepart.planner.lowering.draft import Blueprint, Draft, Group, make_share
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.lowering.segment import build_segment, make_ports
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.model.load import load_graph
from edgepart.planner.model.protos import tensor_proto
from edgepart.planner.plans.check import check_plan
from edgepart.planner.plans.plan import Segment
from edgepart.planner.region import Array, Region, span
from tests.planner.random_plans import NAMES, problem_of


def model_of(
    nodes: list[onnx.NodeProto],
    shapes: dict[str, tuple[int, ...]],
    weights: dict[str, Array] | None = None,
    *,
    given: str = "x",
    made: str = "y",
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
) -> bytes:
    infos = {name: helper.make_tensor_value_info(name, dtype, shapes[name]) for name in (*given, *made)}
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", [infos[n] for n in given], [infos[n] for n in made], tensors)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
    return bytes(model.SerializeToString())


def on(graph: Graph, places: dict[str, str]) -> Strategy:
    return Strategy("s", {name: Layout({device: graph.region_of(name)}) for name, device in places.items()})


def assert_answers(model: bytes, places: dict[str, str], inputs: dict[str, Array]) -> Any:
    graph = load_graph(model)
    plan = check_plan(make_plan(problem_of(graph), on(graph, places), model_digest="m"), graph)
    found, expected = LocalRun(plan, graph).run(inputs), run_alone(model, inputs)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)
    return plan


SHAPE = (4, 6)
spans_ = [
    st.lists(st.tuples(st.integers(0, n), st.integers(0, n)), min_size=1, max_size=3).map(lambda b: span(*b))
    for n in SHAPE
]


@settings(max_examples=30)
@given(st.tuples(*spans_).map(Region), st.sampled_from([9, 10, 17]))
def test_a_crop_is_cut_inside_the_segment(region: Region, opset: int) -> None:
    """Relu reads a part of what Neg, in the same segment, makes whole; parts with several intervals too."""
    if region.is_empty:
        return
    nodes = [helper.make_node("Neg", ["x"], ["t"], "neg"), helper.make_node("Relu", ["t"], ["y"], "relu")]
    graph = load_graph(model_of(nodes, {"x": SHAPE, "y": SHAPE}, opset=opset))
    found = accesses(graph)
    blueprint = Blueprint(problem_of(graph), Strategy("s", {}), found, {})
    wanted = {"neg": Region.full(SHAPE), "relu": region}
    shares = [make_share(graph, op, "ada", found[op.name], {0: wanted[op.name]}) for op in graph.operators]
    draft = Draft(blueprint, {s.operator.name: Group((s,)) for s in shares}, {})
    model = build_segment(draft, shares, [("y", region)], [])
    takes = make_ports(graph, [("x", Region.full(SHAPE))])
    gives = make_ports(graph, [("y", region)])
    segment = Segment("", model, takes, gives, (), (), 0, 0, 0)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    (y,) = load_segment(segment, {}, 1).run([x])
    np.testing.assert_array_equal(y, region.crop(np.maximum(-x, 0)))


def test_sub_graphs_find_what_they_capture() -> None:
    """An If whose branches read a tensor and a big weight of the graph around them, made on another
    device."""
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, (20, 20))
    then = helper.make_graph([helper.make_node("Add", ["t", "w"], ["out"])], "then", [], [out])
    other = helper.make_graph([helper.make_node("Sub", ["t", "w"], ["out"])], "else", [], [out])
    nodes = [
        helper.make_node("Neg", ["x"], ["t"], "neg"),
        helper.make_node("ReduceSum", ["x"], ["s"], "sum", keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"], "greater"),
        helper.make_node("If", ["c"], ["y"], "if", then_branch=then, else_branch=other),
    ]
    weights: dict[str, Array] = {
        "w": np.arange(400, dtype=np.float32).reshape(20, 20),
        "zero": np.zeros((), np.float32),
    }
    model = model_of(nodes, {"x": (20, 20), "y": (20, 20)}, weights)
    x = np.random.default_rng(0).standard_normal((20, 20)).astype(np.float32)
    places = {"t": "ada", "s": "bob", "c": "bob", "y": "cyd"}
    for sign in (1, -1):
        plan = assert_answers(model, places, {"x": np.abs(x) * np.float32(sign)})
    assert [ref.name for ref in plan.programs["cyd"].segments[0].weights] == ["w"]


def test_a_tensor_without_elements_is_no_hindrance() -> None:
    """`t` and the output `z` have none; `y` is put together from `t` and `x`."""
    nodes = [
        helper.make_node("Slice", ["x", "start", "stop"], ["t"], "slice"),
        helper.make_node("Concat", ["t", "x"], ["y"], "concat", axis=0),
        helper.make_node("Relu", ["t"], ["z"], "relu"),
    ]
    weights: dict[str, Array] = {"start": np.array([2]), "stop": np.array([2])}
    model = model_of(nodes, {"x": (4, 3), "y": (4, 3), "z": (0, 3)}, weights, made="yz")
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    assert_answers(model, {"t": "ada", "y": "bob", "z": "cyd"}, {"x": x})


def test_one_input_read_twice_and_in_two_sizes() -> None:
    """Both rows 0:3 and rows 0:2 of `x` are read on one device: one port, the smaller is cut from it."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["t"], "add"),
        helper.make_node("Neg", ["x"], ["u"], "neg"),
        helper.make_node("Concat", ["t", "u"], ["y"], "concat", axis=0),
    ]
    model = model_of(nodes, {"x": (4, 3), "y": (8, 3)})
    graph = load_graph(model)
    full = graph.region_of("x")
    halves = {
        "t": Layout({"ada": full.replace(0, span((0, 3))), "bob": full.replace(0, span((3, 4)))}),
        "u": Layout({"ada": full.replace(0, span((0, 2))), "bob": full.replace(0, span((2, 4)))}),
        "y": Layout({"ada": graph.region_of("y")}),
    }
    plan = check_plan(make_plan(problem_of(graph), Strategy("s", halves), model_digest="m"), graph)
    assert [str(p.piece.region) for p in plan.programs["ada"].segments[0].inputs] == ["0:3x0:3"]
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    expected = run_alone(model, {"x": x})["y"]
    np.testing.assert_array_equal(LocalRun(plan, graph).run({"x": x})["y"], expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.int64, np.uint8, np.bool_])
def test_types_travel_as_they_are(dtype: type[Any]) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], "a"),
        helper.make_node("Identity", ["t"], ["y"], "b"),
    ]
    model = model_of(nodes, {"x": (3, 5), "y": (5, 3)}, dtype=kind)
    x = np.arange(15).reshape(3, 5).astype(dtype)
    plan = assert_answers(model, {"t": "ada", "y": "bob"}, {"x": x})
    assert plan.transfers[0].nbytes == 15 * np.dtype(dtype).itemsize


def test_strings_travel_too() -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], "a"),
        helper.make_node("Identity", ["t"], ["y"], "b"),
    ]
    model = model_of(nodes, {"x": (1, 2), "y": (2, 1)}, dtype=TensorProto.STRING)
    assert_answers(model, {"t": "ada", "y": "bob"}, {"x": np.array([["one", "two"]], dtype=object)})


def test_shapes_that_depend_on_data_travel_whole() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["t"], "nz"), helper.make_node("Neg", ["t"], ["y"], "neg")]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4,))],
        [helper.make_tensor_value_info("y", TensorProto.INT64, (1, "n"))],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    x = np.array([1, 0, 2, 0], np.float32)
    plan = assert_answers(model.SerializeToString(), {"t": "ada", "y": "bob"}, {"x": x})
    assert plan.outputs[0].shape is None


def test_a_sequence_travels_whole() -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["s"], "split", axis=0),
        helper.make_node("SequenceAt", ["s", "i"], ["t"], "at"),
        helper.make_node("Neg", ["t"], ["y"], "neg"),
    ]
    model = model_of(nodes, {"x": (4, 3), "y": (1, 3)}, {"i": np.array(1)})
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    plan = assert_answers(model, {"s": "ada", "t": "bob", "y": "bob"}, {"x": x})
    assert plan.syncs == 1


def test_a_weight_that_is_not_what_it_says_is_our_fault() -> None:
    with pytest.raises(InternalError, match="said to be int64, and holds float32"):
        tensor_proto(np.zeros(3, np.float32), "w", "int64")


def test_an_operator_that_cannot_be_split_must_not_be() -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["y"], "draw")]
    graph = load_graph(model_of(nodes, {"x": (4, 3), "y": (4, 3)}))
    op: Operator = graph.operators[0]
    assert accesses(graph)[op.name].opaque
    layout = Layout(
        {n: graph.region_of("y").replace(0, span((2 * i, 2 * i + 2))) for i, n in enumerate(NAMES[:2])}
    )
    with pytest.raises(InternalError, match="RandomNormalLike 'draw' cannot be split"):
        make_plan(problem_of(graph), Strategy("s", {"y": layout}), model_digest="m")


@pytest.mark.parametrize("height", [7, 8, 9])
@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("Conv", {"kernel_shape": [1, 1], "strides": [2, 2]}),
        ("Conv", {"kernel_shape": [3, 3], "strides": [3, 2], "pads": [1, 1, 1, 1]}),
        ("Conv", {"kernel_shape": [2, 2], "strides": [3, 3], "dilations": [2, 2]}),
        ("MaxPool", {"kernel_shape": [2, 2], "strides": [3, 3]}),
        ("AveragePool", {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [0, 1, 0, 1]}),
    ],
)
@pytest.mark.parametrize("split", [None, 1, 2])
def test_what_no_window_looks_at_is_not_cut_off(
    op_type: str, attributes: dict[str, Any], height: int, split: int | None
) -> None:
    """The rows and columns that strides leave over stay where they are: to cut them off is to copy the others."""
    weights = {"w": np.arange(8, dtype=np.float32).reshape(2, 1, 2, 2)[..., :1, :1] + 1}
    if op_type == "Conv":
        kernel = attributes["kernel_shape"]
        weights = {
            "w": np.linspace(-1, 1, 2 * kernel[0] * kernel[1], dtype=np.float32).reshape(2, 1, *kernel)
        }
    names = ["t", *weights] if op_type == "Conv" else ["t"]
    nodes = [helper.make_node("Neg", ["x"], ["t"]), helper.make_node(op_type, names, ["y"], **attributes)]
    shape = (1, 1, height, 9)
    loose = model_of(nodes, {"x": shape, "y": ()}, weights)
    inferred = onnx.shape_inference.infer_shapes(_without_shape(loose))
    made = tuple(d.dim_value for d in inferred.graph.output[0].type.tensor_type.shape.dim)
    model = model_of(nodes, {"x": shape, "y": made}, weights)
    graph = load_graph(model)
    layouts = {"t": Layout({"ada": graph.region_of("t")}), "y": Layout({"ada": graph.region_of("y")})}
    if split is not None:
        before = split * attributes["strides"][0] - attributes.get("pads", [0])[0]  # up to the next window
        for name, cut, extent in (("t", before, height), ("y", split, made[2])):
            whole = graph.region_of(name)
            halves = {"ada": whole.replace(2, span((0, cut))), "bob": whole.replace(2, span((cut, extent)))}
            layouts[name] = Layout({name: half for name, half in halves.items() if not half.is_empty})
    plan = check_plan(make_plan(problem_of(graph), Strategy("s", layouts), model_digest="m"), graph)
    segments = [onnx.load_from_string(s.model) for s in plan.programs["ada"].segments]
    assert "Slice" not in {node.op_type for segment in segments for node in segment.graph.node}
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = run_alone(model, {"x": x})["y"]
    np.testing.assert_array_equal(LocalRun(plan, graph).run({"x": x})["y"], expected)


def _without_shape(model: bytes) -> onnx.ModelProto:
    loose = onnx.load_from_string(model)
    loose.graph.output[0].type.tensor_type.ClearField("shape")
    return loose
