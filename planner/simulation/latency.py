"""Latency: simulates one request through a schedule on a cluster, by discrete events in virtual time. Pure
rules.

A device runs its steps in order and computes one segment at a time; it can compute while it sends. Messages
go through planner/simulation/network.py. The gateway is on one of the devices and shares that device's
network card. Between the gateway and its own device, data crosses the `LOCAL` link.

The steps of one request depend only on arrivals, so a device is followed through its steps as far as it can
go, and only messages are events. Many requests at a time are simulated by planner/simulation/throughput.py.

If a plan has replicas, each is simulated alone, because a request goes to one of them."""

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
from edgepart.planner.plans.balance_requests import choose_replica
from edgepart.planner.plans.join import join_schedules, split_schedule
from edgepart.planner.plans.plan import GATEWAY, Plan, Receive, Replica, Run, Send, Transfer
from edgepart.planner.plans.reduced_precision import rounding_copy_bytes
from edgepart.planner.plans.timeline import Compute, MessageTimes, TimedSchedule, TimelineBar, timelines
from edgepart.planner.simulation.fair_share import LinkDirection
from edgepart.planner.simulation.network import Events, LinkDirections, Network, local_transfer_s

V = TypeVar("V")


@dataclass(frozen=True)
class Simulation:
    """The predicted course of one request."""

    schedule: TimedSchedule
    latency_s: float
    """Seconds from the request's arrival at the gateway to the last output there."""
    compute_s: Mapping[str, float]
    """Seconds of computing, by device."""
    loads_s: Mapping[tuple[str, ...], float]
    """Seconds that one request occupies each resource that all requests share: ("compute", device), ("send", device)
    and ("receive", device) for its network card, ("link", source, target) and ("medium", name). With replicas, the
    seconds of the replica whose requests occupy it longest."""
    sent_bytes: Mapping[str, int]
    """Bytes that each device sends to other devices and to the gateway, without the bytes that the gateway
    itself sends."""
    received_bytes: Mapping[str, int]
    departures_s: tuple[float, ...]
    """The time at which the first byte of each transfer left, by transfer number."""
    sent_s: tuple[float, ...]
    """The time at which the last byte of each transfer left, by transfer number."""
    arrivals_s: tuple[float, ...]
    """The time at which all of each transfer had arrived, by transfer number."""
    peak_memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """The peak that the plan predicts for one request, by device."""
    kept_bytes: Mapping[str, int] = field(default_factory=dict)
    """The part of each device's peak that all requests share: sessions and their weights."""
    request_bytes: Mapping[str, int] = field(default_factory=dict)
    """The most additional memory that one request takes, by device."""
    replicas: tuple[Simulation, ...] = ()
    """The simulation of a request on each replica; () if all devices answer together. Times of devices and
    messages are those of a request that goes to their replica."""

    @property
    def most_per_s(self) -> float:
        """An upper bound on requests per second, however many are in flight; the busiest resource limits it."""
        if self.replicas:
            return min(self._most_through(thing) for thing in self.loads_s) if self.loads_s else float("inf")
        load = max(self.loads_s.values(), default=0.0)
        return 1 / load if load else float("inf")

    def _most_through(self, thing: tuple[str, ...]) -> float:
        """Requests per second if `thing` were the only resource that replicas share. Replicas that load it
        least come first."""
        left, found = 1.0, 0.0
        for load, most in sorted((one.loads_s.get(thing, 0.0), one.most_per_s) for one in self.replicas):
            rate = min(most, left / load) if load else most
            found, left = found + rate, left - rate * load
        return found

    @cached_property
    def paces(self) -> tuple[Replica, ...]:
        """The replicas with the paces that balance requests between them; () if there are none."""
        return tuple(
            Replica(tuple(one.schedule.steps), one.latency_s, 1 / one.most_per_s) for one in self.replicas
        )

    def loads_of(self, parts: Sequence[float]) -> Mapping[tuple[str, ...], float]:
        """Average seconds that a request occupies each resource, if the replicas get these `parts` of the requests."""
        if not self.replicas:
            return self.loads_s
        found: dict[tuple[str, ...], float] = {}
        for one, part in zip(self.replicas, parts, strict=True):
            for thing, seconds in one.loads_s.items():
                found[thing] = found.get(thing, 0.0) + part * seconds
        return found

    @cached_property
    def timeline(self) -> Mapping[str, tuple[TimelineBar, ...]]:
        """The times at which each device computes, sends, and waits for data, sorted by start."""
        return timelines(self.schedule, self.departures_s, self.sent_s, self.arrivals_s)


def time_schedule(plan: Plan, cost: Cost | None = None) -> TimedSchedule:
    """The plan's steps with their seconds: those of `cost`, which knows profiles and the present state of the
    devices, or else those in the plan."""
    steps: dict[str, list[Receive | Compute | Send]] = {}
    for device, program in plan.programs.items():
        steps[device] = []
        for step in program.steps:
            if isinstance(step, Run):
                segment = program.segments[step.segment]
                seconds = cost.running_s(program, segment) if cost else segment.compute_s
                steps[device].append(Compute(seconds, _label(segment.operators)))
            elif isinstance(step, Receive):
                steps[device] += [step, *_rounding_step(plan.transfers[step.transfer], device, cost)]
            else:
                steps[device] += [*_rounding_step(plan.transfers[step.transfer], device, cost), step]
    messages = [MessageTimes(t.source, t.target, t.nbytes) for t in plan.transfers]
    return TimedSchedule(steps, messages, tuple(replica.devices for replica in plan.replicas))


def _rounding_step(transfer: Transfer, device: str, cost: Cost | None) -> Iterator[Compute]:
    """The step that rounds a transfer's pieces on `device`, or converts them back; none if nothing is rounded."""
    if transfer.dtypes and cost is not None:
        sizes = (piece.region.size for piece in transfer.pieces)
        nbytes = rounding_copy_bytes(zip(transfer.dtypes, sizes, strict=True))
        yield Compute(cost.copy_s(device, nbytes), "rounding")


def simulate(plan: Plan, cluster: Cluster, gateway: str, cost: Cost | None = None) -> Simulation:
    """Simulates one request through `plan`, which enters at the device `gateway`."""
    found = run_schedule(time_schedule(plan, cost), cluster, gateway)
    parts = tuple(_with_memory(one, plan) for one in found.replicas)
    return replace(_with_memory(found, plan), replicas=parts)


def _with_memory(found: Simulation, plan: Plan) -> Simulation:
    programs = {device: plan.programs[device] for device in found.schedule.steps}
    peaks = {device: program.peak_memory_bytes for device, program in programs.items()}
    kept = {device: program.kept_bytes for device, program in programs.items()}
    each = {device: program.request_bytes for device, program in programs.items()}
    return replace(found, peak_memory_bytes=peaks, kept_bytes=kept, request_bytes=each)


def run_schedule(schedule: TimedSchedule, cluster: Cluster, gateway: str) -> Simulation:
    """Simulates one request through `schedule`. Raises InternalError if the schedule cannot end because a
    device waits for ever."""
    if not schedule.replicas:
        return _LatencyState(schedule, cluster, gateway).run()
    alone = split_schedule(schedule)
    joined = combine_replicas([_LatencyState(one, cluster, gateway).run() for one, _ in alone])
    order = [number for _, numbers in alone for number in numbers]
    places = sorted(range(len(order)), key=order.__getitem__)
    return replace(
        joined,
        schedule=schedule,
        departures_s=tuple(joined.departures_s[at] for at in places),
        sent_s=tuple(joined.sent_s[at] for at in places),
        arrivals_s=tuple(joined.arrivals_s[at] for at in places),
    )


def combine_replicas(replicas: Sequence[Simulation]) -> Simulation:
    """The simulation of a plan that has these replicas. Its latency is that of the replica that answers first."""

    def merge(maps: Iterable[Mapping[str, V]]) -> dict[str, V]:
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
        compute_s=merge(one.compute_s for one in replicas),
        loads_s=loads,
        sent_bytes=merge(one.sent_bytes for one in replicas),
        received_bytes=merge(one.received_bytes for one in replicas),
        departures_s=all_of(one.departures_s for one in replicas),
        sent_s=all_of(one.sent_s for one in replicas),
        arrivals_s=all_of(one.arrivals_s for one in replicas),
        peak_memory_bytes=merge(one.peak_memory_bytes for one in replicas),
        kept_bytes=merge(one.kept_bytes for one in replicas),
        request_bytes=merge(one.request_bytes for one in replicas),
        replicas=tuple(replicas),
    )
    first = choose_replica(found.paces, [0] * len(replicas))
    return replace(found, latency_s=replicas[first].latency_s)


class _LatencyState:
    """The state of one simulation. The code of an event is the code of a link direction (below 0), or a
    device's number."""

    def __init__(self, schedule: TimedSchedule, cluster: Cluster, gateway: str) -> None:
        self.schedule, self.cluster, self.gateway = schedule, cluster, gateway
        self.events: Events = []
        self.network = Network(cluster, self.events)
        self.rest = [iter(steps) for steps in schedule.steps.values()]
        """The steps that each device has not reached yet."""
        self.sending = [-1] * len(self.rest)
        """The message that each device is about to send."""
        self.ended = [False] * len(self.rest)
        self.local_s = [0.0] * len(self.rest)
        """The time up to which each device was followed."""
        count = len(schedule.messages)
        self.waiting = [-1] * count
        """The device that waits for each message; -1 if none does."""
        self.departures: list[float | None] = [None] * count
        self.sent: list[float | None] = [None] * count
        self.arrivals: list[float | None] = [None] * count
        self.compute_s = [0.0] * len(self.rest)
        self.announced = announce_messages(schedule, self.network.known, gateway)
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
        """Runs the device's steps from time `then` on, until a step waits for a message or sends later than `now`."""
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
        """Sends a message between the gateway and its own device."""
        self.departures[number] = self.sent[number] = now
        self._arrive(number, now + local_transfer_s(self.volumes[number]), now)

    def _arrive(self, number: int, when: float, now: float) -> None:
        """Records at `now` that the message arrives at `when`, and follows the device that waits for it."""
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
            raise InternalError(f"the plan does not end: {sorted(stuck)} wait, transfers {lost} never arrive")
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


class EndpointTraffic:
    """The sum of all messages between two ends."""

    __slots__ = ("nbytes", "way")

    def __init__(self, way: LinkDirection | None) -> None:
        self.way = way
        """The link direction; None between the gateway and its own device."""
        self.nbytes = 0


@dataclass(frozen=True)
class AnnouncedMessages:
    """The messages of a schedule with their link directions, before the simulation starts."""

    ways: Sequence[LinkDirection | None]
    """The link direction of each message; None between the gateway and its own device."""
    volumes: Sequence[float]
    """The bytes of each message; on a link direction, the fixed cost is included as bytes."""
    inputs: Sequence[int]
    """Numbers of the messages that the gateway sends."""
    outputs: Sequence[int]
    """Numbers of the messages to the gateway."""
    between: Mapping[tuple[str, str], EndpointTraffic]
    """The traffic by source and target, as the messages name them (GATEWAY is not replaced by its device)."""


def announce_messages(schedule: TimedSchedule, known: LinkDirections, gateway: str) -> AnnouncedMessages:
    """Assigns every message to a link direction of `known`, and adds its bytes to those announced there."""
    between: dict[tuple[str, str], EndpointTraffic] = {}
    ways: list[LinkDirection | None] = []
    volumes: list[float] = []
    inputs: list[int] = []
    outputs: list[int] = []
    for number, message in enumerate(schedule.messages):
        source, target = message.source, message.target
        one = between.get((source, target))
        if one is None:
            ends = source or gateway, target or gateway
            one = between[source, target] = EndpointTraffic(None if ends[0] == ends[1] else known.way(*ends))
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
    return AnnouncedMessages(ways, volumes, inputs, outputs, between)


def _label(operators: Sequence[str]) -> str:
    if len(operators) <= 1:
        return operators[0] if operators else "nothing"
    return f"{operators[0]} … {operators[-1]} ({len(operators)})"
