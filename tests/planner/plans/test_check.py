"""The plan's checker finds each kind of fault, and none in a good plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from edgepart.planner.errors import InternalError
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.plans.check import broken_plan_rules, check_plan
from edgepart.planner.plans.plan import (
    GATEWAY,
    Plan,
    Program,
    Receive,
    Run,
    Send,
    Step,
    Transfer,
)
from tests.planner.lowering.test_lower import chain_model
from tests.planner.random_plans import NAMES, problem_of, rows


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load_graph(chain_model(channels=16))


@pytest.fixture(scope="module")
def plan(graph: Graph) -> Plan:
    return make_plan(problem_of(graph), rows(graph, NAMES[:2]), model_digest="m")


def with_program(plan: Plan, device: str, change: Callable[[Program], Program]) -> Plan:
    return replace(plan, programs=dict(plan.programs) | {device: change(plan.programs[device])})


def with_steps(plan: Plan, device: str, change: Callable[[list[Step]], list[Step]]) -> Plan:
    return with_program(plan, device, lambda p: replace(p, steps=tuple(change(list(p.steps)))))


def with_transfer(plan: Plan, at: int, **changes: object) -> Plan:
    transfers = list(plan.transfers)
    transfers[at] = replace(transfers[at], **changes)  # type: ignore[arg-type]
    return replace(plan, transfers=tuple(transfers))


def only(plan: Plan, source: str, target: str) -> Transfer:
    (found,) = (t for t in plan.transfers if (t.source, t.target) == (source, target))
    return found


def test_a_good_plan_breaks_no_rule(plan: Plan, graph: Graph) -> None:
    assert list(broken_plan_rules(plan, graph)) == []
    assert check_plan(plan, graph) is plan


def test_every_kind_of_fault_is_found(plan: Plan, graph: Graph) -> None:
    halo, answer = only(plan, "ada", "bob").number, only(plan, "ada", GATEWAY).number
    pieces = plan.transfers[halo].pieces
    short = (replace(pieces[0], region=pieces[0].region.replace(0, ())),)
    faults = {
        "names nothing": with_steps(plan, "ada", lambda steps: [*steps, Run(7)]),
        "there 2 times instead of 1": with_steps(plan, "ada", lambda steps: [*steps, Send(halo)]),
        "there 0 times instead of 1": with_steps(
            plan, "bob", lambda steps: [s for s in steps if s != Receive(halo)]
        ),
        "to itself": with_transfer(plan, halo, target="ada"),
        "has no program": with_transfer(plan, halo, target="zoe"),
        "is empty": with_transfer(plan, halo, pieces=()),
        "is at place": with_transfer(plan, halo, number=99),
        "lacks": with_transfer(plan, halo, pieces=short),
        "not as": with_transfer(plan, answer, pieces=pieces),
        "says that it is": with_program(plan, "ada", lambda p: replace(p, device="bob")),
    }
    for words, broken in faults.items():
        found = list(broken_plan_rules(broken, graph))
        assert any(words in fault for fault in found), (words, found)
        with pytest.raises(InternalError, match="the plan breaks its rules"):
            check_plan(broken, graph)


def test_two_devices_that_wait_for_each_other_are_found(plan: Plan) -> None:
    def receive_first(steps: list[Step]) -> list[Step]:
        order: dict[type[Step], int] = {Receive: 0, Run: 1, Send: 2}
        return sorted(steps, key=lambda step: order[type(step)])

    broken = with_steps(with_steps(plan, "ada", receive_first), "bob", receive_first)
    waiting = [fault for fault in broken_plan_rules(broken) if "for ever" in fault]
    assert [fault.split()[0] for fault in waiting] == ["ada", "bob"]


def test_an_answer_that_comes_twice_is_found(plan: Plan, graph: Graph) -> None:
    answer = only(plan, "ada", GATEWAY)
    twice = with_transfer(plan, answer.number, pieces=answer.pieces * 2)
    assert any("more than once" in fault for fault in broken_plan_rules(twice, graph))


def test_a_weight_of_the_wrong_shape_and_names_used_twice_are_found(plan: Plan) -> None:
    def bend(program: Program) -> Program:
        segment = next(s for s in program.segments if s.weights)
        weight = replace(segment.weights[0], shape=(1,))
        bent = replace(segment, weights=(weight, weight))
        return replace(program, segments=tuple(bent if s is segment else s for s in program.segments))

    faults = list(broken_plan_rules(with_program(plan, "ada", bend)))
    assert any("has shape (1,)" in fault for fault in faults)
    assert any("two ports or weights called" in fault for fault in faults)
