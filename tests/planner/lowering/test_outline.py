"""An outline against the plan that it leaves out: the very same steps, seconds and messages, never too little memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgepart.planner.layout.strategy import Problem
from edgepart.planner.lowering.lower import Lowering
from edgepart.planner.plans.timeline import Compute
from edgepart.planner.search.study import Study
from edgepart.planner.simulation.latency import time_schedule
from edgepart.planner.strategies.single import run_alone
from tests.planner.cost.test_chain_cost import drawn, studied


@pytest.mark.parametrize("model", ["squeezenet", "shufflenet"])
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_outline_is_what_is_simulated_of_the_plan(model: str, data: st.DataObject) -> None:
    study = studied(model)
    strategy = drawn(data, study)
    lowering = Lowering(study.memo.problem, study.memo.cost, study.memo.coarse.accesses)
    outline, enough = lowering.outline(strategy)
    plan = lowering.plan(strategy, sketch=True)
    twin = time_schedule(plan, study.memo.cost)
    assert outline.messages == twin.messages
    assert outline.steps.keys() == twin.steps.keys()
    for device, steps in twin.steps.items():
        for made, wanted in zip(outline.steps[device], steps, strict=True):
            if isinstance(wanted, Compute):
                assert isinstance(made, Compute) and made.seconds == pytest.approx(wanted.seconds, rel=1e-12)
            else:
                assert made == wanted
        assert plan.programs[device].peak_memory_bytes <= enough[device]


@pytest.mark.parametrize("memory", [1, 4, 40])
def test_memory_is_counted_where_it_may_be_short(memory: int) -> None:
    """Devices with so many times the memory that the whole model takes on one of them."""
    known = studied("squeezenet")
    peak = known.scorer.forecast(run_alone(known, "d0")).peak_memory_bytes["d0"]
    devices = tuple(replace(one, memory_bytes=memory * peak) for one in known.memo.cluster.devices)
    study = Study(Problem(known.memo.graph, replace(known.memo.cluster, devices=devices), "d0"))
    for name in study.memo.by_speed:
        strategy = run_alone(study, name)
        outline, forecast = study.scorer.outline(strategy), study.scorer.forecast(strategy)
        assert outline.latency_s == pytest.approx(known.scorer.forecast(run_alone(known, name)).latency_s)
        assert study.scorer.short_bytes(strategy) == {}
        assert (
            forecast.peak_memory_bytes[name]
            <= outline.peak_memory_bytes[name] + study.memo.chain_costs.inner_bytes
        )
