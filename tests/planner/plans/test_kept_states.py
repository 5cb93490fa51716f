"""States in plans: what is written of them, the memory that they take, and where a sequence's steps go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from edgepart.planner.layout.strategy import Layout, Problem, Strategy
from edgepart.planner.lowering.lower import Lowering, make_plan
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.model.stateful import load_with_states
from edgepart.planner.plans.check import broken_plan_rules
from edgepart.planner.plans.plan import KeptPiece, Piece, Plan
from edgepart.planner.plans.plan_bytes import plan_from_bytes, plan_to_bytes
from edgepart.planner.region import Region
from edgepart.planner.search.study import Study
from tests.planner.lowering.test_lower import chain_model
from tests.planner.model.test_context_shapes import FLOAT, buffered, concatenating, decoder
from tests.planner.random_plans import CLUSTER, NAMES, problem_of, rows

SHAPE = (2, 300)


def recurring() -> bytes:
    """Two states of fixed shape, one of which the other's operators read too."""
    nodes = [
        helper.make_node("Add", ["h", "x"], ["hn"]),
        helper.make_node("Mul", ["c", "h"], ["product"]),
        helper.make_node("Add", ["product", "x"], ["cn"]),
        helper.make_node("Sub", ["hn", "cn"], ["y"]),
    ]
    return decoder(
        nodes,
        dict.fromkeys(("x", "h", "c"), (FLOAT, SHAPE)),
        dict.fromkeys(("y", "hn", "cn"), (FLOAT, SHAPE)),
        {},
    )


LOADED: Mapping[str, Callable[[], Graph]] = {
    "buffers": lambda: load_with_states(buffered(), {}, context=16)[0],
    "growing": lambda: load_with_states(concatenating(), {}, context=16)[0],
    "fixed": lambda: load_with_states(recurring(), {})[0],
}
GRAPHS = {name: load() for name, load in LOADED.items()}


def problem(graph: Graph, sequences: int) -> Problem:
    return Problem(graph, CLUSTER, NAMES[0], sequences=sequences)


def placed(graph: Graph, places: Mapping[str, str]) -> Strategy:
    """Each operator on the device that `places` has for its name; otherwise on the first."""
    layouts: dict[str, Layout] = {}
    layers: dict[str, int] = {}
    for number, operator in enumerate(graph.operators):
        device = places.get(operator.name, NAMES[0])
        layouts |= {one: Layout({device: graph.region_of(one)}) for one in operator.outputs if one}
        layers[operator.name] = number
    return Strategy("placed", layouts, layers=layers)


@st.composite
def strategies(draw: st.DrawFn) -> tuple[Graph, Strategy]:
    graph = GRAPHS[draw(st.sampled_from(sorted(GRAPHS)))]
    return graph, placed(graph, {one.name: draw(st.sampled_from(NAMES)) for one in graph.operators})


@given(strategies(), st.integers(2, 40))
def test_each_further_sequence_takes_what_is_kept_of_it(drawn: tuple[Graph, Strategy], count: int) -> None:
    graph, strategy = drawn
    one, more = (make_plan(problem(graph, n), strategy, model_digest="m") for n in (1, count))
    for device, program in more.programs.items():
        assert (one.programs[device].sequences, program.sequences) == (1, count)
        added = program.request_bytes - one.programs[device].request_bytes
        assert added == (count - 1) * program.sequence_bytes
        assert program.peak_memory_bytes >= program.kept_bytes + count * program.sequence_bytes
    kept = [piece for program in more.programs.values() for piece in program.kept]
    assert {piece.read.tensor for piece in kept} == {state.input for state in graph.states}
    for piece in kept:
        assert piece.sequence_bytes == piece.nbytes * (1 if piece.in_place else 2)


@given(strategies(), st.integers(1, 9))
def test_an_outline_promises_no_less_memory_than_the_sequences_take(
    drawn: tuple[Graph, Strategy], sequences: int
) -> None:
    graph, strategy = drawn
    study = Study(problem(graph, sequences))
    lowering = Lowering(study.memo.problem, study.memo.cost, study.memo.coarse.accesses)
    _, enough = lowering.outline(strategy)
    for device, program in lowering.plan(strategy, sketch=True).programs.items():
        assert program.peak_memory_bytes <= enough[device]


@given(strategies(), st.integers(1, 9))
def test_there_and_back_with_states(drawn: tuple[Graph, Strategy], sequences: int) -> None:
    graph, strategy = drawn
    plan = make_plan(problem(graph, sequences), strategy, model_digest="m")
    again = plan_from_bytes(plan_to_bytes(plan))
    assert again == plan and plan_to_bytes(again) == plan_to_bytes(plan)
    assert [(one.output, one.input.name, one.grows, one.in_place) for one in again.states] == [
        (one.output, one.input, one.grows, one.in_place) for one in graph.states
    ]
    held = {info.name: info.shape for info in (*again.inputs, *(one.input for one in again.states))}
    assert again.bound_shapes == held


def test_agents_of_an_earlier_release_can_read_plans_without_states() -> None:
    graph = load_graph(chain_model(channels=16))
    plan = make_plan(replace(problem_of(graph), sequences=4), rows(graph, NAMES), model_digest="m")
    document: dict[str, Any] = msgpack.unpackb(plan_to_bytes(plan))
    assert "states" not in document
    for program in document["programs"]:
        assert not {"kept", "sequences"} & program.keys()
    assert plan_from_bytes(plan_to_bytes(plan)).states == ()


def test_programs_keep_states_only_of_plans_that_have_some() -> None:
    plan = make_plan(problem(GRAPHS["fixed"], 4), placed(GRAPHS["fixed"], {}), model_digest="m")
    assert not list(broken_plan_rules(plan))
    assert "ada keeps states, and the plan has none" in list(broken_plan_rules(replace(plan, states=())))


@pytest.mark.parametrize(
    ("written", "fault"),
    [(Region.box((0, 2), (0, 7)), "another shape"), (Region.box((1, 3), (0, 300)), "next step lacks")],
)
def test_a_piece_that_cannot_become_the_next_step_s_is_a_fault(written: Region, fault: str) -> None:
    plan = make_plan(problem(GRAPHS["fixed"], 4), placed(GRAPHS["fixed"], {}), model_digest="m")
    program = plan.programs["ada"]
    first = program.kept[0]
    wrong = KeptPiece(first.read, Piece(first.written.tensor, written), first.dtype, first.nbytes)
    broken = _with_kept(plan, (wrong, *program.kept[1:]))
    assert any(fault in text for text in broken_plan_rules(broken)), list(broken_plan_rules(broken))


def _with_kept(plan: Plan, kept: tuple[KeptPiece, ...]) -> Plan:
    return replace(plan, programs={**plan.programs, "ada": replace(plan.programs["ada"], kept=kept)})
