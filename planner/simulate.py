"""Simulation: a discrete-event run of one request through a schedule on a cluster. Rules only: virtual
time, no clock.

A device takes its steps in order and computes one segment at a time. Its network card sends one message
after another and receives one after another; both directions at once do not disturb each other. The gateway
lives on one of the devices and shares that device's network card; between it and its own device data
crosses the `LOCAL` link."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from edgepart.planner.cluster import Cluster, Link
from edgepart.planner.cost import Cost
from edgepart.planner.errors import InternalError
from edgepart.planner.plan import GATEWAY, Plan, Receive, Run, Send


@dataclass(frozen=True, slots=True)
class Message:
    """A transfer, as far as time is concerned."""

    source: str
    target: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Compute:
    """A step of a schedule: so many seconds of computing."""

    seconds: float
    what: str
    """For people: the operators, or the segment's number."""


@dataclass(frozen=True)
class Schedule:
    """What is simulated: a plan, or anything that is not one yet."""

    steps: Mapping[str, Sequence[Receive | Compute | Send]]
    """By device, in order."""
    messages: Sequence[Message]
    """By transfer number."""


@dataclass(frozen=True, slots=True)
class Busy:
    """One bar of a timeline."""

    start_s: float
    stop_s: float
    what: str
    kind: str
    """"compute", "send" or "wait"."""


@dataclass(frozen=True)
class Simulation:
    """What would happen."""

    latency_s: float
    """From the request's arrival at the gateway to the last output there."""
    throughput_per_s: float
    """Requests a second with enough in flight: one over the load of the busiest device, or network card."""
    timeline: Mapping[str, tuple[Busy, ...]]
    """By device: what it computes and sends, and when it has to wait for data, by start."""
    compute_s: Mapping[str, float]
    sent_bytes: Mapping[str, int]
    """By device; the gateway's traffic is not the device's, and a device's to the gateway counts."""
    received_bytes: Mapping[str, int]
    arrivals_s: tuple[float, ...]
    """By transfer number, when all of it was there."""
    departures_s: tuple[float, ...]
    """By transfer number, when its first byte left."""
    peak_memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """By device, as the plan predicts it."""


def schedule_of(plan: Plan, cost: Cost | None = None) -> Schedule:
    """The plan's steps with their seconds; measured ones, where `cost` has a profile of the segment."""
    steps: dict[str, list[Receive | Compute | Send]] = {}
    for device, program in plan.programs.items():
        steps[device] = []
        for step in program.steps:
            if isinstance(step, Run):
                segment = program.segments[step.segment]
                measured = cost.profiled_s(segment.digest, device) if cost else None
                seconds = segment.compute_s if measured is None else measured
                steps[device].append(Compute(seconds, _label(segment.operators)))
            else:
                steps[device].append(step)
    return Schedule(steps, [Message(t.source, t.target, t.nbytes) for t in plan.transfers])


def simulate(plan: Plan, cluster: Cluster, gateway: str, cost: Cost | None = None) -> Simulation:
    """One request through `plan`, entering at the device `gateway`."""
    found = run_schedule(schedule_of(plan, cost), cluster, gateway)
    peaks = {device: program.peak_memory_bytes for device, program in plan.programs.items()}
    fields = {name: getattr(found, name) for name in found.__dataclass_fields__}
    return Simulation(**fields | {"peak_memory_bytes": peaks})


def run_schedule(schedule: Schedule, cluster: Cluster, gateway: str) -> Simulation:
    """InternalError where the schedule cannot come to an end: a device waits for what is never sent."""
    return _World(schedule, cluster, gateway).run()


class _World:
    """The state of one simulation. Events are (time, order of birth, kind, what)."""

    def __init__(self, schedule: Schedule, cluster: Cluster, gateway: str) -> None:
        self.schedule = schedule
        self.cluster = cluster
        self.gateway = gateway
        self.events: list[tuple[float, int, str, int | str]] = []
        self.born = 0
        self.at = dict.fromkeys(schedule.steps, 0)
        self.waiting: dict[int, tuple[str, float]] = {}
        self.departures: list[float | None] = [None] * len(schedule.messages)
        self.arrivals: list[float | None] = [None] * len(schedule.messages)
        self.out_free: dict[str, float] = defaultdict(float)
        self.in_free: dict[str, float] = defaultdict(float)
        self.out_load: dict[str, float] = defaultdict(float)
        self.in_load: dict[str, float] = defaultdict(float)
        self.bars: dict[str, list[Busy]] = {device: [] for device in schedule.steps}

    def run(self) -> Simulation:
        for number, message in enumerate(self.schedule.messages):
            if message.source == GATEWAY:
                self._later(0.0, "send", number)
        for device in self.schedule.steps:
            self._later(0.0, "step", device)
        while self.events:
            now, _, kind, what = heappop(self.events)
            if isinstance(what, str):
                self._advance(what, now)
            elif kind == "send":
                self._depart(what, now)
            elif kind == "reach":
                self._reach(what, now)
            else:
                self._arrive(what, now)
        return self._result()

    def _later(self, when: float, kind: str, what: int | str) -> None:
        self.born += 1
        heappush(self.events, (when, self.born, kind, what))

    def _advance(self, device: str, now: float) -> None:
        steps = self.schedule.steps[device]
        while self.at[device] < len(steps):
            step = steps[self.at[device]]
            if isinstance(step, Receive):
                arrived = self.arrivals[step.transfer]
                if arrived is None:
                    self.waiting[step.transfer] = (device, now)
                    return
            elif isinstance(step, Send):
                self._depart(step.transfer, now)
            else:
                self.bars[device].append(Busy(now, now + step.seconds, step.what, "compute"))
                self.at[device] += 1
                self._later(now + step.seconds, "step", device)
                return
            self.at[device] += 1

    def _way(self, number: int) -> tuple[str, str, Link]:
        message = self.schedule.messages[number]
        source, target = message.source or self.gateway, message.target or self.gateway
        return source, target, self.cluster.link(source, target)

    def _depart(self, number: int, now: float) -> None:
        source, target, link = self._way(number)
        seconds = link.message_s + self.schedule.messages[number].nbytes / link.bytes_per_s
        start = now if source == target else max(now, self.out_free[source])
        self.departures[number] = start
        if source != target:
            self.out_free[source] = start + seconds
            self.out_load[source] += seconds
        if source in self.bars and source != target:
            self.bars[source].append(Busy(start, start + seconds, f"to {target}", "send"))
        self._later(start + link.message_s + link.latency_s, "reach", number)

    def _reach(self, number: int, now: float) -> None:
        """The first byte is at the target, whose card may still be busy with others."""
        source, target, link = self._way(number)
        seconds = link.message_s + self.schedule.messages[number].nbytes / link.bytes_per_s
        start = now if source == target else max(now, self.in_free[target])
        if source != target:
            self.in_free[target] = start + seconds
            self.in_load[target] += seconds
        self._later(start + seconds, "arrive", number)

    def _arrive(self, number: int, now: float) -> None:
        self.arrivals[number] = now
        if number in self.waiting:
            device, since = self.waiting.pop(number)
            source = self.schedule.messages[number].source
            self.bars[device].append(Busy(since, now, f"for {source or 'the request'}", "wait"))
            self._advance(device, now)

    def _result(self) -> Simulation:
        stuck = {device for device, at in self.at.items() if at < len(self.schedule.steps[device])}
        lost = [number for number, arrived in enumerate(self.arrivals) if arrived is None]
        if stuck or lost:
            raise InternalError(
                f"the plan comes to no end: {sorted(stuck)} wait, transfers {lost} never arrive"
            )
        messages = self.schedule.messages
        sent: dict[str, int] = dict.fromkeys(self.bars, 0)
        received: dict[str, int] = dict.fromkeys(self.bars, 0)
        for message in messages:
            if message.source in sent:
                sent[message.source] += message.nbytes
            if message.target in received:
                received[message.target] += message.nbytes
        compute = {
            d: sum(b.stop_s - b.start_s for b in bars if b.kind == "compute") for d, bars in self.bars.items()
        }
        load = max([*compute.values(), *self.out_load.values(), *self.in_load.values()], default=0.0)
        arrivals = tuple(a for a in self.arrivals if a is not None)
        outputs = [a for a, m in zip(arrivals, messages, strict=True) if m.target == GATEWAY]
        return Simulation(
            latency_s=max(outputs, default=0.0),
            throughput_per_s=1 / load if load else float("inf"),
            timeline={
                d: tuple(sorted(bars, key=lambda b: (b.start_s, b.stop_s))) for d, bars in self.bars.items()
            },
            compute_s=compute,
            sent_bytes=sent,
            received_bytes=received,
            arrivals_s=arrivals,
            departures_s=tuple(d for d in self.departures if d is not None),
        )


def _label(operators: Sequence[str]) -> str:
    if len(operators) <= 1:
        return operators[0] if operators else "nothing"
    return f"{operators[0]} … {operators[-1]} ({len(operators)})"
