"""Detours are chosen by simulation: where a link is slow, never slower, and only where it is asked for."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import msgpack
import pytest
from benchmarks.search_time import cluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgepart.planner.devices.cluster import Cluster, Link
from edgepart.planner.layout.strategy import Layout, Problem, Strategy, deal_to_replicas
from edgepart.planner.planner import best_strategy, choose_plan
from edgepart.planner.region import span
from edgepart.planner.report.sentences import as_sentence
from edgepart.planner.search import checkpoint, choose_detours
from edgepart.planner.search.choose_detours import WHY, add_detours, as_wide_as_around
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.registry import MODULES
from edgepart.planner.vocabulary import GUIDED
from tests.nightly import nightly
from tests.planner.cost.test_chain_cost import drawn, studied
from tests.planner.lowering.test_detours import fan
from tests.planner.search.test_choose_borders import graph


def study_of(name: str, among: Cluster, objective: str = "latency", relays: bool = False) -> Study:
    problem = Problem(graph(name), among, "d0", objective, search_budget_s=1.0, relays=relays)
    return Study(problem)


def linked(count: int, link: Link, slow: Link | None = None) -> Cluster:
    """Equal devices; `slow` is the link between the first two."""
    return replace(cluster(count), default_link=link, links={("d0", "d1"): slow} if slow else {})


@pytest.mark.parametrize(("count", "goes_around"), [(2, False), (3, True), (8, True)])
def test_it_needs_somebody_to_pass_on(count: int, goes_around: bool) -> None:
    """What d1 needs of the first device, and its part of the answer, cross the slow link else."""
    problem, strategy = fan(count, 64)
    found = add_detours(Study(problem), strategy)
    assert (found is not None and found.detours == {"a", "y"}) is goes_around


@lru_cache
def slowed(model: str) -> Study:
    """With a slow link between the first two of four unequal devices."""
    problem = studied(model).memo.problem
    links = {("d0", "d1"): Link(1e6, 1e-4)}
    return Study(replace(problem, cluster=replace(problem.cluster, links=links)))


@pytest.mark.parametrize("model", ["squeezenet", *nightly("inception_v2")])
@settings(max_examples=5, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_it_is_never_slower(model: str, data: st.DataObject) -> None:
    study = slowed(model)
    strategy = drawn(data, study)
    found = add_detours(study, strategy)
    if found is not None:
        assert found.detours and found.layouts is strategy.layouts
        assert study.scorer.score(found) < study.scorer.score(strategy)
        assert add_detours(study, strategy) == found
        forecast = study.scorer.forecast(found)
        assert study.scorer.outline(found).latency_s == pytest.approx(forecast.latency_s, rel=2e-3)
        assert study.scorer.outline(found).sent_bytes == forecast.sent_bytes


def test_nothing_goes_around_where_no_link_is_slow() -> None:
    study = study_of("resnet50", linked(4, Link(1.25e7, 2e-4)), relays=True)
    strategy = best_strategy(study.memo.problem, "model", study)
    assert not strategy.detours and add_detours(study, strategy) is None


def test_replicas_and_orders_have_no_detours() -> None:
    problem, strategy = fan(3, 64)
    study = Study(problem)
    assert add_detours(study, strategy) is not None
    assert add_detours(study, replace(strategy, order={0: 0.0})) is None
    assert add_detours(study, deal_to_replicas("replicas", [strategy], "")) is None


def test_one_slow_link_is_gone_around() -> None:
    link = Link(1.25e8, 2e-4)
    study = study_of("resnet50", linked(4, link, Link(2.5e6, 2e-4)))
    strategy = best_strategy(study.memo.problem, "tofu", study)
    found = add_detours(study, strategy)
    assert found is not None
    assert study.scorer.score(found) < 0.85 * study.scorer.score(strategy)


@pytest.mark.nightly
def test_auto_goes_around_and_says_so() -> None:
    """With one link a fiftieth of the others, it is about as quick as without."""
    link = Link(1.25e7, 2e-4)
    study = study_of("resnet50", linked(4, link, Link(2.5e5, 2e-4)))
    made, simulation, strategy = choose_plan(study.memo.problem, study=study)
    assert strategy.detours and as_sentence(WHY) in made.why
    even = study_of("resnet50", linked(4, link))
    assert simulation.latency_s < 1.1 * even.scorer.score(best_strategy(even.memo.problem, "auto", even))


@pytest.mark.nightly
def test_others_do_where_they_are_asked_to() -> None:
    among = linked(4, Link(1.25e8, 2e-4), Link(2.5e6, 2e-4))
    asked, plain = study_of("resnet50", among, relays=True), study_of("resnet50", among)
    without, found = (
        best_strategy(plain.memo.problem, "tofu", plain),
        best_strategy(asked.memo.problem, "tofu", asked),
    )
    assert found.detours and WHY in found.why and not without.detours
    assert asked.scorer.score(found) < plain.scorer.score(without)


@pytest.mark.parametrize(
    "name", [name for name in MODULES if name not in ("auto", "single", "replicas", "pipeline", *GUIDED)]
)
def test_as_published_nothing_goes_around(name: str) -> None:
    study = study_of("squeezenet", linked(3, Link(1.25e7, 2e-4), Link(2.5e5, 2e-4)))
    assert not best_strategy(study.memo.problem, name, study).detours


def test_where_memory_is_short_nothing_goes_around() -> None:
    """A relay holds what it does not need itself."""
    problem, strategy = fan(3, 128)
    links = {("d0", "d2"): Link(1e4, 1e-4)}
    problem = replace(problem, cluster=replace(problem.cluster, links=links))
    y = problem.graph.region_of("y")
    rows = {"d1": (0, 1), "d0": (1, 64), "d2": (64, 128)}
    parts = {name: y.replace(2, span(bounds)) for name, bounds in rows.items()}
    strategy = replace(strategy, layouts={**strategy.layouts, "y": Layout(parts)})
    study = Study(problem)
    faster = add_detours(study, strategy)
    assert faster is not None and faster.detours
    before, after = (
        study.scorer.forecast(strategy).peak_memory_bytes,
        study.scorer.forecast(faster).peak_memory_bytes,
    )
    assert after["d1"] > before["d1"] + problem.graph.tensors["a"].nbytes / 3
    limits = {"d1": (before["d1"] + after["d1"]) / 2}
    assert add_detours(Study(replace(problem, memory_limit_bytes=limits)), strategy) is None


def test_many_devices_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, strategy = fan(8, 64)
    assert add_detours(Study(problem), strategy) is not None
    monkeypatch.setattr(choose_detours, "MOST_DEVICES", 7)
    assert add_detours(Study(problem), strategy) is None


def test_a_plan_is_chosen_again_with_its_detours() -> None:
    study = study_of("resnet50", linked(4, Link(1.25e8, 2e-4), Link(2.5e6, 2e-4)))
    strategy = add_detours(study, best_strategy(study.memo.problem, "tofu", study))
    assert strategy is not None
    found = checkpoint.read(checkpoint.write(study.candidates, strategy))
    assert found.detours == strategy.detours
    assert study.scorer.score(found.remake(study.candidates, found.choices)) == study.scorer.score(strategy)


@pytest.mark.parametrize("older", [{}, {"relays": {"x": "chain"}}], ids=["none", "of several shapes"])
def test_an_older_agents_choices_have_no_detours(older: dict[str, dict[str, str]]) -> None:
    study = study_of("squeezenet", cluster(2))
    best = best_strategy(study.memo.problem, "optcnn", study)
    document = msgpack.unpackb(checkpoint.write(study.candidates, best))
    del document["detours"]
    assert checkpoint.read(msgpack.packb({**document, **older})).detours == frozenset()


def test_slow_links_are_taken_to_be_about_as_wide_as_the_way_around() -> None:
    among = linked(3, Link(1.2e7, 1e-4), Link(1e5, 3e-4))
    wide = as_wide_as_around(among)
    assert wide is not None
    assert wide.link("d0", "d1").bytes_per_s == pytest.approx(8e6)
    assert wide.link("d0", "d1").latency_s == pytest.approx(2e-4)
    assert wide.link("d0", "d2") == among.link("d0", "d2")
    assert as_wide_as_around(wide) is None
    assert as_wide_as_around(linked(3, Link(1.2e7, 1e-4))) is None
    assert as_wide_as_around(linked(2, Link(1.2e7, 1e-4), Link(1e5, 3e-4))) is None


def test_it_is_remembered_apart() -> None:
    """The same layouts with and without detours are two things to simulate."""
    problem, strategy = fan(4, 64)
    study = Study(problem)
    found = add_detours(study, strategy)
    assert isinstance(found, Strategy)
    assert (
        study.scorer.score(found)
        < study.scorer.score(strategy)
        == study.scorer.score(replace(found, detours=frozenset()))
    )
