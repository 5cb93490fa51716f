"""Simulation: one request's way through a schedule on a cluster, by discrete events. Rules only: virtual time,
no clock.

A device takes its steps in order and computes one segment at a time; sending does not keep it from computing.
What is sent goes through planner/simulation/network.py. The gateway lives on one of the devices and shares that device's
network card; between it and its own device data crosses the `LOCAL` link.

Since one request's steps depend on nothing but what arrives, a device is followed through its steps as far as it
can go; only messages are events. Many requests at a time are planner/simulation/throughput.py's.

Of a plan with replicas each is simulated by itself: one request goes to one of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from itertools import chain
from typing import TypeVar, cast

from edgepart.planner.cost.cost import Cost
from edgepart.planner.devices.cluster import Cluster
from edgepart.planner.errors import InternalError
from edgepart.planner.plans.balance_requests import deal
from edgepart.planner.plans.join import join_schedules, split
from edgepart.planner.plans.plan import GATEWAY, Plan, Receive, Replica, Run, Send, Transfer
from edgepart.planner.plans.reduced_precision import converted_bytes
from edgepart.planner.plans.timeline import Busy, Compute, MessageTimes, TimedSchedule, timelines
from edgepart.planner.simulation.fair_share import LinkDirection
from edgepart.planner.simulation.network import Events, LinkDirections, Network, local_s

V = TypeVar("V")


@dataclass(frozen=True)
class Simulation:
    """What would happen."""

    schedule: TimedSchedule
    latency_s: float
    """From the request's arrival at the gateway to the last output there."""
    compute_s: Mapping[str, float]
    """By device."""
    loads_s: Mapping[tuple[str, ...], float]
    """Seconds that one request keeps each thing busy that all requests share: ("compute", device), ("send", device)
    and ("receive", device) for its network card, ("link", source, target) and ("medium", name). With replicas, of the
    request that keeps it busy longest."""
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
    request_bytes: Mapping[str, int] = field(default_factory=dict)
    """By device, the most that one request takes besides."""
    replicas: tuple[Simulation, ...] = ()
    """Of each replica, one request there; () where all devices answer together. Times of devices and messages are then
    those of a request that goes to their replica."""

    @property
    def most_per_s(self) -> float:
        """Requests a second at most, however many are in flight: the busiest thing has no more time."""
        if self.replicas:
            return min(self._most_through(thing) for thing in self.loads_s) if self.loads_s else float("inf")
        load = max(self.loads_s.values(), default=0.0)
        return 1 / load if load else float("inf")

    def _most_through(self, thing: tuple[str, ...]) -> float:
        """Requests a second, were `thing` the only one that replicas share: those that need it least go first."""
        left, found = 1.0, 0.0
        for load, most in sorted((one.loads_s.get(thing, 0.0), one.most_per_s) for one in self.replicas):
            rate = min(most, left / load) if load else most
            found, left = found + rate, left - rate * load
        return found

    @cached_property
    def paces(self) -> tuple[Replica, ...]:
        """The replicas, as requests are dealt out to them; () where there are none."""
        return tuple(
            Replica(tuple(one.schedule.steps), one.latency_s, 1 / one.most_per_s) for one in self.replicas
        )

    def loads_of(self, parts: Sequence[float]) -> Mapping[tuple[str, ...], float]:
        """Seconds that a request keeps each thing busy on average, where each replica gets that part of them."""
        if not self.replicas:
            return self.loads_s
        found: dict[tuple[str, ...], float] = {}
        for one, part in zip(self.replicas, parts, strict=True):
            for thing, seconds in one.loads_s.items():
                found[thing] = found.get(thing, 0.0) + part * seconds
        return found

    @cached_property
    def timeline(self) -> Mapping[str, tuple[Busy, ...]]:
        """By device: what it computes and sends, and when it has to wait for data, by start."""
        return timelines(self.schedule, self.departures_s, self.sent_s, self.arrivals_s)


def schedule_of(plan: Plan, cost: Cost | None = None) -> TimedSchedule:
    """The plan's steps with their seconds; measured ones, where `cost` has a profile of the segment, and with what is
    known of the devices now."""
    steps: dict[str, list[Receive | Compute | Send]] = {}
    for device, program in plan.programs.items():
        steps[device] = []
        for step in program.steps:
            if isinstance(step, Run):
                segment = program.segments[step.segment]
                seconds = cost.running_s(program, segment) if cost else segment.compute_s
                steps[device].append(Compute(seconds, _label(segment.operators)))
            elif isinstance(step, Receive):
                steps[device] += [step, *_rounding(plan.transfers[step.transfer], device, cost)]
            else:
                steps[device] += [*_rounding(plan.transfers[step.transfer], device, cost), step]
    messages = [MessageTimes(t.source, t.target, t.nbytes) for t in plan.transfers]
    return TimedSchedule(steps, messages, tuple(replica.devices for replica in plan.replicas))


def _rounding(transfer: Transfer, device: str, cost: Cost | None) -> Iterator[Compute]:
    """At either end of a transfer."""
    if transfer.dtypes and cost is not None:
        sizes = (piece.region.size for piece in transfer.pieces)
        nbytes = converted_bytes(zip(transfer.dtypes, sizes, strict=True))
        yield Compute(cost.copy_s(device, nbytes), "rounding")


def simulate(plan: Plan, cluster: Cluster, gateway: str, cost: Cost | None = None) -> Simulation:
    """One request through `plan`, entering at the device `gateway`."""
    found = run_schedule(schedule_of(plan, cost), cluster, gateway)
    parts = tuple(_with_memory(one, plan) for one in found.replicas)
    return replace(_with_memory(found, plan), replicas=parts)


def _with_memory(found: Simulation, plan: Plan) -> Simulation:
    programs = {device: plan.programs[device] for device in found.schedule.steps}
    peaks = {device: program.peak_memory_bytes for device, program in programs.items()}
    kept = {device: program.kept_bytes for device, program in programs.items()}
    each = {device: program.request_bytes for device, program in programs.items()}
    return replace(found, peak_memory_bytes=peaks, kept_bytes=kept, request_bytes=each)


def run_schedule(schedule: TimedSchedule, cluster: Cluster, gateway: str) -> Simulation:
    """InternalError where the schedule cannot come to an end: a device waits for what is never sent."""
    if not schedule.replicas:
        return _LatencyState(schedule, cluster, gateway).run()
    alone = split(schedule)
    joined = together([_LatencyState(one, cluster, gateway).run() for one, _ in alone])
    order = [number for _, numbers in alone for number in numbers]
    places = sorted(range(len(order)), key=order.__getitem__)
    return replace(
        joined,
        schedule=schedule,
        departures_s=tuple(joined.departures_s[at] for at in places),
        sent_s=tuple(joined.sent_s[at] for at in places),
        arrivals_s=tuple(joined.arrivals_s[at] for at in places),
    )


def together(replicas: Sequence[Simulation]) -> Simulation:
    """Of a plan that has these replicas. A request that is alone goes where it is done first."""

    def merged(maps: Iterable[Mapping[str, V]]) -> dict[str, V]:
        return {name: value for one in maps for name, value in one.items()}

    def all_of(times: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(chain.from_iterable(times))

    loads: dict[tuple[str, ...], float] = {}
    for one in replicas:
        for thing, seconds in one.loads_s.items():
            loads[thing] = max(seconds, loads.get(thing, 0.0))
    found = Simulation(
        schedule=join_schedules(one.schedule for one in replicas),
        latency_s=0.0,
        compute_s=merged(one.compute_s for one in replicas),
        loads_s=loads,
        sent_bytes=merged(one.sent_bytes for one in replicas),
        received_bytes=merged(one.received_bytes for one in replicas),
        departures_s=all_of(one.departures_s for one in replicas),
        sent_s=all_of(one.sent_s for one in replicas),
        arrivals_s=all_of(one.arrivals_s for one in replicas),
        peak_memory_bytes=merged(one.peak_memory_bytes for one in replicas),
        kept_bytes=merged(one.kept_bytes for one in replicas),
        request_bytes=merged(one.request_bytes for one in replicas),
        replicas=tuple(replicas),
    )
    first = deal(found.paces, [0] * len(replicas))
    return replace(found, latency_s=replicas[first].latency_s)


class _LatencyState:
    """The state of one simulation. An event's code is a way's, or a device's number."""

    def __init__(self, schedule: TimedSchedule, cluster: Cluster, gateway: str) -> None:
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

    def __init__(self, way: LinkDirection | None) -> None:
        self.way = way
        """None between the gateway and its own device."""
        self.nbytes = 0


@dataclass(frozen=True)
class Announced:
    """The messages of a schedule, as they will go; their ways know what they will carry."""

    ways: Sequence[LinkDirection | None]
    """By message."""
    volumes: Sequence[float]
    """By message, its bytes; on a way with its fixed cost."""
    inputs: Sequence[int]
    """Messages that the gateway sends."""
    outputs: Sequence[int]
    """Messages to the gateway."""
    between: Mapping[tuple[str, str], Between]
    """By source and target as the messages name them."""


def announced(schedule: TimedSchedule, known: LinkDirections, gateway: str) -> Announced:
    """Looks at every message once."""
    between: dict[tuple[str, str], Between] = {}
    ways: list[LinkDirection | None] = []
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
