"""Whole networks cut into rows or channels over three devices answer as one session does."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.models import light, sample_inputs

from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.planner.layout.strategy import Sync
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.load import load_graph
from edgepart.planner.plans.check import check_plan
from tests.planner.random_plans import NAMES, problem_of, rows


@pytest.mark.parametrize(
    ("name", "axis", "sync"),
    [
        ("squeezenet", "height", Sync.BROADCAST),
        ("squeezenet", "channel", Sync.HUB),
        ("resnet50", "height", Sync.NEEDED),
        ("shufflenet", "width", Sync.NEEDED),
    ],
)
def test_a_network_over_three_devices(name: str, axis: str, sync: Sync) -> None:
    path = light(name)
    graph = load_graph(path)
    strategy = rows(graph, NAMES, axis, sync)
    plan = check_plan(make_plan(problem_of(graph), strategy, model_digest="m"), graph)
    assert set(plan.programs) == set(NAMES)
    inputs = dict(sample_inputs(graph))
    found = LocalRun(plan, graph).run(inputs)
    for output, value in run_alone(path, inputs).items():
        assert np.ptp(value) > 0
        np.testing.assert_allclose(found[output], value, rtol=0, atol=1e-4 * np.abs(value).max())
