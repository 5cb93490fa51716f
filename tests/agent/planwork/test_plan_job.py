"""What the leader computes for an order: which plan, and what the one that serves is worth now."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.models import light

from edgepart.agent.cluster.leader.replan_policy import PlanningTiming, ReplanPolicy
from edgepart.agent.cluster.state.cards import MeasuredDevice, with_verdicts, write_card
from edgepart.agent.cluster.state.events import ComputePlan, PlanComputed, PlanFailed, PlanKey
from edgepart.agent.engines.verdicts import CRASHES, FAILS, EngineVerdict
from edgepart.agent.planwork.model_process import examine_model
from edgepart.agent.planwork.plan_job import (
    ALONE,
    LIKELY_BYTES,
    QUICK_S,
    THOROUGH_S,
    PlanComputer,
    search_budget_s,
)
from edgepart.agent.wire.control import Card, Deployment, Profile, Version
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.devices.cluster import Device
from edgepart.planner.devices.engine import Engine
from edgepart.planner.figures import format_seconds
from edgepart.planner.plans.plan import GATEWAY, Plan
from edgepart.planner.plans.plan_bytes import plan_from_bytes
from edgepart.planner.report.sentences import as_sentence
from tests.processes.tiny_language import tiny_language

NODES = ("aa" * 8, "bb" * 8)
JOINER = "cc" * 8
VERSION = Version(1, NODES[0])
DEVICE = Device("any", "board", 1e10, 1e10, 4e9)


def order(count: int, strategy: str, current: bytes = b"") -> ComputePlan:
    """To plan squeezenet on `count` equal devices."""
    boxes = (*NODES, JOINER)[:count]
    key = PlanKey("sq", VERSION, tuple((node, f"d{n}", "digest") for n, node in enumerate(boxes)))
    cards = tuple(Card(node, write_card(MeasuredDevice(DEVICE))) for node in boxes)
    deployment = Deployment("sq", "model", 5_000_000, DeployOptions(strategy=strategy), VERSION)
    return ComputePlan(key, deployment, cards, current, urgent=False, quick=True)


def computed(one: ComputePlan) -> PlanComputed:
    answer = PlanComputer(lambda _: light("squeezenet"), NODES[0]).compute(one)
    assert isinstance(answer, PlanComputed)
    return answer


@pytest.mark.parametrize(("strategy", "weighed"), [("auto", True), ("single", True), ("bbgrap", False)])
def test_a_division_that_was_asked_for_follows_the_members(strategy: str, weighed: bool) -> None:
    alone = computed(order(1, strategy))
    assert alone.current_latency_s == math.inf
    both = computed(order(2, strategy, alone.plan))
    assert math.isfinite(both.current_latency_s) == weighed
    assert both.quick
    again = computed(order(2, strategy, both.plan))
    assert again.plan == both.plan
    assert again.current_latency_s == pytest.approx(both.latency_s)


def test_which_devices_a_division_takes_is_decided_by_speed() -> None:
    pair = computed(order(2, "pipeline"))
    whole = order(3, "pipeline", pair.plan)
    quicker = replace(DEVICE, flops_per_s=3e10, memory_bytes_per_s=3e10)
    fast = Card(JOINER, write_card(MeasuredDevice(quicker)))
    found = computed(replace(whole, cards=(*whole.cards[:2], fast)))
    assert pair.names == ("d0", "d1") and found.names == ("d0", "d2")
    assert found.latency_s < found.current_latency_s < math.inf


def thorough(
    current: bytes = b"", measured_s: float = 0.0, profiles: tuple[Profile, ...] = ()
) -> PlanComputed:
    made = order(2, "auto", current)
    return computed(replace(made, quick=False, measured_s=measured_s, profiles=profiles))


def test_a_plan_on_several_devices_that_was_slower_than_one_gives_way_to_one_and_it_is_said() -> None:
    split = thorough()
    assert len(split.names) == 2
    assert split.latency_s < split.single_s < math.inf
    found = thorough(split.plan, measured_s=2 * split.single_s)
    assert len(found.names) == 1
    assert found.latency_s == found.single_s
    assert found.current_latency_s == 2 * split.single_s
    assert f"a plan on d0, d1 took {format_seconds(2 * split.single_s)}" in found.note
    assert as_sentence(found.note) in plan_from_bytes(found.plan).why.splitlines()


def test_one_device_that_the_search_itself_prefers_is_said_to_be_faster_too() -> None:
    split = thorough()
    (_, slow) = NODES
    made = order(2, "auto", split.plan)
    key = replace(made.key, drifts=((slow, 1e3),))  # so slow that no part of the work is worth it
    found = computed(replace(made, quick=False, key=key, measured_s=3 * split.single_s))
    assert len(found.names) == 1
    assert f"a plan on d0, d1 took {format_seconds(3 * split.single_s)}, one device alone" in found.note


def test_a_plan_that_was_slower_than_predicted_and_faster_than_one_stays() -> None:
    split = thorough()
    between_s = (split.latency_s + split.single_s) / 2
    found = thorough(split.plan, measured_s=between_s)
    assert found.plan == split.plan
    assert found.latency_s == pytest.approx(between_s)
    assert found.current_latency_s == pytest.approx(between_s)
    assert not found.note


@pytest.mark.parametrize(
    ("drift", "took", "moves"), [(0.5, 0.9, False), (0.25, 0.9, False), (1.0, 0.9, False), (4.0, 8.0, True)]
)
def test_one_device_is_not_expected_to_gain_as_much_as_parts_of_the_model_did(
    drift: float, took: float, moves: bool
) -> None:
    """Halves of a language model ran in half of the time that was expected, and then the whole model, which was expected to
    do the same and does not, took their place."""
    split = thorough()
    made = order(2, "auto", split.plan)
    pace = DEVICE.with_drift(drift).pace
    profiles = {
        segment.digest: Profile(segment.digest, pace, DEVICE.threads, drift * segment.compute_s)
        for program in plan_from_bytes(split.plan).programs.values()
        for segment in program.segments
    }
    found = computed(
        replace(
            made,
            quick=False,
            key=replace(made.key, drifts=tuple((node, drift) for node in NODES)),
            measured_s=took * split.single_s,
            profiles=tuple(profiles.values()),
        )
    )
    better = ReplanPolicy(PlanningTiming()).is_gain(found.latency_s, found.current_latency_s)
    assert (better and len(found.names) == 1) == moves
    assert found.single_s == pytest.approx(max(1.0, drift) * split.single_s, rel=0.1)


def test_where_throughput_is_wanted_plans_are_weighed_by_it() -> None:
    first = order(2, "auto")
    options = replace(first.deployment.options, objective="throughput")
    many = replace(first, deployment=replace(first.deployment, options=options), quick=False)
    found = computed(many)
    alone = computed(order(1, "single"))
    assert len(found.names) == 2
    assert plan_from_bytes(found.plan).predicted_latency_s >= alone.latency_s  # No faster for one.
    assert found.latency_s == pytest.approx(1 / plan_from_bytes(found.plan).predicted_throughput_per_s)
    assert found.latency_s < 0.6 * alone.latency_s
    assert found.single_s == math.inf
    weighed = computed(replace(many, current=alone.plan, measured_s=5.0))
    assert found.latency_s < 0.6 * weighed.current_latency_s < alone.latency_s


def test_what_a_segment_took_is_what_it_takes() -> None:
    alone = computed(order(1, "single"))
    (segment,) = plan_from_bytes(alone.plan).programs["d0"].segments
    seconds = 3 * segment.compute_s
    profile = Profile(segment.digest, DEVICE.pace, DEVICE.threads, seconds)
    again = computed(replace(order(1, "single", alone.plan), profiles=(profile,)))
    assert again.current_latency_s == pytest.approx(alone.latency_s - segment.compute_s + seconds)
    assert plan_from_bytes(again.plan).programs["d0"].segments[0].compute_s == pytest.approx(seconds)
    others = replace(profile, threads=DEVICE.threads + 1)
    unknown = computed(replace(order(1, "single", alone.plan), profiles=(others,)))
    assert unknown.current_latency_s == pytest.approx(alone.latency_s)


def test_a_plan_that_names_a_lost_device_is_worth_nothing() -> None:
    both = computed(order(2, "bbgrap"))
    assert computed(order(1, "bbgrap", both.plan)).current_latency_s == math.inf


@pytest.mark.parametrize("strategy", ["bbgrap", "modnn"])
def test_a_device_that_joins_is_used_though_a_refined_plan_without_it_is_faster(strategy: str) -> None:
    """The leader asks for a plan with what the serving one was made from, and a joiner that is 20 times as slow."""
    made = order(3, strategy)
    slow = replace(made, key=replace(made.key, drifts=((JOINER, 20.0),)))
    before = computed(order(2, strategy))
    found = computed(replace(slow, current=before.plan, chosen=before.chosen))
    assert found.latency_s > before.latency_s
    assert set(found.names) == {"d0", "d1", "d2"}
    assert found.current_latency_s == math.inf  # The plan that serves is not weighed against it.
    assert ReplanPolicy(PlanningTiming()).is_gain(found.latency_s, found.current_latency_s)
    again = computed(replace(slow, current=found.plan, chosen=found.chosen, refines=True))
    assert set(again.names) == {"d0", "d1", "d2"} and again.latency_s <= found.latency_s


def test_an_unknown_strategy_is_the_users_and_final() -> None:
    answer = PlanComputer(lambda _: light("squeezenet"), NODES[0]).compute(order(1, "magic"))
    assert isinstance(answer, PlanFailed)
    assert (answer.kind, answer.final) == ("UsageError", True)
    assert "magic" in answer.error


def test_what_fails_inside_the_planner_is_an_answer_that_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise IndexError("pop from empty list")

    monkeypatch.setattr("edgepart.agent.planwork.plan_job.choose_plan", fail)
    answer = PlanComputer(lambda _: light("squeezenet"), NODES[0]).compute(order(1, "auto"))
    assert isinstance(answer, PlanFailed)
    assert (answer.kind, answer.final) == ("InternalError", True)
    assert "pop from empty list" in answer.error
    assert "planning sq failed inside" in caplog.text


# What was measured


def measured(
    before: PlanComputed, strategy: str, drift: float, profiles: tuple[Profile, ...] = ()
) -> ComputePlan:
    """The same question, after d1 was found to take so many times as long as calibrated."""
    made = order(2, strategy, before.plan)
    key = replace(made.key, drifts=((NODES[1], drift),) if drift != 1.0 else ())
    return replace(made, key=key, chosen=before.chosen, refines=True, profiles=profiles)


def rows(plan: bytes, device: str) -> float:
    """FLOPs of what a device does."""
    return float(sum(segment.flops for segment in plan_from_bytes(plan).programs[device].segments))


@pytest.mark.parametrize("strategy", ["bbgrap", "auto"])
def test_shares_move_from_a_device_that_computes_slower_than_calibrated_and_back(strategy: str) -> None:
    before = computed(order(2, strategy))
    found = computed(measured(before, strategy, 4.0))
    assert found.latency_s < 0.95 * found.current_latency_s
    assert before.latency_s < found.current_latency_s
    assert "d1" not in found.names or rows(found.plan, "d1") < 0.7 * rows(before.plan, "d1")
    assert plan_from_bytes(found.plan).strategy == strategy
    now, then = format_seconds(found.current_latency_s), format_seconds(found.latency_s)
    assert found.note == (
        f"refined: shares moved after measuring (d1 takes 4 times as long as calibrated), predicted {now} -> {then}"
    )
    assert computed(measured(before, strategy, 4.0)) == found
    back = computed(measured(found, strategy, 1.0))
    assert back.latency_s <= 1.01 * before.latency_s  # starting from there it may come to better parts
    before_s, after_s = format_seconds(back.current_latency_s), format_seconds(back.latency_s)
    assert back.note == f"refined: shares moved after measuring, predicted {before_s} -> {after_s}"


def test_what_a_device_took_while_it_drifted_is_not_stretched_again() -> None:
    before = computed(order(2, "bbgrap"))
    slow = DEVICE.with_drift(4.0)
    took = tuple(
        Profile(segment.digest, slow.pace, DEVICE.threads, 4 * segment.calibrated_s)
        for segment in plan_from_bytes(before.plan).programs["d1"].segments
    )
    without = computed(measured(before, "bbgrap", 4.0))
    found = computed(measured(before, "bbgrap", 4.0, took))
    assert found.current_latency_s == pytest.approx(without.current_latency_s)
    # It is as it was: what it took meanwhile is nothing to it, nor to its twin.
    again = computed(measured(before, "bbgrap", 1.0, took))
    assert again.current_latency_s == pytest.approx(before.latency_s)


def test_a_plan_that_another_leader_made_is_searched_for_anew() -> None:
    before = replace(computed(order(2, "bbgrap")), chosen=b"")
    found = computed(measured(before, "bbgrap", 4.0))
    assert rows(found.plan, "d1") < 0.7 * rows(before.plan, "d1")


def test_the_search_takes_as_long_as_the_user_said() -> None:
    assert search_budget_s(DeployOptions(), quick=False) == THOROUGH_S
    assert search_budget_s(DeployOptions(), quick=True) == QUICK_S
    assert search_budget_s(DeployOptions(search_budget_s=0.2), quick=True) == 0.2
    assert search_budget_s(DeployOptions(search_budget_s=60.0), quick=True) == QUICK_S
    assert search_budget_s(DeployOptions(search_budget_s=60.0), quick=False) == 60.0


ENGINE = Engine(
    "npu",
    "SomeExecutionProvider",
    families={"conv": 4e10, "pointwise": 4e10, "stem": 4e10},
    moves={"elementwise/2097152": 4e10, "pool": 4e10, "move": 4e10, "reduce": 4e10, "softmax": 4e10},
    flops_per_s=4e10,
    memory_bytes_per_s=4e10,
)


def on_a_device_with_an_engine(
    current: bytes = b"", refused: tuple[EngineVerdict, ...] = (), *, there: bool = True
) -> PlanComputed:
    device = replace(DEVICE, engines=(ENGINE,) if there else ())
    card = Card(NODES[0], write_card(with_verdicts(MeasuredDevice(device), refused)))
    return computed(replace(order(1, "single", current), cards=(card,)))


def test_a_plan_with_an_engine_is_tried_and_one_without_is_the_model_itself() -> None:
    (segment,) = plan_from_bytes(on_a_device_with_an_engine().plan).programs["d0"].segments
    assert segment.engine == "npu"
    assert not on_a_device_with_an_engine().is_model_itself
    assert on_a_device_with_an_engine(there=False).is_model_itself


def test_a_plan_whose_engine_is_refused_or_gone_is_worth_nothing_and_the_next_does_without_it() -> None:
    first = on_a_device_with_an_engine()
    (segment,) = plan_from_bytes(first.plan).programs["d0"].segments
    assert on_a_device_with_an_engine(first.plan).current_latency_s == pytest.approx(first.latency_s)
    for told in (
        on_a_device_with_an_engine(first.plan, (EngineVerdict("npu", segment.digest, CRASHES),)),
        on_a_device_with_an_engine(first.plan, there=False),
    ):
        assert told.current_latency_s == math.inf
        assert told.latency_s > 2 * first.latency_s
        assert {one.engine for one in plan_from_bytes(told.plan).programs["d0"].segments} == {""}


def test_an_operator_that_an_engine_does_not_take_goes_to_the_cpu_and_the_others_stay() -> None:
    (segment,) = plan_from_bytes(on_a_device_with_an_engine().plan).programs["d0"].segments
    lacking = segment.operators[len(segment.operators) // 2]
    verdict = EngineVerdict("npu", segment.digest, FAILS, model="model", lacks=(lacking,))
    found = plan_from_bytes(on_a_device_with_an_engine(refused=(verdict,)).plan).programs["d0"].segments
    engines = {name: one.engine for one in found for name in one.operators}
    assert engines[lacking] == ""
    assert sum(engine == "npu" for engine in engines.values()) > len(engines) / 2
    other = replace(verdict, model="another")
    assert (
        len(plan_from_bytes(on_a_device_with_an_engine(refused=(other,)).plan).programs["d0"].segments) == 1
    )


def test_a_plan_whose_blocks_were_wrong_reads_tokens_one_by_one_and_says_so(tmp_path: Path) -> None:
    path = tiny_language(tmp_path / "tiny") / "model.onnx"
    _, _, options, _ = examine_model(path, DeployOptions(strategy="single", context=128))
    assert options.prefill
    made = order(1, "single")
    made = replace(made, deployment=replace(made.deployment, options=options))
    computer = PlanComputer(lambda _: path, NODES[0])

    def plan_after(*refused: str) -> Plan:
        key = replace(made.key, refused=tuple((one, "it was wrong") for one in refused))
        found = computer.compute(replace(made, key=key))
        assert isinstance(found, PlanComputed)
        return plan_from_bytes(found.plan)

    first = plan_after()
    second = plan_after(first.structure)
    assert first.prefill is not None and second.prefill is None
    assert replace(first, prefill=None).structure == second.structure != first.structure
    assert "Prompts are read token by token: a plan that read them in blocks" in second.why
    assert "token by token" not in first.why
    # The same holds for a plan that is to be on one device alone.
    alone = replace(made.key, refused=((first.structure, "it was wrong"),), alone=True)
    found = computer.compute(replace(made, key=alone))
    assert isinstance(found, PlanComputed) and found.structure == second.structure


def test_what_a_text_needs_of_the_logits_is_all_that_is_taken_to_travel(tmp_path: Path) -> None:
    path = tiny_language(tmp_path / "tiny") / "model.onnx"
    _, _, options, _ = examine_model(path, DeployOptions(strategy="single", context=128))
    made = order(1, "single")

    def to_gateway(options: DeployOptions) -> list[int]:
        deployment = replace(made.deployment, options=options)
        found = PlanComputer(lambda _: path, NODES[0]).compute(replace(made, deployment=deployment))
        assert isinstance(found, PlanComputed)
        return [one.nbytes for one in plan_from_bytes(found.plan).transfers if one.target == GATEWAY]

    assert to_gateway(replace(options, text=False)) == [300 * 4]
    assert to_gateway(options) == [LIKELY_BYTES]


def test_a_plan_for_the_loss_of_a_mirrored_device_leaves_states_where_they_are(tmp_path: Path) -> None:
    path = tiny_language(tmp_path / "tiny") / "model.onnx"
    _, _, options, _ = examine_model(
        path, DeployOptions(strategy="pipeline", context=128, mirrors=True, devices=("d0", "d1"))
    )
    computer = PlanComputer(lambda _: path, NODES[0])

    def made(one: ComputePlan) -> PlanComputed:
        found = computer.compute(replace(one, deployment=replace(one.deployment, options=options)))
        assert isinstance(found, PlanComputed)
        return found

    served = made(order(2, "pipeline"))
    plan = plan_from_bytes(served.plan)
    assert plan.mirrors == {"d0": "d1", "d1": "d0"}
    whole = order(3, "pipeline")
    for lost in (0, 1):
        left = [n for n in range(3) if n != lost]
        key = replace(whole.key, devices=tuple(whole.key.devices[n] for n in left))
        without = replace(whole, key=key, cards=tuple(whole.cards[n] for n in left))
        found = made(replace(without, serving=served.plan, chosen=served.chosen))
        # The other one has the states of both.
        assert {*plan_from_bytes(found.plan).programs} == {f"d{1 - lost}"}
        of_another_leader = made(replace(without, serving=served.plan))
        assert {*plan_from_bytes(of_another_leader.plan).programs} == {f"d{1 - lost}"}
        refuge = made(replace(without, key=replace(key, alone=True), serving=served.plan))
        assert {*plan_from_bytes(refuge.plan).programs} == {f"d{1 - lost}"}


def with_memory(one: ComputePlan, nbytes: float) -> ComputePlan:
    device = replace(DEVICE, memory_bytes=nbytes)
    return replace(
        one, cards=tuple(Card(card.node, write_card(MeasuredDevice(device))) for card in one.cards)
    )


@pytest.mark.parametrize("strategy", ["auto", "bbgrap"])
def test_what_requests_wait_for_is_on_one_device_and_says_so(strategy: str) -> None:
    made = order(3, strategy)
    assert len(computed(made).names) == 3
    for hasty in (replace(made, urgent=True, awaited=True), replace(made, key=replace(made.key, alone=True))):
        found = computed(hasty)
        assert len(found.names) == 1 and found.is_model_itself and found.quick
        assert found.note == ALONE
        assert as_sentence(ALONE) in plan_from_bytes(found.plan).why.splitlines()
    assert computed(replace(order(1, strategy), awaited=True)).note == ""  # There is no other device.


def test_where_no_device_has_room_alone_requests_wait_for_a_search_and_a_refuge_is_refused() -> None:
    made = order(3, "auto")
    ((_, peak_bytes),) = computed(order(1, "single")).memory_bytes
    tight = with_memory(made, 0.8 * peak_bytes)
    found = computed(replace(tight, urgent=True, awaited=True))
    assert len(found.names) > 1 and found.note == ""
    refuge = replace(tight, key=replace(tight.key, alone=True))
    failed = PlanComputer(lambda _: light("squeezenet"), NODES[0]).compute(refuge)
    assert isinstance(failed, PlanFailed)
    assert failed.kind == "Infeasible" and failed.final


def test_a_plan_on_one_device_that_gave_wrong_answers_is_not_made_again() -> None:
    made = replace(order(2, "auto"), awaited=True)
    refused = computed(made).structure
    key = replace(made.key, refused=((refused, "y differs"),))
    assert computed(replace(made, key=key)).structure != refused
    failed = PlanComputer(lambda _: light("squeezenet"), NODES[0]).compute(
        replace(made, key=replace(key, alone=True))
    )
    assert isinstance(failed, PlanFailed) and failed.kind == "Infeasible"
