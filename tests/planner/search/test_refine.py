"""Refining a plan: parts follow what devices were measured to do, and what was chosen comes back from its bytes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from benchmarks.models import light
from benchmarks.models.vision import resnet50
from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.layout.choices import Choice, Divide, Pull, Reduce, Whole
from edgepart.planner.layout.strategy import Problem, Sync
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import best_strategy, choose_plan
from edgepart.planner.search import checkpoint
from edgepart.planner.search.moves import devices_of
from edgepart.planner.search.refine import refine
from edgepart.planner.search.study import Study
from edgepart.planner.vocabulary import ON_ALL_DEVICES

NAMES = ("a", "b", "c")
WAYS = ("bbgrap", "modnn", "deepthings", "optcnn", "tofu", "single")

parts = st.lists(st.sampled_from(NAMES), min_size=1, unique=True).flatmap(
    lambda names: st.tuples(*(st.tuples(st.just(name), st.floats(0.1, 9.0)) for name in names))
)
divided = st.builds(
    Divide,
    st.sampled_from([("height",), ("height", "width")]),
    parts,
    st.sampled_from([(), (1, 2)]),
    st.booleans(),
    st.booleans(),
)
whole = st.builds(Whole, st.sampled_from([("a",), ("b", "c")]))
choices = (
    divided
    | whole
    | st.just(Pull())
    | st.builds(Reduce, st.just("channel"), parts, divided | whole, st.sampled_from([1, 16]))
)


@cache
def graph() -> Graph:
    return load_graph(light("squeezenet"))


def study(**drifts: float) -> Study:
    """Squeezenet on three equal boxes, of which some have drifted."""
    box = Device("", "box", 1e10, 1e10, 4e9)
    devices = tuple(replace(box, name=name).with_drift(drifts.get(name, 1.0)) for name in NAMES)
    return Study(Problem(graph(), Cluster(devices, default_link=Link(1e9, 1e-4)), "a", search_budget_s=0.5))


@given(choices)
def test_a_choice_comes_back_the_same(choice: Choice) -> None:
    assert checkpoint._unpack(checkpoint._pack(choice)) == choice


@pytest.mark.parametrize("way", WAYS)
def test_what_a_plan_was_made_from_makes_it_again(way: str) -> None:
    one = study()
    found = best_strategy(one.memo.problem, way, one)
    before = checkpoint.read(checkpoint.write(one.candidates, found))
    assert (before.name, before.sync, before.hub) == (way, found.sync, found.hub)
    other = study()
    assert before.fits(other.memo)
    again = before.remake(other.candidates, before.choices)
    assert other.scorer.forecast(again).latency_s == one.scorer.forecast(found).latency_s


def test_what_was_made_otherwise_has_no_choices() -> None:
    one = study()
    found = best_strategy(one.memo.problem, "bbgrap", one)
    assert checkpoint.write(study().candidates, found) == b""


@pytest.mark.parametrize("way", ["bbgrap", "deepthings"])
def test_parts_move_from_a_device_that_slowed_down_and_nothing_else_changes(way: str) -> None:
    one = study()
    before = checkpoint.read(checkpoint.write(one.candidates, best_strategy(one.memo.problem, way, one)))
    slow = study(b=4.0)
    found = list(refine(slow, before))
    present, best = found[0], min(found, key=slow.scorer.score)
    assert slow.scorer.forecast(best).latency_s < 0.9 * slow.scorer.forecast(present).latency_s
    busy, calm = slow.scorer.forecast(best).compute_s, slow.scorer.forecast(present).compute_s
    assert busy["b"] < calm["b"]
    for number, choice in slow.candidates.choices_of(best).items():
        old = before.choices[number]
        assert type(choice) is type(old)
        if isinstance(choice, Divide) and isinstance(old, Divide):
            assert (choice.axes, choice.grid) == (old.axes, old.grid)
            assert dict(choice.shares).keys() == dict(old.shares).keys()
    assert found[0].sync is before.sync
    again = [slow.scorer.score(one) for one in refine(slow, before)]
    assert again == [slow.scorer.score(one) for one in found]  # the same question, the same answer


def test_one_whole_device_has_no_parts_to_move() -> None:
    one = study()
    before = checkpoint.read(checkpoint.write(one.candidates, best_strategy(one.memo.problem, "single", one)))
    assert len(list(refine(study(a=4.0), before))) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_division_over_all_devices_does_not_go_on_without_one_that_joined(way: str) -> None:
    """Even where the joiner only holds the others up; what chooses its devices may go on."""
    fewer = Study(replace(study().memo.problem, cluster=study().memo.cluster.only(("a", "b"))))
    before = checkpoint.read(
        checkpoint.write(fewer.candidates, best_strategy(fewer.memo.problem, way, fewer))
    )
    assert next(refine(fewer, before))
    slow = study(c=50.0)
    assert bool(list(refine(slow, before))) == (way not in ON_ALL_DEVICES)
    _, _, found = choose_plan(slow.memo.problem, way, study=slow, also=refine(slow, before))
    if way in ON_ALL_DEVICES:
        assert set(devices_of(slow.candidates.choices_of(found))) == set(NAMES)


def test_every_strategy_on_all_devices_is_one() -> None:
    """What docs/strategies.md says of them, on a model with a batch, rows, channels and a dense layer."""
    made = load_graph(resnet50(batch=6, side=64, base=16, blocks=(1, 1, 1, 1)).SerializeToString())
    for way in sorted(ON_ALL_DEVICES):
        one = Study(replace(study().memo.problem, graph=made))
        found = best_strategy(one.memo.problem, way, one)
        assert set(devices_of(one.candidates.choices_of(found))) == set(NAMES), way


def test_nothing_is_refined_where_its_devices_are_not() -> None:
    one = study()
    before = checkpoint.read(checkpoint.write(one.candidates, best_strategy(one.memo.problem, "bbgrap", one)))
    assert set(devices_of(before.choices)) == set(NAMES)
    fewer = Study(replace(one.memo.problem, cluster=one.memo.cluster.only(("a", "b"))))
    assert list(refine(fewer, before)) == []
    hub = replace(before, sync=Sync.HUB, hub="elsewhere")
    assert not hub.fits(one.memo)
