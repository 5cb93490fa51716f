"""A box that others load, and what a whole cluster makes of it: real rules of timing and of starvation on one box, virtual
time, fake shells."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import pytest

from edgepart.agent.cluster.state.events import Event, StarvationSeen
from edgepart.agent.cluster.state.profiles import ProfileBook
from edgepart.agent.execution.counters import SegmentTime
from edgepart.agent.measure.cpu_wait import CpuWaitWatch
from edgepart.agent.measure.segment_times import LOOK_S, RECENT_RUNS, SegmentTimer
from edgepart.agent.measure.starvation import StarvationTiming, ThreadTimes
from edgepart.agent.wire.control import SUSPECT, Starved
from edgepart.agent.wire.inference import Epoch
from edgepart.planner.devices.cluster import Device
from edgepart.planner.plans.plan import Program, Run, Segment
from tests.agent.cluster.test_cluster_stories import calm, sees
from tests.agent.cluster.test_drift_stories import searches
from tests.simulation.cluster import SimNet, node_id

A, B, C = map(node_id, range(1, 4))
ALONE_S = 0.1
"""What a segment takes where nothing else runs."""
RUNS = 10
"""Between two looks."""
PROGRAM = Program("c", (Run(0),), (Segment("d1", b"", (), (), (), (), 1.0, 0.0, 0, ALONE_S),), 0, 0)
SHORT_S, LONG_S = 60.0, StarvationTiming().lasting_s + 60.0


class Loaded:
    """Box C, which computes all the time."""

    def __init__(self, net: SimNet) -> None:
        self.net = net
        self._times = (0, 0)
        self._runs = 0
        self._recent: deque[float] = deque(maxlen=RECENT_RUNS)
        self._starving = CpuWaitWatch(lambda: (), self._post, self._read, lambda: net.now)
        device = Device("c", "box", 1e9, 1e9, 1e9)
        self._timing = SegmentTimer(C, device, 0.0, ProfileBook(), net.core(C).drifts, self._post)

    def _post(self, event: Event) -> None:
        self.net.give(self.net.boxes[C], event)

    def _read(self, processes: Iterable[int]) -> ThreadTimes:
        return {1: self._times}

    def runs(self, seconds: float, *, share: float = 0.0) -> None:
        """So long, while it waits that share of the time for a CPU."""
        takes_s = ALONE_S / (1 - share)
        for _ in range(round(seconds / LOOK_S)):
            self.net.run(LOOK_S)
            self._runs += RUNS
            self._recent.extend([takes_s] * RUNS)
            ran, waited = self._times
            self._times = ran + round(RUNS * ALONE_S * 1e9), waited + round(RUNS * (takes_s - ALONE_S) * 1e9)
            took = {("net", "d1"): SegmentTime(self._runs, 0.0, ALONE_S, self._recent.copy())}
            spoilt = self._starving.look()
            for event in self._timing._confirm_events({"net": (Epoch(1, 1), PROGRAM)}, took, spoilt=spoilt):
                self._post(event)

    def seen(self) -> set[Starved]:
        """As all boxes see it."""
        return {self.net.core(node).membership.starvation_of(C, self.net.now) for node in self.net.boxes}


@pytest.mark.parametrize("seed", range(3))
def test_a_load_of_a_minute_moves_nothing_and_everybody_knows_of_it(seed: int) -> None:
    net = calm(3, seed)
    found, box = searches(net), Loaded(net)
    box.runs(20.0)
    assert box.seen() == {Starved()}
    box.runs(SHORT_S, share=0.7)
    (seen,) = box.seen()
    assert seen.share == pytest.approx(0.7, abs=0.1) and not seen.lasting
    box.runs(120.0)
    assert box.seen() == {Starved()}
    assert found == []
    assert not net.settled_faults()


def test_the_same_load_without_a_word_of_the_system_would_move_work() -> None:
    net = calm(3, 1)
    found, box = searches(net), Loaded(net)
    box._read = lambda processes: {}  # type: ignore[method-assign]
    box._starving._times = box._read
    box.runs(20.0)
    box.runs(SHORT_S, share=0.7)
    assert found


def test_a_load_that_lasts_moves_work_and_back_when_it_is_over() -> None:
    net = calm(3, 2)
    found, box = searches(net), Loaded(net)
    box.runs(20.0)
    box.runs(LONG_S, share=0.7)
    (seen,) = box.seen()
    assert seen.lasting
    ((node, drift),) = found[-1].key.drifts
    assert node == C and drift == pytest.approx(1 / 0.3, rel=0.1)
    box.runs(300.0)
    assert found[-1].key.drifts == ()
    assert box.seen() == {Starved()}


def test_many_short_loads_are_none_that_lasts() -> None:
    net = calm(3, 0)
    found, box = searches(net), Loaded(net)
    for _ in range(10):
        box.runs(40.0, share=0.7)
        box.runs(20.0)
    assert found == []


@pytest.mark.parametrize("said", [True, False])
def test_a_starved_box_that_is_silent_for_some_seconds_is_no_dead_one(said: bool) -> None:
    for seed in range(5):
        net = calm(3, seed, deployed=False)
        if said:
            net.give(net.boxes[C], StarvationSeen(Starved(0.9)))
        net.run(1.0)
        states: set[str] = set()
        net.stall(C, 4.5)
        for _ in range(90):
            net.run(0.1)
            rows = net.core(A).membership.members()
            states |= {member.status for member in rows if member.node == C} or {"gone"}
        assert (states == {"alive"}) == said
        assert said or states & {SUSPECT, "gone"}
        net.until(lambda net=net: sees(net, A, B, C), 10)  # type: ignore[misc]
