"""Heirs: a plan for a loss leaves states where they are, if that is about as fast as the best plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest
from benchmarks.models import light
from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.layout.choices import Choice, Divide, Pull, Reduce, Whole
from edgepart.planner.layout.strategy import Problem, Strategy
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import choose_plan
from edgepart.planner.plans.plan import KeptPiece, Piece, Plan, Program
from edgepart.planner.region import Region
from edgepart.planner.search import checkpoint
from edgepart.planner.search.checkpoint import SavedStrategy
from edgepart.planner.search.heirs import alone_with_states, take_if_about_as_fast, with_heir
from edgepart.planner.search.moves import devices_of, hand_over
from edgepart.planner.search.study import Study
from tests.planner.search.test_refine import choices


@cache
def graph() -> Graph:
    return load_graph(light("squeezenet"))


def study(*names: str, memory: float = 4e9, **speeds: float) -> Study:
    """Squeezenet on boxes that are equal but for their speeds."""
    box = Device("", "box", 1e10, 1e10, memory)
    devices = tuple(replace(box, name=name).with_drift(speeds.get(name, 1.0)) for name in names)
    return Study(Problem(graph(), Cluster(devices, default_link=Link(1e9, 1e-4)), names[0]))


def serving(mirrors: Mapping[str, str], sizes: Mapping[str, int] | None = None) -> Plan:
    """A plan whose devices have these mirrors, and keep so many bytes of states."""
    programs = {}
    for name in mirrors:
        region = Region.full((1, 1, (sizes or {}).get(name, 1), 1))
        piece = KeptPiece(Piece(name, region), Piece(f"new {name}", region), "uint8", region.size, True)
        programs[name] = Program(name, (), (), 0, 0, kept=(piece,))
    return Plan("0" * 64, "by hand", programs, (), (), (), mirrors=dict(mirrors))


def stages(*names: str) -> tuple[Study, SavedStrategy]:
    """The choices of a pipeline over these boxes."""
    made = study(*names)
    _, _, found = choose_plan(made.memo.problem, "pipeline", study=made)
    return made, checkpoint.read(checkpoint.write(made.candidates, found))


@given(st.dictionaries(st.integers(0, 9), choices, max_size=6))
def test_an_heir_has_what_the_lost_device_had(before: dict[int, Choice]) -> None:
    after = hand_over(before, "a", "d")
    assert after.keys() == before.keys()
    assert {*devices_of(after)} <= {"d" if name == "a" else name for name in devices_of(before)}


def test_parts_are_joined_where_the_heir_has_one_already() -> None:
    rows = Divide(("height",), (("a", 1.0), ("b", 2.0), ("c", 3.0)))
    joined = Divide(("height",), (("b", 3.0), ("c", 3.0)))
    added = Reduce("inner", (("a", 1.0), ("b", 1.0)), Whole(("a", "b")))
    found = hand_over({0: rows, 1: added, 2: Whole(("a", "b")), 3: Pull()}, "a", "b")
    assert found == {0: joined, 1: Whole(("b",)), 2: Whole(("b",)), 3: Pull()}


def test_an_idle_mirror_takes_the_place_and_all_others_keep_theirs() -> None:
    _, chosen = stages("a", "b")
    left = study("a", "c")
    found = with_heir(left, serving({"a": "c", "b": "c"}), chosen)
    assert found is not None and "c takes the place of b" in found.why
    places = {"a": "a", "b": "c"}
    assert left.candidates.choices_of(found) == {
        number: Whole(tuple(places[name] for name in choice.devices)) if isinstance(choice, Whole) else choice
        for number, choice in chosen.choices.items()
    }


def test_without_a_mirror_that_is_there_nobody_is_an_heir() -> None:
    _, chosen = stages("a", "b")
    assert with_heir(study("a", "c"), serving({"a": "b", "b": "d"}), chosen) is None
    assert with_heir(study("c", "d"), serving({"a": "c", "b": "d"}), chosen) is None
    unmirrored = replace(serving({"a": "b", "b": "a"}), mirrors={})
    assert with_heir(study("a", "c"), unmirrored, chosen) is None


def test_a_refuge_is_where_most_of_the_states_are() -> None:
    plan = serving({"a": "b", "b": "c", "c": "b"}, {"a": 100, "b": 1, "c": 10})
    left = study("b", "c")
    found = alone_with_states(left, plan)
    assert found is not None and devices_of(left.candidates.choices_of(found)) == ("b",)
    assert "b has all of the states" in found.why
    assert alone_with_states(study("d"), plan) is None


def chosen_of(left: Study, rather: Strategy | None) -> tuple[str, ...]:
    """The devices of what is taken, if one on a alone is the best."""
    best = left.candidates.make("single", left.candidates.keep_whole("a"), "")
    return devices_of(left.candidates.choices_of(take_if_about_as_fast(left, rather, best)))


@pytest.mark.parametrize(("drift", "taken"), [(1.0, "b"), (1.03, "b"), (1.2, "a")])
def test_what_has_the_states_is_taken_if_it_is_about_as_fast(drift: float, taken: str) -> None:
    left = study("a", "b", b=drift)
    rather = left.candidates.make("single", left.candidates.keep_whole("b"), "")
    assert chosen_of(left, rather) == (taken,)
    assert chosen_of(left, None) == ("a",)
