"""Replicas: plans side by side answer what one does, are simulated like a plain twin, and keep apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from random import Random

import msgpack
import pytest
from benchmarks.models import light
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.agent.verify.same_answer import differences
from edgepart.cli.planning.plan_page import draw
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.errors import FrameError, InternalError
from edgepart.planner.layout.strategy import Problem, Strategy, Sync, deal_to_replicas
from edgepart.planner.lowering.lower import lower, make_plan
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import best_strategy as plan_by
from edgepart.planner.planner import choose_plan
from edgepart.planner.plans.check import broken_plan_rules, check_plan
from edgepart.planner.plans.join import join_schedules, split_schedule
from edgepart.planner.plans.plan import GATEWAY, Plan, Receive, Replica, Send
from edgepart.planner.plans.plan_bytes import plan_from_bytes, plan_to_bytes
from edgepart.planner.plans.timeline import Compute, MessageTimes, TimedSchedule
from edgepart.planner.report.document import plan_document
from edgepart.planner.report.shares import plan_report
from edgepart.planner.search.study import Study
from edgepart.planner.simulation.latency import run_schedule, simulate
from edgepart.planner.simulation.throughput import (
    default_in_flight,
    fitting_in_flight,
    run_requests,
    simulate_stream,
)
from tests.planner.lowering.test_lower import chain_model
from tests.planner.random_plans import NAMES, inputs_of, models, problem_of, rows
from tests.planner.simulation.plain_simulation import Twin
from tests.planner.simulation.random_schedules import Steps, a_cluster, a_schedule

SEEDS = st.integers(0, 2**32)
GROUPS = [(("ada", "bob"), ("cyd",)), (("cyd", "ada"), ("bob",)), (("ada",), ("bob",), ("cyd",))]


def replicated(graph: Graph, groups: tuple[tuple[str, ...], ...], sync: Sync = Sync.NEEDED) -> Strategy:
    axes = ("height", "channel", "width")
    made = [rows(graph, group, axis, sync) for group, axis in zip(groups, axes, strict=False)]
    return deal_to_replicas("replicas", made, "side by side")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load_graph(chain_model(channels=16))


@pytest.fixture(scope="module")
def plan(graph: Graph) -> Plan:
    return make_plan(problem_of(graph), replicated(graph, GROUPS[0]), model_digest="m")


# Answers


@given(models(), st.sampled_from(GROUPS), st.sampled_from(list(Sync)), st.integers(0, 9))
@settings(max_examples=25)
def test_every_replica_answers_what_one_session_does(
    model: object, groups: tuple[tuple[str, ...], ...], sync: Sync, seed: int
) -> None:
    source = model.SerializeToString()  # type: ignore[attr-defined]
    graph = load_graph(source)
    made = make_plan(problem_of(graph), replicated(graph, groups, sync), model_digest="m")
    running, inputs = LocalRun(check_plan(made, graph), graph), inputs_of(graph, seed)
    expected = run_alone(source, inputs)
    for n, replica in enumerate(made.replicas):
        assert not differences(running.run(inputs, n), expected)
        assert {name for name, took in running.computed_s.items() if took} <= set(replica.devices)


def test_what_a_replica_does_is_what_it_does_alone(graph: Graph, plan: Plan) -> None:
    problem = problem_of(graph)
    for strategy, replica in zip(replicated(graph, GROUPS[0]).replicas, plan.replicas, strict=True):
        own = make_plan(problem, strategy, model_digest="m")
        assert tuple(own.programs) == replica.devices
        for name, program in own.programs.items():
            assert plan.programs[name].segments == program.segments
            assert plan.programs[name].peak_memory_bytes == program.peak_memory_bytes
        mine = [t for t in plan.transfers if {t.source, t.target} & set(replica.devices)]
        assert [replace(t, number=n) for n, t in enumerate(mine)] == list(own.transfers)


def test_replicas_are_no_one_draft(graph: Graph) -> None:
    with pytest.raises(InternalError, match="3 replicas"):
        lower(problem_of(graph), replicated(graph, GROUPS[2]))


# Bytes and rules


def test_there_and_back(plan: Plan) -> None:
    paced = replace(plan, replicas=tuple(replace(one, between_s=0.5) for one in plan.replicas))
    for one in (plan, paced):
        assert plan_from_bytes(plan_to_bytes(one)) == one
    assert plan_to_bytes(paced) != plan_to_bytes(plan)
    assert paced.parts == paced.replicas and replace(plan, replicas=()).parts == (
        Replica(tuple(plan.programs)),
    )


@pytest.mark.parametrize(
    "spoilt",
    [
        None,
        7,
        [["ada"]],
        [{"devices": ["ada"]}],
        [{"devices": [1], "latency_s": 0.0, "between_s": 0.0}],
        [{"devices": ["ada"], "latency_s": "x", "between_s": 0.0}],
    ],
)
def test_replicas_of_another_type_are_refused(plan: Plan, spoilt: object) -> None:
    document = msgpack.unpackb(plan_to_bytes(plan)) | {"replicas": spoilt}
    with pytest.raises(FrameError, match="not a plan"):
        plan_from_bytes(msgpack.packb(document))


def with_replicas(plan: Plan, *groups: tuple[str, ...]) -> Plan:
    return replace(plan, replicas=tuple(map(Replica, groups)))


def paced(seconds: float) -> Callable[[Plan], Plan]:
    return lambda plan: replace(
        plan, replicas=(replace(plan.replicas[0], between_s=seconds), plan.replicas[1])
    )


FAULTS: dict[str, Callable[[Plan], Plan]] = {
    "'cyd' is in 0 replicas": lambda plan: with_replicas(plan, ("ada", "bob")),
    "'bob' is in 2 replicas": lambda plan: with_replicas(plan, ("ada", "bob"), ("bob", "cyd")),
    "names 'dan', which has no program": lambda plan: with_replicas(plan, ("ada", "bob"), ("cyd", "dan")),
    "replica 2 has no devices": lambda plan: with_replicas(plan, ("ada", "bob"), ("cyd",), ()),
    "goes from replica to replica": lambda plan: with_replicas(plan, ("ada",), ("bob", "cyd")),
    "a pace of -1": paced(-1.0),
    "a pace of nan": paced(nan),
    "a pace of inf": paced(inf),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_replica_is_found(plan: Plan, graph: Graph, fault: str) -> None:
    assert list(broken_plan_rules(plan, graph)) == []
    assert any(fault in found for found in broken_plan_rules(FAULTS[fault](plan)))


def test_each_replica_must_answer_all(plan: Plan, graph: Graph) -> None:
    """Together they answer, and each only a part: two replicas made of one plan that divides rows."""
    both = make_plan(problem_of(graph), rows(graph, NAMES[:2]), model_digest="m")
    inner = {t.number for t in both.transfers if GATEWAY not in (t.source, t.target)}
    assert inner
    found = list(broken_plan_rules(replace(both, replicas=(Replica(("ada",)), Replica(("bob",)))), graph))
    assert any("from replica to replica" in one for one in found)
    apart = replace(plan, replicas=(Replica(("cyd",)), Replica(("ada", "bob"))))
    assert list(broken_plan_rules(apart, graph)) == []
    silent = replace(
        plan,
        transfers=tuple(
            replace(t, pieces=plan.transfers[0].pieces) if (t.source, t.target) == ("cyd", GATEWAY) else t
            for t in plan.transfers
        ),
    )
    assert any("reaches the gateway as []" in one for one in broken_plan_rules(silent, graph))


# Time


def some_replicas(chance: Random, devices: int) -> tuple[TimedSchedule, list[TimedSchedule]]:
    """Schedules side by side, each on devices of its own."""
    names = [f"d{n}" for n in range(devices)]
    first = chance.randint(1, devices - 1)
    made = []
    for mine in (names[:first], names[first:]):
        if len(mine) == 1:
            messages = [
                MessageTimes(GATEWAY, mine[0], chance.randint(0, 1500)),
                MessageTimes(mine[0], GATEWAY, 90),
            ]
            only: Steps = {mine[0]: [Receive(0), Compute(chance.uniform(0.01, 2.0), "all"), Send(1)]}
            made.append(TimedSchedule(only, messages))
            continue
        drawn = a_schedule(chance, len(mine))
        called = {f"d{n}": name for n, name in enumerate(mine)} | {GATEWAY: GATEWAY}
        own: Steps = {called[name]: list(steps) for name, steps in drawn.steps.items()}
        ends = [MessageTimes(called[m.source], called[m.target], m.nbytes) for m in drawn.messages]
        made.append(TimedSchedule(own, ends))
    return join_schedules(made), made


@given(SEEDS, st.integers(2, 5))
@settings(max_examples=60)
def test_what_was_put_together_is_taken_apart_again(seed: int, devices: int) -> None:
    chance = Random(seed)
    whole, made = some_replicas(chance, devices)
    apart = split_schedule(whole)
    assert [one.steps for one, _ in apart] == [one.steps for one in made]
    assert [list(one.messages) for one, _ in apart] == [list(one.messages) for one in made]
    assert sorted(n for _, numbers in apart for n in numbers) == list(range(len(whole.messages)))


@given(SEEDS, st.integers(2, 5))
@settings(max_examples=60)
def test_one_request_takes_what_its_replica_takes_alone(seed: int, devices: int) -> None:
    chance = Random(seed)
    cluster = a_cluster(chance, devices)
    whole, made = some_replicas(chance, devices)
    found, each = run_schedule(whole, cluster, "d0"), [run_schedule(one, cluster, "d0") for one in made]
    assert [one.latency_s for one in found.replicas] == [one.latency_s for one in each]
    assert found.latency_s in [one.latency_s for one in each]
    assert found.arrivals_s == tuple(when for one in each for when in one.arrivals_s)
    assert found.compute_s == {name: s for one in each for name, s in one.compute_s.items()}


@given(SEEDS, st.integers(2, 4), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=60)
def test_many_requests_are_dealt_out_as_the_plain_twin_does(
    seed: int, devices: int, count: int, flying: int
) -> None:
    chance = Random(seed)
    cluster = a_cluster(chance, devices)
    whole, _ = some_replicas(chance, devices)
    paces = run_schedule(whole, cluster, "d0").paces
    found = run_requests(whole, cluster, "d0", count, flying, paces)
    twin = Twin(whole, cluster, "d0", count, flying, paces).run()
    assume(not twin.tied)
    assert found.answers_s == pytest.approx(sorted(twin.answered.values()))


@given(SEEDS, st.integers(2, 5), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=60)
def test_no_more_are_answered_than_the_replicas_could_at_best(
    seed: int, devices: int, count: int, flying: int
) -> None:
    chance = Random(seed)
    cluster = a_cluster(chance, devices)
    whole, _ = some_replicas(chance, devices)
    one = run_schedule(whole, cluster, "d0")
    many = run_requests(whole, cluster, "d0", count, flying, one.paces)
    assert many.answers_s[-1] >= (1 - 1e-9) * count / one.most_per_s
    assert one.most_per_s <= sum(replica.most_per_s for replica in one.replicas) * (1 + 1e-9)
    assert sum(many.parts) == pytest.approx(1.0)


def copies(*seconds: float, nbytes: int = 0) -> TimedSchedule:
    """One device for each replica, which computes for so long."""
    return join_schedules(
        TimedSchedule(
            {f"d{n}": [Receive(0), Compute(took, "all"), Send(1)]},
            [MessageTimes(GATEWAY, f"d{n}", nbytes), MessageTimes(f"d{n}", GATEWAY, 0)],
        )
        for n, took in enumerate(seconds)
    )


def among(*flops_per_s: float, memory_bytes: float = 4e9, bytes_per_s: float = 1.17e8) -> Cluster:
    devices = (Device(f"d{n}", "k", f, f / 4, memory_bytes) for n, f in enumerate(flops_per_s))
    return Cluster(tuple(devices), {}, Link(bytes_per_s, 1e-4))


@pytest.mark.parametrize("seconds", [(1.0, 1.0), (1.0, 2.0, 4.0), (1.0, 1.0, 1.0, 3.0)])
def test_replicas_together_answer_as_many_as_each(seconds: tuple[float, ...]) -> None:
    cluster = among(*seconds)
    one = run_schedule(copies(*seconds), cluster, "d0")
    found = simulate_stream(one, cluster, "d0", 16)
    every = sum(1 / took for took in seconds)
    assert found.throughput_per_s == pytest.approx(every, rel=0.02) == pytest.approx(one.most_per_s, rel=0.02)
    assert found.parts == pytest.approx([1 / took / every for took in seconds], abs=0.02)


def test_what_the_gateway_can_send_bounds_replicas() -> None:
    """Those elsewhere get their inputs through one card; the gateway's own device needs none of it."""
    cluster = among(1.0, 1.0, 1.0, bytes_per_s=100.0)
    one = run_schedule(copies(1.0, 1.0, 1.0, nbytes=200), cluster, "d0")
    assert one.most_per_s == pytest.approx(1.0 + 100 / 200, rel=0.01)
    loads = one.loads_of([2 / 3, 1 / 6, 1 / 6])
    assert loads["send", "d0"] == pytest.approx(2.0 / 3, rel=0.01)
    assert loads["compute", "d0"] == pytest.approx(2 / 3)


def test_so_many_are_in_flight_as_each_replica_has_room_for() -> None:
    cluster = among(1.0, 1.0)
    found = run_schedule(copies(1.0, 1.0), cluster, "d0")
    parts = tuple(
        replace(
            one, request_bytes=dict.fromkeys(one.compute_s, 10), kept_bytes=dict.fromkeys(one.compute_s, 0)
        )
        for one in found.replicas
    )
    one = replace(found, replicas=parts)
    assert fitting_in_flight(one, cluster, {"d0": 1e9, "d1": 1e9}) == default_in_flight(cluster) == 4
    assert fitting_in_flight(one, cluster, {"d0": 25, "d1": 15}) == 3
    assert fitting_in_flight(one, cluster, {"d0": 5, "d1": 5}) == 1


# The strategy


def test_two_copies_of_squeezenet_answer_twice_as_many() -> None:
    graph = load_graph(light("squeezenet"))
    problem = Problem(graph, among(1e9, 1e9), "d0", "throughput", search_budget_s=1.0)
    study = Study(problem)
    single, _, _ = choose_plan(problem, "single", study=study)
    made, simulation, strategy = choose_plan(problem, "auto", study=study)
    assert [one.devices for one in made.replicas] == [("d0",), ("d1",)]
    assert made.predicted_throughput_per_s == pytest.approx(2 * single.predicted_throughput_per_s, rel=0.03)
    assert made.predicted_latency_s == pytest.approx(single.predicted_latency_s, rel=0.1)
    assert "Requests are dealt out to 2 copies of the model: d0, d1." in made.why
    assert all(one.between_s > 0 for one in made.replicas)
    assert simulate(made, problem.cluster, "d0", study.memo.cost).paces == made.replicas

    document = plan_document(made, simulation, graph=graph, strategy=strategy, search_s=0.0, single=None)
    assert [one["devices"] for one in document["replicas"]] == [["d0"], ["d1"]]
    assert set(document["devices"]["d1"]["layers"].values()) == {"whole"}
    assert plan_report(made)["replicas"] == document["replicas"]
    page = draw(document, made, simulation, problem, strategy)
    assert "replicas: a request goes to one" in page and "d0; d1" in page


def test_a_device_that_does_harm_is_left_out_and_a_slow_one_that_does_none_is_not() -> None:
    graph = load_graph(light("squeezenet"))
    slow = choose_plan(Problem(graph, among(1e9, 1e9, 4e8), "d0", "throughput"), "replicas")[0]
    assert len(slow.replicas) == 3
    idle = choose_plan(Problem(graph, among(1e9, 1e9, 1e7), "d0", "throughput"), "replicas")[0]
    assert set(idle.programs) == {"d0", "d1"}
    far = choose_plan(Problem(graph, among(1e9, 1e9, bytes_per_s=1e4), "d0", "throughput"), "replicas")[0]
    assert set(far.programs) == {"d0"}


def test_where_one_device_has_no_room_groups_answer() -> None:
    graph = load_graph(light("bvlc_alexnet"))
    weights = sum(constant.nbytes for constant in graph.constants.values())
    cluster = among(1e10, 1e10, 1e10, 1e10, memory_bytes=0.85 * weights)
    problem = Problem(graph, cluster, "d0", "throughput")
    study = Study(problem)
    found = plan_by(problem, "replicas", study)
    groups = [set(study.scorer.forecast(one).compute_s) for one in found.replicas]
    assert sorted(map(len, groups)) == [2, 2] and len(set.union(*groups)) == 4
    peaks = study.scorer.forecast(found).peak_memory_bytes
    assert max(peaks.values()) <= 0.85 * weights


def test_those_that_have_room_are_replicas_by_themselves_beside_groups() -> None:
    graph = load_graph(light("bvlc_alexnet"))
    weights = sum(constant.nbytes for constant in graph.constants.values())
    cluster = among(1e10, 1e10, 2e10, 2e10, 1e10)
    rooms = (4, 4, 0.8, 0.8, 0.8)
    devices = tuple(
        replace(d, memory_bytes=room * weights) for d, room in zip(cluster.devices, rooms, strict=True)
    )
    made, _, _ = choose_plan(
        Problem(graph, replace(cluster, devices=devices), "d0", "throughput"), "replicas"
    )
    assert {frozenset(one.devices) for one in made.replicas} == {
        frozenset(("d0",)),
        frozenset(("d1",)),
        frozenset(("d2", "d3", "d4")),
    }
    assert list(broken_plan_rules(made, graph)) == []


def test_for_one_request_there_is_one_copy() -> None:
    graph = load_graph(light("squeezenet"))
    made, _, _ = choose_plan(Problem(graph, among(1e9, 1e9), "d0"), "replicas")
    assert len(made.programs) == 1 and made.replicas == ()
    assert "Several copies would make no request faster." in made.why
