"""Mirrors: each device that keeps states has another one that has room for a copy of them, or there are none at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.plans.check import broken_plan_rules
from edgepart.planner.plans.plan import (
    KeptPiece,
    KeptState,
    Piece,
    Plan,
    Port,
    Program,
    Run,
    Segment,
    ValueInfo,
)
from edgepart.planner.plans.plan_bytes import plan_from_bytes, plan_to_bytes
from edgepart.planner.region import Region
from edgepart.planner.search.mirrors import add_mirrors, bytes_by_mirror

ROWS = 8


def program(
    device: str, heads: int, *, in_place: bool = True, sequences: int = 2, peak: int = 100
) -> Program:
    """A program that writes its heads of the state, if it has any."""
    if not heads:
        return Program(device, (), (), 0, peak, 50, sequences=sequences)
    region = Region.full((1, heads, ROWS, 1))
    kept = KeptPiece(Piece("past", region), Piece("present", region), "float", region.nbytes(4), in_place)
    ports = (Port("past", kept.read),), (Port("present", kept.written),)
    segment = Segment(device, b"", *ports, (), ("step",), 0.0, 0.0, 0)
    return Program(device, (Run(0),), (segment,), 0, peak, 50, kept=(kept,), sequences=sequences)


def plan_of(*programs: Program) -> Plan:
    state = KeptState(ValueInfo("past", "float", (1, 9, ROWS, 1)), "present", None, True)
    return Plan("0" * 64, "by hand", {one.device: one for one in programs}, (), (), (), states=(state,))


COPY = 2 * ROWS * 4
"""The bytes of a copy of one head of two sequences."""


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
    st.lists(st.integers(0, 700), min_size=5, max_size=5),
)
def test_every_device_with_states_has_a_mirror_that_has_the_memory(
    heads: list[int], memory: list[int]
) -> None:
    plan = plan_of(*(program("abcd"[n], count) for n, count in enumerate(heads)))
    have = {name: 100.0 + nbytes for name, nbytes in zip("abcde", memory, strict=True)}
    found, fault = add_mirrors(plan, have)
    if fault:
        assert found == plan
        return
    assert found.mirrors.keys() == {name for name, one in plan.programs.items() if one.kept}
    assert not list(broken_plan_rules(found))
    assert plan_from_bytes(plan_to_bytes(found)) == found
    more = bytes_by_mirror(found)
    for name, nbytes in have.items():
        before = plan.programs[name].peak_memory_bytes if name in plan.programs else 0
        assert before + more.get(name, 0) <= nbytes
        if name in plan.programs:
            assert found.programs[name].peak_memory_bytes == before + more.get(name, 0)
            assert found.programs[name].kept_bytes == 50 + more.get(name, 0)
    assert sum(more.values()) == COPY * sum(heads)


def test_devices_of_the_plan_mirror_each_other_although_others_have_more_memory() -> None:
    plan = plan_of(program("a", 1), program("b", 2))
    found, fault = add_mirrors(plan, {"a": 1000, "b": 1000, "c": 10**9})
    assert not fault and found.mirrors == {"a": "b", "b": "a"}


def test_a_device_that_computes_alone_is_mirrored_by_one_that_does_not() -> None:
    found, fault = add_mirrors(plan_of(program("a", 1)), {"a": 1000, "b": 500, "c": 600})
    assert not fault and found.mirrors == {"a": "c"} and bytes_by_mirror(found) == {"c": COPY}


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (plan_of(program("a", 0)), "has no states"),
        (plan_of(program("a", 1, in_place=False), program("b", 1)), "written in place"),
        (plan_of(program("a", 1, sequences=99), program("b", 1)), "no device has memory left"),
    ],
)
def test_without_mirrors_the_plan_stays_as_it_is_and_says_why(plan: Plan, why: str) -> None:
    found, fault = add_mirrors(plan, {"a": 1000, "b": 1000})
    assert found == plan and why in fault


@pytest.mark.parametrize(
    ("mirrors", "fault"),
    [
        ({"a": "a"}, "mirrors itself"),
        ({"z": "a"}, "keeps no states"),
        ({"c": "a"}, "keeps no states"),
        ({"b": "a"}, "not written in place"),
    ],
)
def test_mirrors_that_cannot_be_are_found(mirrors: dict[str, str], fault: str) -> None:
    plan = plan_of(program("a", 1), program("b", 1, in_place=False), program("c", 0))
    (found,) = broken_plan_rules(replace(plan, mirrors=mirrors))
    assert fault in found
