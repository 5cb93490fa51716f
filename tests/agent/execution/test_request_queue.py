"""Request queue: whose turn it is, without threads and in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from edgepart.agent.execution.copies import Scratch
from edgepart.agent.execution.counters import Counters
from edgepart.agent.execution.device_programs import DevicePrograms
from edgepart.agent.execution.lanes import EXCLUSIVE_STEP_S
from edgepart.agent.execution.nchwc_array import PLAIN
from edgepart.agent.execution.request_queue import QueueLimits, RequestQueue
from edgepart.agent.execution.schedule import ReadyStep
from edgepart.agent.execution.sequences import KeptSequences
from edgepart.agent.execution.tasks import TRIAL_WAITS_S, RequestTask, StepKind, make_installed
from edgepart.agent.wire.inference import Epoch, Failed, Tensors
from edgepart.agent.wire.tensors import Value, value_bytes
from edgepart.planner.plans.plan import Program, Run
from edgepart.planner.region import Array
from tests.agent import handmade

EPOCH = Epoch(3, 1)
GATE = "gate"
PLAN = handmade.split_plan()


class StillProgram:
    """A prepared program whose runs nobody asks for."""

    dtypes: Mapping[str, np.dtype[Any]] = {}
    kept = PLAIN

    def __init__(self, program: Program) -> None:
        self.program = program
        self.stopped = 0

    def run(
        self,
        segment: int,
        inputs: Sequence[Value],
        wanted: Callable[[], bool] = lambda: True,
        overwrites: Sequence[tuple[int, int]] = (),
    ) -> list[Value]:
        raise NotImplementedError

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.empty(shape, dtype)

    def stop(self) -> None:
        self.stopped += 1

    def scratch(self) -> Scratch:
        return Scratch()

    def best_s(self, segment: int, budget_s: float) -> float | None:
        return None


class StillLane:
    """A lane without a thread, which counts how often it is woken."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.task: RequestTask | None = None
        self.began_s = 0.0
        self.unblocked = ("", -1)
        self.woken = 0

    def has_turn(self, now: float) -> bool:
        return self.task is not None and now < self.began_s + EXCLUSIVE_STEP_S

    def wake(self) -> None:
        self.woken += 1


class Device:
    """Device "c" of the plan, which sums what comes from "a" and "b", for each of these deployments."""

    def __init__(self, *deployments: str) -> None:
        self.now = 0.0
        self.programs = DevicePrograms()
        self.lanes = {name: StillLane(name) for name in deployments}
        self.queue = RequestQueue(
            QueueLimits(requests=3),
            self.programs,
            KeptSequences(),
            Counters(),
            self.lanes,
            lambda: self.now,
        )
        self.prepared = StillProgram(PLAN.programs["c"])
        for name in deployments:
            installed = make_installed(name, self.prepared, PLAN.transfers, handmade.NODES)
            self.programs.install((name, EPOCH), {StepKind.USUAL: installed}, None)

    def take(self, deployment: str, request: str, *transfers: int, exact: bool = False) -> list[Failed]:
        """Deliver these transfers of a request; returns what goes back to its gateway."""
        failed: list[Failed] = []
        for number in transfers:
            message = Tensors(deployment, EPOCH, f"{GATE}/0/{request}", number, (), exact)
            values = [np.zeros((1, 2, 4, 6), np.float32)]
            out = self.queue.take(message, values, "", sum(map(value_bytes, values)))
            failed += [message for _, message, _ in out if isinstance(message, Failed)]
        return failed

    def next_of(self, deployment: str) -> str | None:
        """The request whose step is this deployment's to do now."""
        found = self.queue.next_step(self.lanes[deployment], self.now)
        if found is None:
            return None
        task, work = found
        assert isinstance(work, ReadyStep) and isinstance(work.step, Run)
        return task.request.rpartition("/")[2]

    def woken(self) -> dict[str, int]:
        """How often each lane was woken since the last call."""
        found = {name: lane.woken for name, lane in self.lanes.items()}
        for lane in self.lanes.values():
            lane.woken = 0
        return found


def test_the_last_transfer_that_a_step_needs_wakes_the_lane() -> None:
    device = Device("m")
    assert not device.take("m", "r", 6)
    assert device.woken() == {"m": 0} and device.next_of("m") is None
    assert not device.take("m", "r", 7)
    assert device.woken() == {"m": 1} and device.lanes["m"].unblocked == (f"{GATE}/0/r", 7)
    assert device.next_of("m") == "r"
    assert device.next_of("m") is None, "Its step is being done."


def test_the_oldest_request_that_can_continue_is_next() -> None:
    device = Device("m")
    device.take("m", "waits", 6)
    device.take("m", "second", 6, 7)
    device.take("m", "third", 6, 7)
    assert device.take("m", "fourth", 6)[0].stale, "Three may be under way."
    assert [device.next_of("m") for _ in range(3)] == ["second", "third", None]
    device.take("m", "waits", 7)
    assert device.next_of("m") == "waits"


def test_a_request_that_tries_a_plan_lets_later_ones_go_first_for_a_while() -> None:
    device = Device("m")
    device.take("m", "trial", 6, 7, exact=True)
    device.now = 0.5 * TRIAL_WAITS_S
    device.take("m", "soon", 6, 7)
    device.now = 1.5 * TRIAL_WAITS_S
    device.take("m", "late", 6, 7)
    assert [device.next_of("m") for _ in range(3)] == ["soon", "trial", "late"]


def test_a_step_has_the_device_to_itself_until_it_has_taken_long() -> None:
    device = Device("m", "n")
    device.take("m", "first", 6, 7)
    device.take("n", "second", 6, 7)
    device.woken()
    assert device.next_of("n") is None and device.woken() == {"m": 1, "n": 0}
    assert device.next_of("m") == "first"
    lane = device.lanes["m"]
    lane.task = device.queue.tasks[f"{GATE}/0/first"]
    assert device.next_of("n") is None and device.woken() == {"m": 0, "n": 0}
    device.now = EXCLUSIVE_STEP_S
    assert device.next_of("n") == "second"


def test_only_who_has_a_part_in_a_request_can_end_it_by_contradicting_it() -> None:
    device = Device("m")
    device.take("m", "r", 6)
    for contradiction in (
        Tensors("m", Epoch(3, 2), f"{GATE}/0/r", 7, ()),
        Tensors("n", EPOCH, f"{GATE}/0/r", 7, ()),
        Tensors("m", EPOCH, f"{GATE}/0/r", 7, (), likely=1),
    ):
        assert device.queue.take(contradiction, [], "node-a", 0) == (), "The plan has it come from b."
        assert f"{GATE}/0/r" in device.queue.tasks
    ((_, failed, _),) = device.queue.take(Tensors("m", Epoch(3, 2), f"{GATE}/0/r", 7, ()), [], "node-b", 0)
    assert isinstance(failed, Failed) and not device.queue.tasks


def test_a_request_whose_step_is_being_done_is_stopped_with_it() -> None:
    device = Device("m")
    device.take("m", "r", 6, 7)
    device.queue.cancel(f"{GATE}/0/another")
    assert device.next_of("m") == "r" and device.prepared.stopped == 0
    device.lanes["m"].task = device.queue.tasks[f"{GATE}/0/r"]
    device.queue.cancel(f"{GATE}/0/r")
    assert device.prepared.stopped == 1 and not device.queue.tasks
    assert not device.take("m", "r", 6), "Frames that come late are ignored."
    assert not device.queue.tasks
