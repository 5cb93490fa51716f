"""Chooses for which tensors devices relay what several need (planner/lowering/relays.py), and in which shape, for a
strategy that is otherwise final. Rules only.

An **exchange** is what is sent at one level: an all-gather is one, and so is the model's input on its way to all devices.
Each is simulated by itself in every shape, from when it is sent to when all of it is there; exchanges that look the same,
once. What gains by itself is then tried in the request, all together and less of it, as a relay that computes
meanwhile passes on late."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from edgepart.planner.devices.routes import RouteShape
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.lowering.draft import Move
from edgepart.planner.lowering.relays import Multicast, ground_of, relayed, route_of, spreads
from edgepart.planner.lowering.schedule import At, Schedule, Stage, StageMessage
from edgepart.planner.plans.plan import GATEWAY, Receive, Send
from edgepart.planner.plans.timeline import Compute
from edgepart.planner.plans.timeline import TimedSchedule as Timed
from edgepart.planner.search.study import Study
from edgepart.planner.simulation.latency import run_schedule

GAIN = 0.95
"""Seconds of an exchange with a shape over those without, at most, for the shape to be tried in the request."""

REPEATED = 0.05
"""The part of what a device sends that goes to more than one place, at least: else no relay can save much."""

TRIALS = 48
"""Simulations, times devices, as one takes longer with more of them."""

MOST_DEVICES = 16
"""Devices of a plan, at most: with more, so many messages would be simulated that it is not worth the time."""

WHY = "what several devices need is passed on by those that have it"


def add_relays(study: Study, strategy: Strategy) -> Strategy | None:
    """The strategy with those relays that make it better; None where that gains nothing or does not fit, for replicas, and
    for strategies with an order of their own."""
    if strategy.replicas or strategy.order:
        return None
    relays = _RelayedExchanges(study, strategy).choose()
    if not relays:
        return None
    return study.scorer.accept_if_better(strategy, replace(strategy, relays=relays), WHY)


@dataclass(frozen=True)
class _Exchange:
    """What is sent at one level."""

    messages: tuple[StageMessage, ...]

    @property
    def tensors(self) -> frozenset[str]:
        return frozenset(move.tensor for message in self.messages for move in message.moves)


class _RelayedExchanges:
    """What one strategy's schedule sends, and how long a request takes with some of it passed on."""

    def __init__(self, study: Study, strategy: Strategy) -> None:
        self.memo = study.memo
        self.lowering = study.scorer.sketch_lowering(strategy.parted)
        plain = replace(strategy, relays={})
        self.schedule, self.seconds = self.lowering.scheduled(plain, optimised=True, sketch=True)
        self.links = ground_of(self.schedule)
        self._alone: dict[Hashable, RouteShape | None] = {}

    def choose(self) -> Mapping[str, RouteShape]:
        """Shapes by tensor: of all exchanges that gain by themselves, but not those that the request is faster without."""
        found = list(self._gaining()) if len(self.schedule.stages) <= MOST_DEVICES else []
        if not found:
            return {}
        best, least = _merge_shapes(found), self._latency_s(_merge_shapes(found))
        if self.memo.problem.objective != "latency":
            return best
        trials = max(1, TRIALS // len(self.schedule.stages))
        together = ceil(len(found) / trials)
        left = [found[n : n + together] for n in range(0, len(found), together)]
        for some in tuple(left) if len(left) > 1 else ():
            fewer = [one for one in left if one is not some]
            shapes = _merge_shapes([each for one in fewer for each in one])
            if shapes and (latency_s := self._latency_s(shapes)) <= least:
                best, least, left = shapes, latency_s, fewer
        return best

    def _latency_s(self, shapes: Mapping[str, RouteShape]) -> float:
        schedule = relayed(self.schedule, shapes, self.links)
        outline = self.lowering.outliner.outline(schedule, self.seconds)
        return run_schedule(outline, self.memo.cluster, self.memo.problem.gateway).latency_s

    def _gaining(self) -> Iterator[tuple[frozenset[str], RouteShape]]:
        """Exchanges that are quicker by themselves, in the order of their levels, and their best shapes."""
        for one in list_exchanges(self.schedule):
            key = _pattern(self.schedule, one)
            if key not in self._alone:
                self._alone[key] = self._best(one)
            shape = self._alone[key]
            if shape is not None:
                yield one.tensors, shape

    def _best(self, exchange: _Exchange) -> RouteShape | None:
        """The quickest shape; None where straight is about as quick."""
        schedule = isolate(self.schedule, exchange)
        every = list(spreads(schedule))
        shapes = [*RouteShape] if self._repeats(every) else [] if self.links.is_even else [RouteShape.AROUND]
        if not shapes:
            return None
        straight_s = self._all_there_s(schedule)
        if straight_s * GAIN <= self._least_s(every):
            return None
        best, least = None, GAIN * straight_s
        for shape in shapes:
            if any(route_of(schedule, one, shape, self.links) for one in every):
                passed = relayed(schedule, dict.fromkeys(exchange.tensors, shape), self.links)
                if (seconds := self._all_there_s(passed)) < least:
                    best, least = shape, seconds
        return best

    def _all_there_s(self, schedule: Schedule) -> float:
        """Seconds until the last message is there, if everything is sent at once."""
        numbers = {id(message): n for n, message in enumerate(schedule.messages)}
        steps: dict[str, list[Receive | Compute | Send]] = {}
        for device, stages in schedule.stages.items():
            steps[device] = []
            for stage in stages:
                steps[device] += [Receive(numbers[id(one)]) for one in schedule.received(device, stage)]
                steps[device] += [Send(numbers[id(one)]) for one in schedule.sent(device, stage)]
        timed = Timed(steps, self.lowering.outliner.messages(schedule))
        made = run_schedule(timed, self.memo.cluster, self.memo.problem.gateway)
        return max(made.arrivals_s, default=0.0)

    def _repeats(self, every: Sequence[Multicast]) -> bool:
        """Whether somebody sends much more than once."""
        once, again = dict[str, int](), dict[str, int]()
        for one in every:
            size = one.nbytes(self.schedule)
            once[one.source] = once.get(one.source, 0) + size
            again[one.source] = again.get(one.source, 0) + size * (len(one.targets) - 1)
        return any(again[source] > REPEATED * size for source, size in once.items())

    def _least_s(self, every: Sequence[Multicast]) -> float:
        """Seconds, about, that passing on takes at least: of a card, what it sends once or receives, a message from each of
        whom it hears; and one message more."""
        problem = self.memo.problem
        ways = (*problem.cluster.links.values(), problem.cluster.default_link)
        message_s = min(link.message_s for link in ways)
        sent, received = dict[str, int](), dict[str, int]()
        heard: dict[str, set[str]] = {}
        for one in every:
            size, source = one.nbytes(self.schedule), one.source or problem.gateway
            targets = {name or problem.gateway for name in one.targets} - {source}
            for name in targets:
                received[name] = received.get(name, 0) + size
                heard.setdefault(name, set()).add(source)
            if targets:
                sent[source] = sent.get(source, 0) + size
        rates = problem.cluster.card_bytes_per_s
        busy = [nbytes / rates[name] for name, nbytes in sent.items()]
        busy += [nbytes / rates[name] + len(heard[name]) * message_s for name, nbytes in received.items()]
        hops_s = 2 * min(link.latency_s + link.message_s for link in ways)
        return max(busy) + hops_s if busy else 0.0


def list_exchanges(schedule: Schedule) -> Iterator[_Exchange]:
    """What is sent at each level, from the first level on."""
    found: dict[int, list[StageMessage]] = {}
    for message in schedule.messages:
        found.setdefault(message.sent.level, []).append(message)
    for level in sorted(found):
        yield _Exchange(tuple(found[level]))


def isolate(schedule: Schedule, exchange: _Exchange) -> Schedule:
    """A schedule of nothing but this exchange, sent by all devices at once."""
    begin, end = At(0), At(1)
    messages = tuple(
        replace(one, sent=one.sent if one.source == GATEWAY else begin, received=end)
        for one in exchange.messages
    )
    stages = dict.fromkeys(schedule.stages, (Stage(begin, begin, ()), Stage(end, end, ())))
    return replace(schedule, stages=stages, messages=messages)


def _merge_shapes(some: Collection[tuple[frozenset[str], RouteShape]]) -> dict[str, RouteShape]:
    return {name: shape for names, shape in some for name in names}


def _pattern(schedule: Schedule, exchange: _Exchange) -> Hashable:
    """Equal for exchanges in which the same boxes go the same ways, whatever the tensors are called."""
    numbers: dict[str, int] = {}

    def said(move: Move) -> Hashable:
        item = schedule.draft.graph.tensors[move.tensor].item_bytes
        return numbers.setdefault(move.tensor, len(numbers)), move.region, item

    return tuple((one.source, one.target, tuple(map(said, one.moves))) for one in exchange.messages)
