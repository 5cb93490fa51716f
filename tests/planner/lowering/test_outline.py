"""An outline against the plan that it leaves out: the very same steps, seconds and messages, never too little memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgepart.planner.layerwise.configurations import make_space
from edgepart.planner.layerwise.time_costs import TimeCosts
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.lowering.lower import Lowering
from edgepart.planner.plans.plan import GATEWAY
from edgepart.planner.plans.timeline import Compute
from edgepart.planner.search.lower_bound import lower_bound_s
from edgepart.planner.search.study import Study
from edgepart.planner.simulation.latency import simulate, time_schedule
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


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(data=st.data(), share=st.sampled_from([0.0, 0.01, 0.5, 1.0]))
def test_where_devices_send_a_part_of_an_answer_everybody_counts_that_part(
    data: st.DataObject, share: float
) -> None:
    whole = studied("squeezenet")
    (output,) = whole.memo.graph.answer_outputs
    study = Study(replace(whole.memo.problem, answer_share={output: share}))
    strategy = drawn(data, study)
    less, more = (one.memo.lowering.plan(strategy, sketch=True) for one in (study, whole))
    for some, every in zip(less.transfers, more.transfers, strict=True):
        counted = every.nbytes * (share if every.target == GATEWAY else 1)
        assert counted <= some.nbytes <= counted + len(every.pieces)
    problem = study.memo.problem
    simulated = simulate(less, problem.cluster, problem.gateway, study.memo.cost)
    assert study.scorer.forecast(strategy).latency_s == pytest.approx(simulated.latency_s)
    assert lower_bound_s(study, strategy) <= study.scorer.forecast(strategy).latency_s * (1 + 1e-9)
    tables = [TimeCosts(one.memo, make_space(one.memo)).build_problem().unary for one in (study, whole)]
    for part, all_of_it in zip(*tables, strict=True):
        assert (part <= all_of_it + 1e-12).all()
