"""What a leader makes of measurements: a candidate that falls short does not serve, and a plan that is slower than one
device is replaced, once, and says so."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from edgepart.agent.cluster.leader.replan_policy import ClusterView, PlanningTiming
from edgepart.agent.cluster.leader.rollout import DeploymentRollout
from edgepart.agent.cluster.leader.rollout_state import LeaderView, PlanRollout, epochs
from edgepart.agent.cluster.leader.switching import REREADING_S, SILENCE, TEXTS_END_S
from edgepart.agent.cluster.state.cards import MeasuredDevice, write_card
from edgepart.agent.cluster.state.drift import DriftBook
from edgepart.agent.cluster.state.events import (
    RIGHT,
    ComputePlan,
    Effect,
    Member,
    PlanComputed,
    PlanFailed,
    SendMessage,
)
from edgepart.agent.cluster.state.judging import MIN_REQUESTS
from edgepart.agent.cluster.state.profiles import ProfileBook
from edgepart.agent.wire.control import (
    ALIVE,
    READY,
    Card,
    Deployment,
    Drift,
    Holding,
    Latency,
    Prepare,
    Profile,
    Report,
    Retire,
    Version,
)
from edgepart.agent.wire.inference import DeployOptions, Epoch
from edgepart.planner.devices.cluster import Device, Link
from edgepart.planner.plans.plan import Plan, Program, Run, Segment
from edgepart.planner.plans.plan_bytes import plan_from_bytes, plan_to_bytes

NODES = ("a", "b")
DEVICE = Device("", "box", 1e9, 1e9, 1e9, threads=2)
RATE = 1e6
"""Bytes per second of the link between them."""
VERSION = Version(1, "a")
ENTRY = Deployment("net", "m", 1000, DeployOptions(), VERSION)


def plan(latency_s: float, **compute_s: float) -> bytes:
    """One segment for each device; its digest is the device's name."""
    programs = {
        name: Program(name, (Run(0),), (Segment(name, b"", (), (), (), (), seconds, 0.0, 0),), 0, 0)
        for name, seconds in compute_s.items()
    }
    return plan_to_bytes(Plan("m", "auto", programs, (), (), (), predicted_latency_s=latency_s))


@dataclass
class Story:
    """A leader's cutover of one deployment on two devices, and members that are ready at once."""

    entry: Deployment = ENTRY
    book: ProfileBook = field(default_factory=ProfileBook)
    book_of_drifts: DriftBook = field(default_factory=DriftBook)
    now: float = 0.0
    held: dict[Epoch, bool] = field(default_factory=dict)
    orders: list[ComputePlan] = field(default_factory=list)
    prepared: list[Prepare] = field(default_factory=list)
    continued: int = 0
    """How many steps a sequence has made that is continued on the plan that serves."""
    step_bytes: float = 0.0
    """The bytes by which its states grow in a step."""
    links_s: float = 0.0
    """The latency of the links."""
    here: tuple[str, ...] = NODES
    """The devices that are there."""
    alone_s: float = 0.0
    """What a plan for the loss of one device takes; 0: there is none."""
    slow: bytes = b""
    """A plan that does not get ready."""

    def __post_init__(self) -> None:
        self.cutover = DeploymentRollout(self.entry, None, PlanningTiming())
        self.epochs = epochs(1)

    @property
    def world(self) -> LeaderView:
        members = tuple(Member(n, n, "boot", ALIVE, (), "", "0") for n in self.here)
        links = {n: {other: Link(RATE, self.links_s) for other in NODES if other != n} for n in NODES}
        cards = {n: Card(n, write_card(MeasuredDevice(replace(DEVICE, name=n), links[n]))) for n in NODES}
        cluster = ClusterView(members, cards, {n: f"digest-{n}-{self.links_s}" for n in NODES}, frozenset())
        holdings = tuple(
            Holding("net", epoch, READY, active, continued=self.continued if active else 0)
            for epoch, active in self.held.items()
        )
        report = Report("boot", holdings, ("m",), (("net", VERSION),))
        return LeaderView(
            "a", 1, cluster, dict.fromkeys(self.here, report), self.book, drifts=self.book_of_drifts
        )

    def step(self, wait_s: float = 2.0) -> list[Effect]:
        self.now += wait_s
        effects = self.cutover.step(self.world, self.epochs, self.now)
        for order in [one for one in effects if isinstance(one, ComputePlan)]:
            if len(order.key.devices) < len(self.here) and self.alone_s:  # for the loss of one
                (name,) = (name for _, name, _ in order.key.devices)
                spare = plan(self.alone_s, **{name: self.alone_s})
                self.cutover.answered(
                    PlanComputed(order.key, spare, (name,), self.alone_s, math.inf, True), self.now
                )
            elif len(order.key.devices) < len(self.here):
                self.cutover.answered(PlanFailed(order.key, "no memory", "Infeasible", True), self.now)
            else:
                self.orders.append(order)
        sent = [one.message for one in effects if isinstance(one, SendMessage)]
        for message in sent:
            if isinstance(message, Prepare) and message.epoch not in self.held:
                if message.plan != self.slow:
                    self.held[message.epoch] = False
                self.prepared.append(message)
            elif isinstance(message, Retire):
                self.held.pop(message.epoch, None)
        return effects

    def answer(
        self,
        made: bytes,
        *,
        current_s: float = float("inf"),
        single_s: float = 1.0,
        note: str = "",
        chosen: bytes = b"",
        quick: bool = False,
    ) -> None:
        """To the last order."""
        known = plan_from_bytes(made)
        key, names = self.orders[-1].key, tuple(known.programs)
        latency_s = known.predicted_latency_s
        self.cutover.answered(
            PlanComputed(
                key,
                made,
                names,
                latency_s,
                current_s,
                quick,
                single_s,
                note,
                chosen=chosen,
                step_bytes=self.step_bytes,
            ),
            self.now,
        )

    def activate(self) -> None:
        """What is ready serves, everywhere."""
        self.step()
        assert self.cutover.plans.active is not None
        self.held[self.cutover.plans.active.epoch] = True
        self.step()

    def compare(self, serving: bytes) -> None:
        """Where the plan that serves is compared once more, it is the best there is."""
        for _ in range(3):
            asked = len(self.orders)
            self.step()
            if len(self.orders) > asked:
                self.answer(serving, current_s=plan_from_bytes(serving).predicted_latency_s)

    def serve(self, made: bytes, single_s: float = 1.0, chosen: bytes = b"") -> Epoch:
        self.step()
        self.answer(made, single_s=single_s, chosen=chosen)
        self.step()
        self.step()
        assert self.cutover.plans.active is not None
        assert self.cutover.plans.active.order.plan == made
        self.held[self.cutover.plans.active.epoch] = True
        self.step()
        return self.cutover.plans.active.epoch


def timed(profiles: Iterable[tuple[str, float]]) -> list[Profile]:
    return [Profile(name, DEVICE.pace, DEVICE.threads, seconds) for name, seconds in profiles]


def better_offered(
    measured: list[Profile],
    *,
    continued: int = 0,
    current_s: float = 1.0,
    weighed: bool = True,
    step_bytes: float = 0.0,
    quick: bool = False,
) -> Story:
    """A plan serves in 1 s; another one is predicted to take 0.5 s, of which 0.4 s are b's work."""
    story = Story(step_bytes=step_bytes)
    story.serve(plan(1.0, a=1.0))
    story.continued = continued
    story.book.learn(measured)
    story.entry = story.cutover.plans.deployment
    story.cutover.plans.planning.look(replace(story.orders[-1].key, disappointed="news"), story.now)
    story.cutover.plans.disappointed = (story.orders[-1].key, "news")
    story.step()
    assert story.orders[-1].current == plan(1.0, a=1.0)
    story.answer(plan(0.5, a=0.3, b=0.4), current_s=current_s, quick=quick)
    story.step()
    assert story.prepared[-1].weighed == weighed
    story.step()
    return story


def test_the_first_plan_serves_without_being_timed() -> None:
    story = Story()
    story.serve(plan(1.0, a=1.0))
    assert not story.prepared[0].weighed


def test_what_a_quick_search_found_is_not_timed_before_it_serves_but_what_is_known_of_it_counts() -> None:
    assert serves(better_offered([], weighed=False, quick=True)) == 0.5
    assert serves(better_offered(timed([("a", 0.3), ("b", 0.95)]), weighed=False, quick=True)) == 1.0


def test_a_candidate_that_keeps_its_promise_serves() -> None:
    story = better_offered(timed([("a", 0.3), ("b", 0.5)]))
    assert story.cutover.plans.active is not None
    assert plan_from_bytes(story.cutover.plans.active.order.plan).predicted_latency_s == 0.5


def serves(story: Story) -> float:
    assert story.cutover.plans.active is not None
    return float(plan_from_bytes(story.cutover.plans.active.order.plan).predicted_latency_s)


def test_a_better_plan_waits_for_the_end_of_sequences_as_it_would_make_all_their_steps_again() -> None:
    story = better_offered([], continued=1024)
    for _ in range(3):
        story.step()
        assert serves(story) == 1.0
        assert story.cutover.standing is not None and story.cutover.standing.state == "serving"
        assert story.cutover.standing.text.endswith(
            "; a faster plan is ready, and waits for sequences to end"
        )
    story.continued = 0
    story.step()
    assert serves(story) == 0.5
    assert story.cutover.standing is not None and "waits" not in story.cutover.standing.text


def test_a_plan_that_was_not_made_for_the_sake_of_speed_waits_no_longer_than_texts_take() -> None:
    """Members that a division should follow have come, for example."""
    assert serves(better_offered([], current_s=math.inf, weighed=False)) == 0.5
    story = better_offered([], continued=1024, current_s=math.inf, weighed=False)
    began = story.now
    while serves(story) == 1.0:
        story.step(1.0)
        assert story.now < began + 1000
    assert story.now - began == pytest.approx(TEXTS_END_S, abs=4.0)


@pytest.mark.parametrize(
    ("steps", "step_bytes", "pause_s"),
    [
        (16, 0.0, 16 * 0.5),
        (1024, 0.0, REREADING_S),
        (1024, RATE / 100, 1024 / 100),  # The states go to other devices.
        (1024, RATE, REREADING_S),
        (1024, RATE / 1e4, 1024 / 1e4),
        (16, RATE, 16 * 0.5),  # Making the steps again takes less time.
    ],
)
def test_it_waits_until_it_would_have_gained_what_that_costs_or_most_texts_have_ended(
    steps: int, step_bytes: float, pause_s: float
) -> None:
    story = better_offered([], continued=steps, step_bytes=step_bytes)
    began = story.now
    while serves(story) == 1.0:
        story.step(1.0)
        assert story.now < began + 1000
    gained_s = pause_s / 0.5
    wait_s = max(gained_s, min(SILENCE * gained_s, TEXTS_END_S))
    assert story.now - began == pytest.approx(wait_s, abs=4.0)


def test_a_candidate_whose_segments_were_not_all_timed_serves() -> None:
    story = better_offered(timed([("b", 9.0)]))
    assert story.cutover.plans.active is not None
    assert plan_from_bytes(story.cutover.plans.active.order.plan).predicted_latency_s == 0.5


def test_a_candidate_that_falls_short_does_not_serve_and_is_not_tried_again() -> None:
    story = better_offered(timed([("a", 0.3), ("b", 0.95)]))
    assert story.cutover.plans.active is not None
    assert story.cutover.plans.active.order.plan == plan(1.0, a=1.0)
    assert story.cutover.plans.next is None
    asked = len(story.orders)
    for _ in range(5):
        story.step()
    assert [one.current for one in story.orders[asked:] if one.current] == []
    assert story.prepared[-1].epoch not in story.held


def test_a_plan_that_is_slower_than_one_device_is_planned_again_once_and_says_what_became_of_it() -> None:
    story = Story()
    split, alone = plan(0.5, a=0.3, b=0.4), plan(0.8, a=0.8)
    epoch = story.serve(split, single_s=0.8)
    asked = len(story.orders)
    assert story.cutover.note_latency(Latency("net", epoch, 0.9, MIN_REQUESTS))
    story.step()
    story.step()
    (order,) = [one for one in story.orders[asked:] if one.current]
    assert order.measured_s == 0.9 and order.key.disappointed
    story.answer(alone, current_s=0.9, single_s=0.8, note="a plan on a, b took 0.9 s")
    story.step()
    story.step()
    assert story.cutover.plans.active is not None and story.cutover.plans.active.order.plan == alone
    assert story.cutover.standing is not None
    assert story.cutover.standing.note == "a plan on a, b took 0.9 s"
    asked = len(story.orders)
    assert story.cutover.note_latency(Latency("net", story.cutover.plans.active.epoch, 1.1, MIN_REQUESTS))
    for _ in range(3):
        story.step()
    assert [one for one in story.orders[asked:] if one.current] == []  # one device it is


def test_one_device_that_a_quick_search_found_better_is_not_left_for_what_was_predicted_before() -> None:
    story = Story()
    split, alone = plan(0.5, a=0.3, b=0.4), plan(0.8, a=0.8)
    story.serve(split, single_s=0.8)
    story.links_s = 1.0  # They are measured again, and slower.
    assert settled(story).key != story.orders[0].key
    story.answer(alone, current_s=2.5, single_s=0.8, quick=True)
    story.step()
    story.activate()
    assert story.cutover.plans.active is not None and story.cutover.plans.active.order.plan == alone
    spare = replace(story.prepared[0], epoch=next(story.epochs), plan=plan(0.8, b=0.8), names=(("b", "b"),))
    story.cutover.plans.spares.add("a", PlanRollout(spare, verdict=RIGHT))  # Safety comes before speed.
    prepared = len(story.prepared)
    for _ in range(5):
        story.step()
    assert not any(one.plan == split for one in story.prepared[prepared:])


@pytest.mark.parametrize("options", [DeployOptions(strategy="bbgrap"), DeployOptions(objective="throughput")])
def test_what_was_not_chosen_for_the_latency_of_one_request_is_not_judged_by_it(
    options: DeployOptions,
) -> None:
    story = Story(replace(ENTRY, options=options))
    epoch = story.serve(plan(0.5, a=0.3, b=0.4), single_s=0.8)
    asked = len(story.orders)
    story.cutover.note_latency(Latency("net", epoch, 9.0, MIN_REQUESTS))
    story.step()
    story.step()
    assert not any(one.key.disappointed for one in story.orders[asked:])


# What devices compute like while they serve


def tell(story: Story, node: str, factor: float) -> None:
    story.book_of_drifts.learn(node, Drift("net", factor), story.now)


def settled(story: Story) -> ComputePlan:
    """The next search that compares with the plan that serves."""
    asked = len(story.orders)
    for _ in range(80):
        story.step()
        if found := [one for one in story.orders[asked:] if one.current]:
            return found[-1]
    raise AssertionError("nothing is searched for")


def test_a_device_that_slows_down_gets_less_and_status_says_so_and_it_comes_back() -> None:
    story = Story()
    split, moved = plan(0.5, a=0.3, b=0.4), plan(0.7, a=0.6, b=0.1)
    story.serve(split, chosen=b"halves")
    story.compare(split)
    tell(story, "b", 4.0)
    order = settled(story)
    assert order.key.drifts == (("b", 4.0),)
    assert (order.current, order.chosen, order.refines) == (split, b"halves", True)
    story.answer(moved, current_s=1.7, note="refined: b", chosen=b"less of b")
    story.step()
    assert story.prepared[-1].weighed
    assert story.cutover.standing is not None and story.cutover.standing.note == ""
    story.activate()
    assert story.cutover.plans.active is not None and story.cutover.plans.active.order.plan == moved
    assert story.cutover.standing.note == "refined: b"
    story.compare(moved)
    tell(story, "b", 1.0)
    order = settled(story)
    assert order.key.drifts == () and order.chosen == b"less of b" and order.refines
    story.answer(split, current_s=0.7)
    story.step()
    story.activate()
    assert story.cutover.plans.active.order.plan == split


def test_a_gain_that_is_not_worth_the_move_moves_nothing_and_is_not_searched_for_again() -> None:
    story = Story()
    split = plan(0.5, a=0.3, b=0.4)
    epoch = story.serve(split)
    story.compare(split)
    tell(story, "b", 1.0905077326652577)
    settled(story)
    story.answer(plan(0.49, a=0.31, b=0.39), current_s=0.5)
    asked = len(story.orders)
    for _ in range(100):
        story.step()
    assert story.cutover.plans.active is not None and story.cutover.plans.active.epoch == epoch
    assert len(story.orders) == asked


def test_a_refined_plan_that_falls_short_on_the_devices_leaves_the_note_of_the_one_that_serves() -> None:
    story = Story()
    split = plan(0.5, a=0.3, b=0.4)
    epoch = story.serve(split)
    story.compare(split)
    tell(story, "b", 4.0)
    settled(story)
    story.answer(plan(0.7, a=0.6, b=0.1), current_s=1.7, note="refined: b")
    slow = DEVICE.with_drift(4.0).pace
    story.book.learn(timed([("a", 2.0)]))
    story.book.learn([Profile("b", slow, DEVICE.threads, 0.1)])  # b's, as it computes now
    for _ in range(3):
        story.step()
    assert story.cutover.plans.active is not None and story.cutover.plans.active.epoch == epoch
    assert story.cutover.standing is not None and story.cutover.standing.note == ""


def test_what_is_planned_for_the_loss_of_a_device_knows_how_the_others_drift() -> None:
    story = Story()
    split = plan(0.5, a=0.3, b=0.4)
    story.serve(split)
    story.compare(split)
    tell(story, "a", 2.0)
    asked = [one.key for _ in range(80) for one in story.step() if isinstance(one, ComputePlan)]
    spares = [key for key in asked if len(key.devices) == 1 and key.drifts]
    assert [(key.devices[0][0], key.drifts) for key in spares] == [("a", (("a", 2.0),))]


def test_a_drift_lets_a_disappointing_plan_be_judged_once_more() -> None:
    story = Story()
    split, alone = plan(0.5, a=0.3, b=0.4), plan(0.8, a=0.8)
    epoch = story.serve(split, single_s=0.8)
    story.cutover.note_latency(Latency("net", epoch, 0.9, MIN_REQUESTS))
    settled(story)
    story.answer(alone, current_s=0.9, single_s=0.8, note="a plan on a, b took 0.9 s")
    story.step()
    story.activate()
    story.compare(alone)
    tell(story, "a", 2.0)
    order = settled(story)
    assert order.key.disappointed == "" and order.key.drifts and order.refines
    assert story.cutover.standing is not None
    assert story.cutover.standing.note == "a plan on a, b took 0.9 s"  # still so
    story.answer(split, current_s=1.6, single_s=1.6)
    story.step()
    story.activate()
    assert story.cutover.plans.active is not None and story.cutover.plans.active.order.plan == split
    story.compare(split)
    story.cutover.note_latency(Latency("net", story.cutover.plans.active.epoch, 1.9, MIN_REQUESTS))
    assert settled(story).key.disappointed
