"""Which borders go first is chosen by simulation: never slower, the same each time, and only where it is asked for."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from benchmarks.models import light
from benchmarks.search_time import cluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgepart.planner.layout.strategy import Problem, Strategy
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import best_strategy, choose_plan
from edgepart.planner.report.sentences import as_sentence
from edgepart.planner.search import checkpoint, choose_borders
from edgepart.planner.search.choose_borders import WHY, send_borders_first
from edgepart.planner.search.study import Study
from tests.planner.cost.test_chain_cost import drawn, studied


@cache
def graph(name: str) -> Graph:
    return load_graph(light(name))


def study_of(name: str, devices: int, objective: str = "latency", borders_first: bool = False) -> Study:
    problem = Problem(graph(name), cluster(devices), "d0", objective, borders_first=borders_first)
    return Study(replace(problem, search_budget_s=1.0))


def plain(study: Study, name: str = "optcnn") -> Strategy:
    found = best_strategy(replace(study.memo.problem, borders_first=False), name, study)
    assert not found.early
    return found


@pytest.mark.parametrize("model", ["squeezenet", "inception_v2"])
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_it_is_never_slower(model: str, data: st.DataObject) -> None:
    study = studied(model)
    strategy = drawn(data, study)
    found = send_borders_first(study, strategy)
    if found is not None:
        assert found.early and found.layouts is strategy.layouts
        assert study.scorer.score(found) < study.scorer.score(strategy)
        assert send_borders_first(study, strategy) == found


@pytest.mark.parametrize(("model", "devices"), [("resnet50", 2), ("inception_v1", 4)])
def test_putting_steps_together_is_lowering_anew(model: str, devices: int) -> None:
    """The plain twin of a quick sum: the strategy lowered with just these borders first."""
    study = study_of(model, devices)
    strategy = plain(study)
    exchanges = choose_borders._EarlyExchanges(study, strategy)
    count = len(exchanges.tensors)
    assert count > 5
    for some in (set[int](), set(range(count)), set(range(0, count, 2)), {count // 2}):
        names = frozenset(name for n in some for name in exchanges.tensors[n])
        twin = study.scorer.outline(replace(strategy, early=names))
        assert exchanges.latency_s(some) == pytest.approx(twin.latency_s, rel=2e-3)


def test_auto_sends_borders_first_and_says_so() -> None:
    study = study_of("resnet50", 4)
    made, simulation, strategy = choose_plan(study.memo.problem, study=study)
    assert strategy.early and as_sentence(WHY) in made.why
    assert simulation.latency_s < 0.97 * study.scorer.forecast(replace(strategy, early=frozenset())).latency_s


def test_others_do_where_they_are_asked_to() -> None:
    asked = study_of("resnet50", 4, borders_first=True)
    without, found = plain(asked), best_strategy(asked.memo.problem, "optcnn", asked)
    assert found.early and WHY in found.why
    assert asked.scorer.score(found) < asked.scorer.score(without)


def test_many_requests_need_no_borders_first() -> None:
    """While one request waits another computes."""
    study = study_of("squeezenet", 2, "throughput")
    assert send_borders_first(study, plain(study)) is None
    assert not best_strategy(study.memo.problem, "auto", study).early


def test_where_memory_is_short_nothing_is_cut() -> None:
    study = study_of("resnet50", 4)
    strategy = plain(study)
    faster = send_borders_first(study, strategy)
    assert faster is not None
    peaks, more = (
        study.scorer.forecast(strategy).peak_memory_bytes,
        study.scorer.forecast(faster).peak_memory_bytes,
    )
    device = max(peaks, key=lambda name: more[name] - peaks[name])
    assert more[device] > peaks[device]
    limits = {device: float(peaks[device] + more[device]) / 2}
    short = Study(replace(study.memo.problem, memory_limit_bytes=limits))
    assert (
        send_borders_first(short, short.candidates.make("x", study.candidates.choices_of(strategy), ""))
        is None
    )


def test_a_plan_is_chosen_again_with_its_borders_first() -> None:
    study = study_of("resnet50", 2)
    strategy = send_borders_first(study, plain(study))
    assert strategy is not None
    found = checkpoint.read(checkpoint.write(study.candidates, strategy))
    assert found.early == strategy.early
    assert study.scorer.score(found.remake(study.candidates, found.choices)) == study.scorer.score(strategy)
