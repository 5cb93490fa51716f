"""Throughput: simulates many requests at a time through one schedule, by discrete events in virtual time.
Pure rules.

The number of requests in flight is constant: when one is answered, the next enters. A device works like an
agent's executor: of the requests that can continue, the oldest takes one step; while one waits for data,
another computes. Everything else is as for one request (planner/simulation/latency.py).

If the schedule has replicas, each request goes to one of them, by the rule that gateways use
(planner/plans/balance_requests.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from operator import gt

from edgepart.planner.devices.cluster import Cluster
from edgepart.planner.errors import InternalError
from edgepart.planner.plans.balance_requests import balance_requests, choose_replica
from edgepart.planner.plans.plan import Receive, Replica, Send
from edgepart.planner.plans.timeline import Compute, TimedSchedule
from edgepart.planner.simulation.latency import Simulation, announce_messages
from edgepart.planner.simulation.network import Events, Network, local_transfer_s

FEWEST_IN_FLIGHT, MOST_IN_FLIGHT = 4, 32
"""The bounds of the number of requests that clients are assumed to have in flight."""

ROUNDS, FEWEST_ROUNDS = 4, 2
"""Requests simulated per request in flight. The first half fills the pipeline and is not measured."""

MANY_ROUNDS = 32
"""The most rounds with replicas: unequal replicas answer at uneven times, and a request has few steps."""

MOST_STEPS = 40_000
"""The most steps that are simulated, over all requests and devices. Long plans get fewer rounds, then fewer
requests in flight."""


@dataclass(frozen=True)
class StreamResult:
    """The predicted course of many requests."""

    in_flight: int
    """The number of requests in flight."""
    throughput_per_s: float
    """Answered requests per second, once the pipeline is full."""
    answers_s: tuple[float, ...]
    """The time at which each request was answered, in the order of the answers."""
    latency_s: float
    """The median time from a request's start to its answer, over the measured requests."""
    parts: tuple[float, ...]
    """Each replica's part of the measured answers; (1.0,) if there are no replicas."""
    most_present: Mapping[str, int]
    """The most requests that had started on each device at one time and were not finished there."""
    peak_memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """Each device's peak with `most_present` requests, as if all of them reached their own peaks at the same time."""


def simulate_stream(simulation: Simulation, cluster: Cluster, gateway: str, in_flight: int) -> StreamResult:
    """Simulates the schedule of `simulation` with `in_flight` requests at a time, or fewer if that would take long."""
    schedule = simulation.schedule
    if simulation.replicas:
        # With fewer requests in flight some replicas would be idle, so long plans only get fewer rounds.
        steps = max(_steps_of(one.schedule) for one in simulation.replicas)
        flying = in_flight
        rounds = max(ROUNDS, min(MANY_ROUNDS, MOST_STEPS // max(1, steps * flying)))
    else:
        affordable = max(FEWEST_ROUNDS, MOST_STEPS // max(1, _steps_of(schedule)))
        rounds = ROUNDS if ROUNDS * in_flight <= affordable else FEWEST_ROUNDS
        flying = min(in_flight, affordable // rounds)
    found = run_requests(schedule, cluster, gateway, rounds * flying, flying, simulation.paces)
    kept = simulation.kept_bytes
    peaks = {
        device: max(simulation.peak_memory_bytes[device], kept[device] + found.most_present[device] * each)
        for device, each in simulation.request_bytes.items()
    }
    # The measured time may begin and end in the middle of a burst of answers, and so give too high a rate.
    rate = min(found.throughput_per_s, simulation.most_per_s)
    return replace(found, throughput_per_s=rate, peak_memory_bytes=peaks)


def _steps_of(schedule: TimedSchedule) -> int:
    return sum(map(len, schedule.steps.values())) + len(schedule.messages)


def fitting_in_flight(simulation: Simulation, cluster: Cluster, limit_bytes: Mapping[str, float]) -> int:
    """The number of requests in flight: the default, or as many as fit into the memory of every device at
    once, each with its own peak; at least 1. With replicas, a device needs memory only for the requests of
    its replica."""
    most = default_in_flight(cluster)
    if simulation.replicas:
        room = [_room(one, most, limit_bytes) for one in simulation.replicas]
        while most > 1 and any(map(gt, balance_requests(simulation.paces, most), room)):
            most -= 1
        return most
    return max(1, _room(simulation, most, limit_bytes))


def _room(simulation: Simulation, most: int, limit_bytes: Mapping[str, float]) -> int:
    """The number of requests that fit into the memory of every device, at most `most`."""
    for device, each in simulation.request_bytes.items():
        if each:
            most = min(most, int((limit_bytes[device] - simulation.kept_bytes[device]) // each))
    return most


def default_in_flight(cluster: Cluster) -> int:
    """The usual number of requests in flight: two per device, so that the data of one travels while the other
    computes. It is the same for every plan."""
    return max(FEWEST_IN_FLIGHT, min(MOST_IN_FLIGHT, 2 * len(cluster.devices)))


def run_requests(
    schedule: TimedSchedule,
    cluster: Cluster,
    gateway: str,
    count: int,
    in_flight: int,
    paces: Sequence[Replica] = (),
) -> StreamResult:
    """Simulates `count` requests, `in_flight` at a time. If the schedule has replicas, requests are balanced
    by `paces`. Raises InternalError if the schedule cannot end."""
    return _ThroughputState(schedule, cluster, gateway, count, paces).run(in_flight)


MISSING, ARRIVED, AWAITED = 0, 1, 2
"""The states of a message: not arrived, arrived, and not arrived while its device waits for it."""


class _StreamedRequest:
    """The progress of one request on all devices."""

    __slots__ = ("at", "began_s", "came", "outputs", "replica", "started")

    def __init__(self, world: _ThroughputState, replica: int, now: float) -> None:
        self.replica = replica
        self.at = [0] * len(world.steps)
        """The index of the request's next step on each device."""
        self.came = bytearray(len(world.ways))
        """The state of each message: MISSING, ARRIVED or AWAITED."""
        self.started = [False] * len(world.steps)
        self.outputs = world.outputs[replica]
        """The number of messages to the gateway that have not arrived."""
        self.began_s = now


class _ThroughputState:
    """The state of one simulation. The code of an event is the code of a link direction (below 0), or request
    * span + n. If n is below the number of messages, message n arrives; otherwise the device with the number
    n less the number of messages has computed."""

    def __init__(
        self, schedule: TimedSchedule, cluster: Cluster, gateway: str, count: int, paces: Sequence[Replica]
    ) -> None:
        self.schedule, self.count = schedule, count
        self.events: Events = []
        self.network = Network(cluster, self.events)
        known = announce_messages(schedule, self.network.known, gateway)
        self.ways, self.volumes = known.ways, known.volumes
        self.names = list(schedule.steps)
        self.steps = list(schedule.steps.values())
        numbers = {name: number for number, name in enumerate(self.names)}
        self.targets = [numbers.get(message.target, -1) for message in schedule.messages]
        groups = schedule.replicas or (tuple(self.names),)
        self.replicas = paces or tuple(map(Replica, groups))
        self.devices = [[numbers[name] for name in names] for names in groups]
        """The numbers of each replica's devices."""
        place = {name: n for n, names in enumerate(groups) for name in names}
        self.inputs: list[list[int]] = [[] for _ in groups]
        """The messages that the gateway sends to each replica."""
        for message in known.inputs:
            self.inputs[place[schedule.messages[message].target]].append(message)
        self.outputs = [0] * len(groups)
        """The number of messages from each replica to the gateway."""
        for message in known.outputs:
            self.outputs[place[schedule.messages[message].source]] += 1
        self.flying = [0] * len(groups)
        """The number of requests in flight on each replica."""
        self.span = len(self.ways) + len(self.steps)
        self.requests: dict[int, _StreamedRequest] = {}
        self.entered = 0
        self.ready: list[list[int]] = [[] for _ in self.steps]
        """The requests that can continue on each device, in a heap, because the oldest goes first."""
        self.busy = [False] * len(self.steps)
        self.present = [0] * len(self.steps)
        self.most_present = [0] * len(self.steps)
        self.answers: list[tuple[float, float, int]] = []
        """For each answered request: the time of the answer, its latency, and its replica."""

    def run(self, in_flight: int) -> StreamResult:
        while self.entered < min(in_flight, self.count):
            self._enter(0.0)
        events, network, changed, now = self.events, self.network, self.network.changed, 0.0
        ways, messages = network.ways, len(self.ways)
        while events or changed:
            if changed and (not events or events[0][0] > now):
                network.settle(now)
                continue
            now, code = heappop(events)
            if code < 0:
                way = ways[-1 - code]
                if now == way.event and (key := network.end(way, now)) >= 0:
                    heappush(events, (now + way.after_s, key))
                continue
            number, what = divmod(code, self.span)
            if what < messages:
                self._arrive(number, what, now)
            else:
                self._finish_compute(number, what - messages, now)
        return self._result(in_flight)

    def _enter(self, now: float) -> None:
        number, self.entered = self.entered, self.entered + 1
        replica = choose_replica(self.replicas, self.flying) if len(self.flying) > 1 else 0
        self.flying[replica] += 1
        request = self.requests[number] = _StreamedRequest(self, replica, now)
        for message in self.inputs[replica]:
            self._send(number, message, now)
        devices = self.devices[replica]
        for device in devices:
            steps = self.steps[device]
            if steps and not isinstance(steps[0], Receive):
                self._start(request, device)
            self._get_ready(number, device)
        for device in devices:
            self._go_on(device, now)
        if not request.outputs:
            self._record_answer(number, now)

    def _send(self, number: int, message: int, now: float) -> None:
        way, key = self.ways[message], number * self.span + message
        if way is None:
            heappush(self.events, (now + local_transfer_s(self.volumes[message]), key))
        else:
            self.network.start(way, key, self.volumes[message], now)

    def _start(self, request: _StreamedRequest, device: int) -> None:
        request.started[device] = True
        self.present[device] += 1
        self.most_present[device] = max(self.most_present[device], self.present[device])

    def _arrive(self, number: int, message: int, now: float) -> None:
        request, device = self.requests[number], self.targets[message]
        came = request.came[message]
        request.came[message] = ARRIVED
        if device < 0:
            request.outputs -= 1
            if not request.outputs:
                self._record_answer(number, now)
            return
        if not request.started[device]:
            self._start(request, device)
        if came == AWAITED:
            self._get_ready(number, device)
            self._go_on(device, now)

    def _finish_compute(self, number: int, device: int, now: float) -> None:
        self.busy[device] = False
        self.requests[number].at[device] += 1
        self._get_ready(number, device)
        self._go_on(device, now)

    def _get_ready(self, number: int, device: int) -> None:
        """Moves the request past messages that have arrived, to the next step that it must take or wait for."""
        request, steps = self.requests[number], self.steps[device]
        at = request.at[device]
        while at < len(steps) and isinstance(step := steps[at], Receive):
            if request.came[step.transfer] != ARRIVED:
                request.came[step.transfer] = AWAITED
                break
            at += 1
        else:
            if at < len(steps):
                heappush(self.ready[device], number)
            elif request.started[device]:
                self.present[device] -= 1
        request.at[device] = at

    def _go_on(self, device: int, now: float) -> None:
        """Lets the oldest request that can continue take a step, until the device computes or no request can
        continue."""
        if self.busy[device]:
            return
        ready, steps = self.ready[device], self.steps[device]
        while ready:
            number = heappop(ready)
            request = self.requests[number]
            step = steps[request.at[device]]
            if isinstance(step, Compute):
                self.busy[device] = True
                code = number * self.span + len(self.ways) + device
                heappush(self.events, (now + step.seconds, code))
                break
            if isinstance(step, Send):
                self._send(number, step.transfer, now)
                request.at[device] += 1
                self._get_ready(number, device)

    def _record_answer(self, number: int, now: float) -> None:
        request = self.requests[number]
        self.flying[request.replica] -= 1
        self.answers.append((now, now - request.began_s, request.replica))
        if self.entered < self.count:
            self._enter(now)

    def _result(self, in_flight: int) -> StreamResult:
        if len(self.answers) < self.count:
            raise InternalError(f"the plan does not end: {len(self.answers)} of {self.count} are answered")
        # Replicas finish one after another: once no new requests enter, some are idle, so that time is not measured.
        count = max(1, self.count - in_flight) if len(self.flying) > 1 else self.count
        half = count // 2
        times = [when for when, _, _ in self.answers]
        spent = times[count - 1] - (times[half - 1] if half else 0.0)
        measured = self.answers[half:count]
        latencies = sorted(latency for _, latency, _ in measured)
        by = [sum(one == n for _, _, one in measured) / len(measured) for n in range(len(self.flying))]
        return StreamResult(
            in_flight,
            len(measured) / spent if spent > 0 else float("inf"),
            tuple(times),
            latencies[len(latencies) // 2],
            tuple(by),
            dict(zip(self.names, self.most_present, strict=True)),
        )
