"""The plain twin of planner/simulation/latency.py and throughput.py: everything is worked out anew at every moment, by
looking at all of it. Slow, and short enough to be believed."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from edgepart.planner.devices.cluster import LOCAL, Cluster, Medium
from edgepart.planner.plans.plan import GATEWAY, Receive, Replica
from edgepart.planner.plans.timeline import Compute, TimedSchedule


@dataclass
class Flight:
    """A message of a request on its way, from its step until it is there."""

    request: int
    number: int
    order: int
    left: float
    """Bytes not yet sent, fixed cost included."""
    after_s: float
    """What follows the last byte."""
    arrives_s: float | None = None


@dataclass
class Twin:
    """Requests on their way; call `run`."""

    schedule: TimedSchedule
    cluster: Cluster
    gateway: str
    count: int = 1
    in_flight: int = 1
    paces: tuple[Replica, ...] = ()
    """Of the schedule's replicas."""
    now: float = 0.0
    flights: list[Flight] = field(default_factory=list)
    arrived: dict[tuple[int, int], float] = field(default_factory=dict)
    at: dict[tuple[int, str], int] = field(default_factory=dict)
    computing: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By device, the request and when it is done."""
    answered: dict[int, float] = field(default_factory=dict)
    goes: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """By request, the devices that it goes to."""
    entered: int = 0
    sent: int = 0
    tied: bool = False
    """Whether something ever happened in two places at once: then what comes first is left to chance."""

    def run(self) -> Twin:
        while len(self.answered) < self.count:
            while self.act():
                pass
            if len(self.answered) < self.count:
                self.let_time_pass()
        return self

    def act(self) -> bool:
        """One thing that can be done now."""
        if self.entered < self.count and self.entered - len(self.answered) < self.in_flight:
            self.goes[self.entered] = self.quickest()
            self.entered += 1
            for number, message in enumerate(self.schedule.messages):
                if message.source == GATEWAY and message.target in self.goes[self.entered - 1]:
                    self.send(self.entered - 1, number)
            return True
        for request in range(self.entered):
            outputs = [
                n
                for n, m in enumerate(self.schedule.messages)
                if m.target == GATEWAY and m.source in self.goes[request]
            ]
            if request not in self.answered and all((request, n) in self.arrived for n in outputs):
                self.answered[request] = self.now
                return True
        return any(
            self.step(request, device) for device in self.schedule.steps for request in range(self.entered)
        )

    def quickest(self) -> tuple[str, ...]:
        """Where a request that comes in now would be done first."""
        if not self.paces:
            return tuple(self.schedule.steps)
        best, least = self.paces[0].devices, (float("inf"), 0)
        for pace in self.paces:
            there = sum(self.goes[r] == pace.devices for r in range(self.entered) if r not in self.answered)
            done = max(pace.latency_s, pace.between_s * (there + 1)), there
            if done < least:
                best, least = pace.devices, done
        return best

    def step(self, request: int, device: str) -> bool:
        if device not in self.goes[request]:
            return False
        steps, at = self.schedule.steps[device], self.at.get((request, device), 0)
        if at == len(steps):
            return False
        step = steps[at]
        if isinstance(step, Receive):
            if (request, step.transfer) not in self.arrived:
                return False
        elif device in self.computing:
            return False
        elif isinstance(step, Compute):
            self.computing[device] = request, self.now + step.seconds
        else:
            self.send(request, step.transfer)
        self.at[request, device] = at + 1
        return True

    def ends(self, number: int) -> tuple[str, str]:
        message = self.schedule.messages[number]
        return message.source or self.gateway, message.target or self.gateway

    def send(self, request: int, number: int) -> None:
        source, target = self.ends(number)
        self.sent += 1
        link, nbytes = self.cluster.link(source, target), self.schedule.messages[number].nbytes
        flight = Flight(request, number, self.sent, 0.0, link.latency_s + link.message_s)
        if source == target:
            flight.arrives_s = self.now + 2 * LOCAL.message_s + LOCAL.latency_s + nbytes / LOCAL.bytes_per_s
        else:
            flight.left = nbytes + link.message_s * self.alone(source, target)
        self.flights.append(flight)

    def card(self, device: str, end: int) -> float:
        """What the device sends (end 0) or receives (end 1) at most."""
        others = [d.name for d in self.cluster.devices if d.name != device]
        ways = [(device, other) if end == 0 else (other, device) for other in others]
        return max(self.cluster.link(*way).bytes_per_s for way in ways)

    def uses(self, ends: tuple[str, str], device: str, end: int) -> bool:
        """Whether data on its way leaves the device (end 0) or gets there (end 1)."""
        return any(hop[end] == device for hop in pairwise(self.cluster.routes.get(ends, ends)))

    def crossings(self, medium: Medium, ends: tuple[str, str]) -> int:
        return sum(medium.crossings(*hop) for hop in pairwise(self.cluster.routes.get(ends, ends)))

    def alone(self, source: str, target: str) -> float:
        media = [m.bytes_per_s / n for m in self.cluster.media if (n := self.crossings(m, (source, target)))]
        hops = list(pairwise(self.cluster.routes.get((source, target), (source, target))))
        cards = [card for a, b in hops for card in (self.card(a, 0), self.card(b, 1))]
        return min([self.cluster.link(source, target).bytes_per_s, *cards, *media])

    def flowing(self) -> list[Flight]:
        """The first message of each way."""
        first: dict[tuple[str, str], Flight] = {}
        for flight in sorted(self.flights, key=lambda f: f.order):
            if flight.arrives_s is None:
                first.setdefault(self.ends(flight.number), flight)
        return list(first.values())

    def rates(self) -> dict[int, float]:
        """By order of the flights that flow."""
        flows = {f.order: self.ends(f.number) for f in self.flowing()}
        found = {order: self.alone(*ends) for order, ends in flows.items()}
        limits = found.copy()
        for one in self.cluster.devices:
            for end in (0, 1):
                through = {order: 1 for order, ends in flows.items() if self.uses(ends, one.name, end)}
                share(found, limits, through, self.card(one.name, end)) if through else None
        for medium in self.cluster.media:
            crossing = {order: self.crossings(medium, ends) for order, ends in flows.items()}
            through = {order: n for order, n in crossing.items() if n}
            share(found, limits, through, medium.bytes_per_s) if through else None
        return found

    def let_time_pass(self) -> None:
        """Until the next thing happens."""
        rates = self.rates()
        by_order = {f.order: f for f in self.flights}
        ends = {order: self.now + by_order[order].left / rate for order, rate in rates.items()}
        arrivals = [f.arrives_s for f in self.flights if f.arrives_s is not None]
        then = min([*ends.values(), *arrivals, *(until for _, until in self.computing.values())])
        for order, rate in rates.items():
            flight = by_order[order]
            if ends[order] == then:
                flight.arrives_s = then + flight.after_s
            flight.left -= (then - self.now) * rate
        near = then * (1 + 1e-9)
        places = {
            self.ends(f.number)[1] for f in self.flights if f.arrives_s is not None and f.arrives_s <= near
        }
        places |= {device for device, (_, until) in self.computing.items() if until <= near}
        self.tied = self.tied or len(places) > 1
        self.now = then
        for flight in [f for f in self.flights if f.arrives_s is not None and f.arrives_s <= then]:
            self.arrived[flight.request, flight.number] = then
            self.flights.remove(flight)
        for device in [d for d, (_, until) in self.computing.items() if until == then]:
            del self.computing[device]


def share(
    found: dict[int, float], limits: dict[int, float], through: dict[int, int], bytes_per_s: float
) -> None:
    """Nobody gets more than an even share; what the slow ones leave, the others share."""
    slow: set[int] = set()
    while True:
        left = bytes_per_s - sum(limits[order] * through[order] for order in slow)
        others = sum(n for order, n in through.items() if order not in slow)
        if not others:
            return
        even = left / others
        more = {order for order in through if order not in slow and limits[order] < even}
        if not more:
            break
        slow |= more
    for order in through:
        if order not in slow:
            found[order] = min(found[order], even)
