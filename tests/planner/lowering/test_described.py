"""Operators that a user described are divided along each of their axes, and the answer is the undivided one's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.described_operators import metadata_of
from edgepart.planner.model.load import load_graph
from edgepart.planner.plans.check import check_plan
from edgepart.planner.plans.plan import Program
from edgepart.planner.search.force_axis import force
from edgepart.planner.search.study import Study
from edgepart.planner.tdl.description import OperatorDescription
from tests.planner.random_plans import CLUSTER, NAMES, inputs_of
from tests.planner.tdl import functions

SHARES = tuple((name, share) for name, share in zip(NAMES, (0.5, 1.0, 1.5), strict=True))
MODELS = {
    "rows": (functions.scanned_rows(), functions.rows, ("batch", "channel")),
    "padded": (functions.scanned_convolution(), functions.filtered, ("batch", "sequence", "feature")),
    "padded and strided": (
        functions.scanned_convolution((2, 0), 2),
        functions.filtered,
        ("batch", "sequence", "feature"),
    ),
    "shortened": (functions.shortened_rows(), functions.shortened, ("batch", "channel")),
    "summed": (functions.summed_rows(), functions.total, ("axis0", "inner")),
}


@pytest.mark.parametrize(
    ("name", "axis"), [(name, axis) for name, (_, _, axes) in MODELS.items() for axis in axes]
)
def test_a_described_function_gives_the_same_answer_in_parts(name: str, axis: str, tmp_path: Path) -> None:
    model, described, _ = MODELS[name]
    data, path = model + metadata_of([described]), tmp_path / "m.onnx"
    path.write_bytes(data)
    graph = load_graph(data)
    study = Study(Problem(graph, CLUSTER, NAMES[0]))
    plan = check_plan(make_plan(study.memo.problem, force(study, axis, SHARES), model_digest="m"), graph)
    runs = [device for device, program in plan.programs.items() if calls(program, described)]
    assert len(runs) == min(len(NAMES), study.memo.layers[-1].extent(axis) or len(NAMES))
    inputs = inputs_of(graph)
    whole, parts = run_alone(path, inputs)["out"], LocalRun(plan, graph).run(inputs)["out"]
    assert np.ptp(whole) > 0
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-5 * np.abs(whole).max())


def calls(program: Program, described: OperatorDescription) -> bool:
    """Whether a device runs the described function."""
    models = (onnx.load_model_from_string(segment.model) for segment in program.segments)
    return any(node.op_type == described.op_type for model in models for node in model.graph.node)
