"""A plan that does not divide a model runs the model itself: the same bits as one session over the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.models import SMALL, sample_inputs, zoo_model
from onnx import ModelProto, TensorProto, helper, numpy_helper

from edgepart.agent.execution.compile.compiler import throwaway
from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.planner.devices.cluster import Cluster, Device
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.blobs import blob_digest
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph, load_weights
from edgepart.planner.planner import best_strategy
from edgepart.planner.plans.check import check_plan
from edgepart.planner.plans.plan import Plan, Segment
from edgepart.planner.plans.plan_bytes import plan_from_bytes, plan_to_bytes
from edgepart.planner.search.force_axis import force
from edgepart.planner.search.study import Study


def on_one_device(graph: Graph) -> Plan:
    """As another agent reads it."""
    problem = Problem(graph, Cluster((Device("box", "box", 1e9, 1e9, 1e12),)), "box")
    study = Study(problem)
    strategy = best_strategy(problem, "single", study)
    plan = make_plan(problem, strategy, model_digest="", digests={}, accesses=study.memo.coarse.accesses)
    return check_plan(plan_from_bytes(plan_to_bytes(plan)), graph)


def only_segment(plan: Plan) -> Segment:
    (segment,) = plan.programs["box"].segments
    return segment


def assert_equal_bits(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        got, want = np.asarray(found[name]), np.asarray(value)
        assert (got.shape, got.dtype, got.tobytes()) == (want.shape, want.dtype, want.tobytes()), name


@pytest.mark.parametrize("name", SMALL)
def test_one_device_gives_the_bits_of_one_session(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = zoo_model(name)
    graph = load_graph(model.path, shapes=model.shapes)
    plan = on_one_device(graph)
    assert only_segment(plan).whole
    inputs = model.inputs(0)
    with throwaway() as compiler:
        found = LocalRun(plan, graph, compiler=compiler).run(inputs)
    assert_equal_bits(found, run_alone(model.path, inputs))


def folded(**weights: np.ndarray[Any, Any]) -> ModelProto:
    """An old weight that is an input, too; a constant chain to fold; a Constant; an input that nobody reads."""
    rng = np.random.default_rng(0)
    w, v = (rng.standard_normal((20, 20)).astype(np.float32) for _ in range(2))
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Constant", [], ["v"], value=numpy_helper.from_array(v, "any")),
        helper.make_node("Transpose", ["w"], ["wt"]),
        helper.make_node("MatMul", ["x", "wt"], ["a"]),
        helper.make_node("MatMul", ["a", "v"], ["b"]),
        helper.make_node("Size", ["x"], ["n"]),
        helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["b", "f"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "folded",
        [value("x", 1, ("rows", 20)), value("w", 1, (20, 20)), value("unread", 1, (2,))],
        [value("y", 1, ("rows", 20))],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(v, "spare")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_nothing_is_folded_or_bound_and_weights_stay_outside(tmp_path: Path) -> None:
    model = folded()
    path = tmp_path / "folded.onnx"
    onnx.save(model, path)
    graph = load_graph(path, shapes={"x": (3, 20)})
    plan = on_one_device(graph)
    segment = only_segment(plan)
    assert segment.whole
    own = onnx.load_model_from_string(segment.model)
    assert [node.op_type for node in own.graph.node] == [
        "Transpose",
        "MatMul",
        "MatMul",
        "Size",
        "Cast",
        "Div",
    ]
    assert "w" not in graph.constants
    there = load_weights(path)  # From which members cut them.
    assert {ref.name: ref.digest for ref in segment.weights} == {
        name: blob_digest(there[name], there[name].region) for name in ("v", "w")
    }
    inputs = sample_inputs(graph)
    assert_equal_bits(LocalRun(plan, graph).run(inputs), run_alone(path, inputs))


def test_all_of_an_input_that_is_read_in_part_is_sent(tmp_path: Path) -> None:
    """The last row and column are in no window, and rows of the other input are left out."""
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], strides=[2, 2]),
        helper.make_node("Slice", ["z", "one", "three", "zero"], ["b"]),
        helper.make_node("Slice", ["z", "five", "six", "zero"], ["c"]),
    ]
    constants = {"zero": 0, "one": 1, "three": 3, "five": 5, "six": 6}
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "in part",
        [value("x", 1, (1, 3, 12, 12)), value("z", 1, (8, 2))],
        [value("a", 1, (1, 4, 5, 5)), value("b", 1, (2, 2)), value("c", 1, (1, 2))],
        [numpy_helper.from_array(weight, "w")]
        + [numpy_helper.from_array(np.array([number]), name) for name, number in constants.items()],
    )
    path = tmp_path / "in_part.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    read = load_graph(path)
    plan = on_one_device(read)
    assert only_segment(plan).whole
    assert {port.name: port.piece.region.shape for port in only_segment(plan).inputs} == {
        "x": (1, 3, 12, 12),
        "z": (8, 2),
    }
    inputs = sample_inputs(read)
    assert_equal_bits(LocalRun(plan, read).run(inputs), run_alone(path, inputs))


def test_a_model_in_two_parts_is_not_the_model_itself() -> None:
    graph = load_graph(folded().SerializeToString(), shapes={"x": (4, 20)})
    names = ("ada", "bob")
    cluster = Cluster(tuple(Device(name, "box", 1e9, 1e9, 1e12) for name in names))
    study = Study(Problem(graph, cluster, "ada"))
    strategy = force(study, "batch", tuple((name, 0.5) for name in names))
    plan = make_plan(
        study.memo.problem, strategy, model_digest="", digests={}, accesses=study.memo.coarse.accesses
    )
    segments = [segment for program in plan.programs.values() for segment in program.segments]
    assert len(segments) > 1 and not any(segment.whole for segment in segments)


def test_one_file_in_two_shapes_is_two_segments() -> None:
    """Whose sessions, times and buffers are not the same, though their models are."""
    segments = [
        only_segment(on_one_device(load_graph(folded().SerializeToString(), shapes={"x": (rows, 20)})))
        for rows in (3, 4)
    ]
    assert segments[0].model == segments[1].model
    assert segments[0].digest != segments[1].digest
