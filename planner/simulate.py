"""Simulation: one request's way through a schedule on a cluster, by discrete events. Rules only: virtual time,
no clock.

A device takes its steps in order and computes one segment at a time; sending does not keep it from computing.
What is sent goes through planner/network.py. The gateway lives on one of the devices and shares that device's
network card; between it and its own device data crosses the `LOCAL` link.

Since one request's steps depend on nothing but what arrives, a device is followed through its steps as far as it
can go; only messages are events. Many requests at a time are planner/pipelined.py's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from typing import cast

from edgepart.planner.cluster import Cluster
from edgepart.planner.cost import Cost
from edgepart.planner.errors import InternalError
from edgepart.planner.network import Events, Network, local_s
from edgepart.planner.plan import GATEWAY, Plan, Receive, Run, Send
from edgepart.planner.sharing import Way
from edgepart.planner.timeline import Busy, Compute, Message, Schedule, timelines
from edgepart.planner.ways import Ways


@dataclass(frozen=True)
class Simulation:
    """What would happen."""

    schedule: Schedule
    latency_s: float
    """From the request's arrival at the gateway to the last output there."""
    compute_s: Mapping[str, float]
    """By device."""
    loads_s: Mapping[tuple[str, ...], float]
    """Seconds that one request keeps each thing busy that all requests share: ("compute", device), ("send", device)
    and ("receive", device) for its network card, ("link", source, target) and ("medium", name)."""
    sent_bytes: Mapping[str, int]
    """By device; the gateway's traffic is not the device's, and a device's to the gateway counts."""
    received_bytes: Mapping[str, int]
    departures_s: tuple[float, ...]
    """By transfer number, when its first byte left."""
    sent_s: tuple[float, ...]
    """By transfer number, when its last byte left."""
    arrivals_s: tuple[float, ...]
    """By transfer number, when all of it was there."""
    peak_memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """By device, as the plan predicts it for one request."""
    kept_bytes: Mapping[str, int] = field(default_factory=dict)
    """By device, the part of it that all requests share: sessions and their weights."""

    @property
    def most_per_s(self) -> float:
        """Requests a second at most, however many are in flight: the busiest thing has no more time."""
        load = max(self.loads_s.values(), default=0.0)
        return 1 / load if load else float("inf")

    @cached_property
    def timeline(self) -> Mapping[str, tuple[Busy, ...]]:
        """By device: what it computes and sends, and when it has to wait for data, by start."""
        return timelines(self.schedule, self.departures_s, self.sent_s, self.arrivals_s)


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
    kept = {device: program.kept_bytes for device, program in plan.programs.items()}
    return replace(found, peak_memory_bytes=peaks, kept_bytes=kept)


def run_schedule(schedule: Schedule, cluster: Cluster, gateway: str) -> Simulation:
    """InternalError where the schedule cannot come to an end: a device waits for what is never sent."""
    return _World(schedule, cluster, gateway).run()


class _World:
    """The state of one simulation. An event's code is a way's, or a device's number."""

    def __init__(self, schedule: Schedule, cluster: Cluster, gateway: str) -> None:
        self.schedule, self.cluster, self.gateway = schedule, cluster, gateway
        self.events: Events = []
        self.network = Network(cluster, self.events)
        self.rest = [iter(steps) for steps in schedule.steps.values()]
        """By device, what it has not come to yet."""
        self.sending = [-1] * len(self.rest)
        """By device, the message that it is about to send."""
        self.ended = [False] * len(self.rest)
        self.local_s = [0.0] * len(self.rest)
        """By device, how far it was followed."""
        count = len(schedule.messages)
        self.waiting = [-1] * count
        """By message, the device that can only go on with it."""
        self.departures: list[float | None] = [None] * count
        self.sent: list[float | None] = [None] * count
        self.arrivals: list[float | None] = [None] * count
        self.compute_s = [0.0] * len(self.rest)
        self.announced = announced(schedule, self.network.known, gateway)
        self.ways, self.volumes = self.announced.ways, self.announced.volumes

    def run(self) -> Simulation:
        for number in self.announced.inputs:
            self._send(number, 0.0)
        for device in range(len(self.rest)):
            self._follow(device, 0.0, 0.0)
        events, network, changed, now = self.events, self.network, self.network.changed, 0.0
        ways, departures, sent = network.ways, self.departures, self.sent
        while events or changed:
            if changed and (not events or events[0][0] > now):
                network.settle(now)
                continue
            now, code = heappop(events)
            if code >= 0:
                self._send(self.sending[code], now)
                self._follow(code, now, now)
                continue
            way = ways[-1 - code]
            if now != way.event:
                continue  # Overtaken by another event.
            number = network.end(way, now)
            if number >= 0:
                if way.key >= 0:
                    departures[way.key] = now
                sent[number] = now
                self._arrive(number, now + way.after_s, now)
        return self._result()

    def _follow(self, device: int, then: float, now: float) -> None:
        """Takes the device's steps from `then` on, until one needs what has not arrived, or sends later than `now`."""
        arrivals, ways, busy = self.arrivals, self.ways, self.compute_s[device]
        for step in self.rest[device]:
            if isinstance(step, Compute):
                then += step.seconds
                busy += step.seconds
            elif isinstance(step, Send):
                number = step.transfer
                if then > now:
                    self.sending[device] = number
                    heappush(self.events, (then, device))
                    break
                way = ways[number]
                if way is None:
                    self._hand_over(number, then)
                elif self.network.start(way, number, self.volumes[number], then):
                    self.departures[number] = then
            else:
                arrived = arrivals[step.transfer]
                if arrived is None:
                    self.waiting[step.transfer] = device
                    self.local_s[device] = then
                    break
                if arrived > then:
                    then = arrived
        else:
            self.ended[device] = True
        self.compute_s[device] = busy

    def _send(self, number: int, now: float) -> None:
        way = self.ways[number]
        if way is None:
            self._hand_over(number, now)
        elif self.network.start(way, number, self.volumes[number], now):
            self.departures[number] = now

    def _hand_over(self, number: int, now: float) -> None:
        """Between the gateway and its own device."""
        self.departures[number] = self.sent[number] = now
        self._arrive(number, now + local_s(self.volumes[number]), now)

    def _arrive(self, number: int, when: float, now: float) -> None:
        """It is known now that the message arrives at `when`: whoever waits for it is followed from there."""
        self.arrivals[number] = when
        device = self.waiting[number]
        if device >= 0:
            local_s = self.local_s[device]
            self._follow(device, when if when > local_s else local_s, now)

    def _result(self) -> Simulation:
        names = list(self.schedule.steps)
        stuck = [name for name, ended in zip(names, self.ended, strict=True) if not ended]
        lost = [number for number, arrived in enumerate(self.arrivals) if arrived is None]
        if stuck or lost:
            raise InternalError(
                f"the plan comes to no end: {sorted(stuck)} wait, transfers {lost} never arrive"
            )
        sent: dict[str, int] = dict.fromkeys(names, 0)
        received: dict[str, int] = dict.fromkeys(names, 0)
        for (source, target), one in self.announced.between.items():
            if source in sent:
                sent[source] += one.nbytes
            if target in received:
                received[target] += one.nbytes
        compute = dict(zip(names, self.compute_s, strict=True))
        arrivals = tuple(cast("list[float]", self.arrivals))
        return Simulation(
            schedule=self.schedule,
            latency_s=max([arrivals[number] for number in self.announced.outputs], default=0.0),
            compute_s=compute,
            loads_s={("compute", name): seconds for name, seconds in compute.items()}
            | self.network.known.loads_s(),
            sent_bytes=sent,
            received_bytes=received,
            departures_s=tuple(cast("list[float]", self.departures)),
            sent_s=tuple(cast("list[float]", self.sent)),
            arrivals_s=arrivals,
        )


class Between:
    """All messages from one place to another."""

    __slots__ = ("nbytes", "way")

    def __init__(self, way: Way | None) -> None:
        self.way = way
        """None between the gateway and its own device."""
        self.nbytes = 0


@dataclass(frozen=True)
class Announced:
    """The messages of a schedule, as they will go; their ways know what they will carry."""

    ways: Sequence[Way | None]
    """By message."""
    volumes: Sequence[float]
    """By message, its bytes; on a way with its fixed cost."""
    inputs: Sequence[int]
    """Messages that the gateway sends."""
    outputs: Sequence[int]
    """Messages to the gateway."""
    between: Mapping[tuple[str, str], Between]
    """By source and target as the messages name them."""


def announced(schedule: Schedule, known: Ways, gateway: str) -> Announced:
    """Looks at every message once."""
    between: dict[tuple[str, str], Between] = {}
    ways: list[Way | None] = []
    volumes: list[float] = []
    inputs: list[int] = []
    outputs: list[int] = []
    for number, message in enumerate(schedule.messages):
        source, target = message.source, message.target
        one = between.get((source, target))
        if one is None:
            ends = source or gateway, target or gateway
            one = between[source, target] = Between(None if ends[0] == ends[1] else known.way(*ends))
        if source == GATEWAY:
            inputs.append(number)
        if target == GATEWAY:
            outputs.append(number)
        volume = float(message.nbytes)
        one.nbytes += message.nbytes
        way = one.way
        if way is not None:
            volume += way.fixed
            way.announced += volume
        ways.append(way)
        volumes.append(volume)
    return Announced(ways, volumes, inputs, outputs, between)


def _label(operators: Sequence[str]) -> str:
    if len(operators) <= 1:
        return operators[0] if operators else "nothing"
    return f"{operators[0]} … {operators[-1]} ({len(operators)})"
