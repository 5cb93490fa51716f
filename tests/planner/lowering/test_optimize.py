"""BBGraP's optimiser: what it makes of the initial partition is what lowering the need alone gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgepart.planner.errors import InternalError
from edgepart.planner.layout.strategy import Layout, Strategy, Sync
from edgepart.planner.lowering.by_level import schedule_by_level
from edgepart.planner.lowering.draft import Draft, Move, count_traffic
from edgepart.planner.lowering.lower import lower, make_plan
from edgepart.planner.lowering.optimize import (
    drop_moves,
    hoist_sends,
    join_stages,
    merge_messages,
    optimise_draft,
    optimise_schedule,
    shrink_moves,
)
from edgepart.planner.lowering.schedule import NoCost, StagePlace, predict_seconds
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.plans.plan import GATEWAY
from edgepart.planner.region import Region, span
from tests.planner.lowering.test_lower import Slow, chain_model
from tests.planner.random_plans import NAMES, models, problem_of, rows, strategies_for

QUICK = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@pytest.fixture(scope="module")
def chain() -> Graph:
    return load_graph(chain_model())


def inner(draft: Draft) -> set[tuple[str, str, str, str]]:
    return {(m.tensor, m.source, m.target, str(m.region)) for m in draft.moves if m.source and m.target}


@QUICK
@given(st.data())
def test_the_optimised_broadcast_is_the_lowering_of_what_is_needed(data: st.DataObject) -> None:
    graph = load_graph(data.draw(models()).SerializeToString())
    strategy = data.draw(strategies_for(graph, [Sync.BROADCAST]))
    initial = lower(problem_of(graph), strategy)
    optimised = optimise_draft(initial)
    needed = lower(problem_of(graph), replace(strategy, sync=Sync.NEEDED))
    assert set(optimised.moves) == set(needed.moves)
    assert list(optimised.shares) == list(needed.shares)
    assert (
        count_traffic(optimised).nbytes
        <= count_traffic(drop_moves(initial)).nbytes
        <= count_traffic(initial).nbytes
    )


def test_the_initial_partition_copies_everything_everywhere(chain: Graph) -> None:
    """Figure 5(a), for the second convolution: each device is sent all that the two others computed."""
    initial = lower(problem_of(chain), rows(chain, NAMES, sync=Sync.BROADCAST))
    parts = {
        device: chain.region_of("b").replace(2, span((4 * n, 4 * n + 4))) for n, device in enumerate(NAMES)
    }
    assert {m for m in initial.moves if m.tensor == "b"} == {
        Move("b", parts[s], s, t) for s in NAMES for t in NAMES if s != t
    }


def test_drop_takes_away_whole_moves_and_shrink_cuts_the_rest(chain: Graph) -> None:
    initial = lower(problem_of(chain), rows(chain, NAMES, sync=Sync.BROADCAST))
    assert {m[:3] for m in inner(initial)} > {("a", "ada", "bob")}
    dropped = drop_moves(initial)
    neighbours = {("ada", "bob"), ("bob", "ada"), ("bob", "cyd"), ("cyd", "bob")}
    assert {m[:3] for m in inner(dropped)} == {("b", *pair) for pair in neighbours}
    assert {m.region.shape for m in dropped.moves if m.tensor == "b"} == {(1, 4, 4, 6)}
    cut = shrink_moves(dropped)
    assert {m[:3] for m in inner(cut)} == {m[:3] for m in inner(dropped)}
    assert {m.region.shape for m in cut.moves if m.tensor == "b"} == {(1, 4, 1, 6)}


def test_replicas_need_no_moves_at_all(chain: Graph) -> None:
    layouts = {name: Layout({device: chain.region_of(name) for device in NAMES}) for name in "aby"}
    initial = lower(problem_of(chain), Strategy("all", layouts, Sync.BROADCAST))
    assert inner(initial)
    assert inner(optimise_draft(initial)) == set()


def test_the_unoptimised_plan_is_a_plan_and_costs_more(chain: Graph) -> None:
    strategy = rows(chain, NAMES, sync=Sync.BROADCAST)
    plain = make_plan(problem_of(chain), strategy, model_digest="m", optimised=False)
    better = make_plan(problem_of(chain), strategy, model_digest="m")
    assert (plain.syncs, better.syncs) == (12, 4)
    sent = {id(p): sum(t.nbytes for t in p.transfers if t.source and t.target) for p in (plain, better)}
    assert (sent[id(plain)], sent[id(better)]) == (12 * 4 * 4 * 6 * 4, 4 * 1 * 4 * 6 * 4)


def fork() -> Graph:
    """x -> p -> (q, r); s = q + r: `r` is not needed for what is sent."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Relu", ["x"], ["p"], "p"),
        helper.make_node("Neg", ["p"], ["q"], "q"),
        helper.make_node("Exp", ["p"], ["r"], "r"),
        helper.make_node("Add", ["q", "t"], ["s"], "s"),
        helper.make_node("Abs", ["q"], ["t"], "t"),
        helper.make_node("Add", ["s", "r"], ["y"], "y"),
    ]
    nodes[3], nodes[4] = nodes[4], nodes[3]
    given_, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, (4, 4)) for n in "xy")
    graph = helper.make_graph(nodes, "fork", [given_], [made])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    return load_graph(model.SerializeToString())


def fork_draft(graph: Graph) -> Draft:
    """bob computes only `t`; ada sends it `q` and gets `t` back."""
    layouts = {name: Layout({"bob" if name == "t" else "ada": graph.region_of(name)}) for name in "pqrsty"}
    return lower(problem_of(graph), Strategy("s", layouts))


def names(stage_: Any) -> list[str]:
    return [share.operator.name for share in stage_.shares]


def test_hoist_sends_before_it_computes_the_rest() -> None:
    draft = fork_draft(fork())
    schedule = merge_messages(schedule_by_level(draft))
    assert [names(s) for s in schedule.stages["ada"]] == [["p", "q", "r"], ["s", "y"]]
    assert hoist_sends(schedule, predict_seconds(draft, NoCost()), NoCost()) == schedule  # Nothing to gain.
    hoisted = hoist_sends(schedule, predict_seconds(draft, Slow()), Slow())
    assert [names(s) for s in hoisted.stages["ada"]] == [["p", "q"], ["r"], ["s", "y"]]
    assert hoisted.sent_messages("ada", hoisted.stages["ada"][0])[0].target == "bob"
    assert not hoisted.sent_messages("ada", hoisted.stages["ada"][1])
    assert [names(s) for s in join_stages(hoisted).stages["ada"]] == [["p", "q"], ["r"], ["s", "y"]]


def test_join_takes_stages_together_that_nothing_separates() -> None:
    draft = fork_draft(fork())
    schedule = merge_messages(schedule_by_level(draft))
    silent = replace(schedule, messages=())
    assert [names(s) for s in join_stages(silent).stages["ada"]] == [["p", "q", "r", "s", "y"]]
    joined = join_stages(silent).stages["ada"][0]
    assert (joined.first, joined.last) == (StagePlace(0), StagePlace(2))


def test_merge_makes_one_message_of_moves_between_the_same_stages(chain: Graph) -> None:
    graph = fork()
    here = Layout({"ada": graph.region_of("p")})
    layouts = dict.fromkeys("pqr", here) | {n: Layout({"bob": graph.region_of("p")}) for n in "sty"}
    draft = lower(problem_of(graph), Strategy("s", layouts))
    assert len(inner(draft)) == 2
    merged = [
        m
        for m in merge_messages(schedule_by_level(draft)).messages
        if m.source == "ada" and m.target == "bob"
    ]
    assert {move.tensor for m in merged for move in m.moves} == {"q", "r"}
    assert len({(m.sent, m.received) for m in merged}) == len(merged)


def test_all_inputs_of_a_device_come_in_one_message() -> None:
    draft = fork_draft(fork())
    assert [m.target for m in merge_messages(schedule_by_level(draft)).messages if m.source == GATEWAY] == [
        "ada"
    ]


def test_the_pass_that_fails_is_named(chain: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(draft: Draft) -> Draft:
        raise InternalError("a fault")

    monkeypatch.setattr("edgepart.planner.lowering.optimize.shrink_moves", broken)
    with pytest.raises(InternalError) as error:
        optimise_draft(lower(problem_of(chain), rows(chain, NAMES, sync=Sync.BROADCAST)))
    assert error.value.__notes__ == ["in the pass broken, after ['drop_moves']"]


def test_streamline_keeps_every_move() -> None:
    draft = fork_draft(fork())
    schedule = optimise_schedule(schedule_by_level(draft), predict_seconds(draft, Slow()), Slow())
    moved: set[tuple[str, Region]] = {(v.tensor, v.region) for m in schedule.messages for v in m.moves}
    assert moved == {(move.tensor, move.region) for move in draft.moves}
