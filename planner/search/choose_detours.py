"""Chooses the tensors that go around slow links (planner/lowering/detours.py). Rules only.

`add_detours` does so for a strategy that is otherwise final. An **exchange** is all messages that are sent at
one level. Each exchange is simulated alone, directly and around slow links, from the sending until everything
has arrived. Exchanges that look the same are simulated once. The exchanges that are faster alone are then
tried in the request, first all together and then without some of them, because a device that computes
meanwhile forwards late.

`try_detours` tries the strategy that would be chosen if slow links were as wide as the way around them. A
search that sends everything directly leaves out a device behind a slow link, or cuts so that nothing crosses
the link. So the search runs again on a cluster in which each slow link is as wide as the widest way around
it, and its result is compared, with detours, on the real cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import ceil

from edgepart.planner.devices.cluster import Cluster, Link
from edgepart.planner.devices.routes import SLOWER, LinkTable, widest
from edgepart.planner.errors import Infeasible
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.lowering.detours import find_detour, links_of, list_multicasts, send_around
from edgepart.planner.lowering.draft import Move
from edgepart.planner.lowering.schedule import Schedule, Stage, StageMessage, StagePlace
from edgepart.planner.plans.plan import GATEWAY, Receive, Send
from edgepart.planner.plans.timeline import Compute
from edgepart.planner.plans.timeline import TimedSchedule as Timed
from edgepart.planner.search.study import Study
from edgepart.planner.simulation.latency import run_schedule

GAIN = 0.95
"""An exchange is tried with detours in the request only if they reduce its seconds, alone, below this factor."""

TRIALS = 48
"""Limit of simulations times devices: a simulation takes longer with more devices."""

MOST_DEVICES = 16
"""The most devices of a plan for which detours are tried. With more, so many messages would be simulated that
it is not worth the time."""

WHY = "data goes around slow links"


def add_detours(study: Study, strategy: Strategy) -> Strategy | None:
    """The strategy with the detours that make it better. None if detours gain nothing or do not fit in
    memory, if no link is slow, for replicas, and for strategies with an order of their own."""
    problem = study.memo.problem
    if strategy.replicas or strategy.order or LinkTable(problem.cluster, problem.gateway).is_even:
        return None
    detours = _DetouredExchanges(study, strategy).choose()
    if not detours:
        return None
    return study.scorer.accept_if_better(strategy, replace(strategy, detours=detours), WHY)


def try_detours(study: Study, search: Callable[[Study], Iterator[Strategy]]) -> Iterator[Strategy]:
    """Yields the best strategy that `search` finds on a cluster whose slow links are as wide as the way around
    them, with detours on the real cluster. Yields nothing if no link is that slow."""
    cluster = as_wide_as_around(study.memo.cluster)
    if cluster is None:
        return
    problem = study.memo.problem
    wide = study.on(replace(problem, cluster=cluster, search_budget_s=problem.search_budget_s / 2))
    try:
        best = wide.scorer.pick_best(search(wide))
    except Infeasible:  # The study itself then reports this error, with the missing memory.
        return
    choices = wide.candidates.choices_of(best)
    if best.replicas or not choices:
        return
    made = study.candidates.make(best.name, choices, best.why, best.sync, best.hub)
    made = replace(made, early=best.early, order=best.order)
    yield add_detours(study, made) or made


def as_wide_as_around(cluster: Cluster) -> Cluster | None:
    """The cluster with its slow links almost as wide as the widest way around them (a little less, because
    that way also uses other devices' links). None if there are no slow links or too many devices to
    search."""
    names = [device.name for device in cluster.devices]
    link_table = LinkTable(cluster, names[0])
    if len(names) > MOST_DEVICES or link_table.is_even:
        return None
    links = dict(cluster.links)
    ways = {name: widest(name, [other for other in names if other != name], link_table) for name in names}

    def widen(one: str, two: str) -> Link:
        way, link = ways[one][two], cluster.link(one, two)
        width = link_table.width(way) / SLOWER
        if link.bytes_per_s >= width:
            return link
        return Link(width, sum(link_table.link(*leg).latency_s for leg in pairwise(way)), link.message_s)

    for one, two in combinations(names, 2):
        there, back = cluster.link(one, two), cluster.link(two, one)
        if there == back:
            widened = {(one, two): widen(one, two)}
        else:
            widened = {(one, two): widen(one, two), (two, one): widen(two, one)}
        if widened[one, two] != there or widened.get((two, one), back) != back:
            links.pop((two, one), None)
            links |= widened
    return replace(cluster, links=links) if links != cluster.links else None


@dataclass(frozen=True)
class _Exchange:
    """All messages that are sent at one level."""

    messages: tuple[StageMessage, ...]

    @property
    def tensors(self) -> frozenset[str]:
        return frozenset(move.tensor for message in self.messages for move in message.moves)


class _DetouredExchanges:
    """The messages of one strategy's schedule, and the latency of a request if some of them go around slow links."""

    def __init__(self, study: Study, strategy: Strategy) -> None:
        self.memo = study.memo
        self.lowering = study.scorer.sketch_lowering(strategy.parted)
        plain = replace(strategy, detours=frozenset())
        self.schedule, self.seconds = self.lowering.schedule(plain, optimised=True, sketch=True)
        self.links = links_of(self.schedule)
        self._alone: dict[Hashable, bool] = {}

    def choose(self) -> frozenset[str]:
        """The tensors of all exchanges that gain alone, except those without which the request is faster."""
        found = list(self._gaining_exchanges()) if len(self.schedule.stages) <= MOST_DEVICES else []
        best = _union(found)
        if not best or self.memo.problem.objective != "latency":
            return best
        least = self._latency_s(best)
        trials = max(1, TRIALS // len(self.schedule.stages))
        together = ceil(len(found) / trials)
        left = [found[n : n + together] for n in range(0, len(found), together)]
        for some in tuple(left) if len(left) > 1 else ():
            fewer = [one for one in left if one is not some]
            tensors = _union([each for one in fewer for each in one])
            if tensors and (latency_s := self._latency_s(tensors)) <= least:
                best, least, left = tensors, latency_s, fewer
        return best

    def _latency_s(self, tensors: Collection[str]) -> float:
        schedule = send_around(self.schedule, tensors, self.links)
        outline = self.lowering.outliner.outline(schedule, self.seconds)
        return run_schedule(outline, self.memo.cluster, self.memo.problem.gateway).latency_s

    def _gaining_exchanges(self) -> Iterator[frozenset[str]]:
        """Yields the tensors of each exchange that detours make faster alone, in the order of their levels."""
        for one in list_exchanges(self.schedule):
            key = _pattern(self.schedule, one)
            if key not in self._alone:
                self._alone[key] = self._gains(one)
            if self._alone[key]:
                yield one.tensors

    def _gains(self, exchange: _Exchange) -> bool:
        """Whether the exchange alone is clearly faster around slow links than directly."""
        schedule = isolate(self.schedule, exchange)
        if not any(find_detour(schedule, one, self.links) for one in list_multicasts(schedule)):
            return False
        around = send_around(schedule, exchange.tensors, self.links)
        return self._all_there_s(around) < GAIN * self._all_there_s(schedule)

    def _all_there_s(self, schedule: Schedule) -> float:
        """Seconds until the last message has arrived, if everything is sent at once."""
        numbers = {id(message): n for n, message in enumerate(schedule.messages)}
        steps: dict[str, list[Receive | Compute | Send]] = {}
        for device, stages in schedule.stages.items():
            steps[device] = []
            for stage in stages:
                steps[device] += [
                    Receive(numbers[id(one)]) for one in schedule.received_messages(device, stage)
                ]
                steps[device] += [Send(numbers[id(one)]) for one in schedule.sent_messages(device, stage)]
        timed = Timed(steps, self.lowering.outliner.messages(schedule))
        made = run_schedule(timed, self.memo.cluster, self.memo.problem.gateway)
        return max(made.arrivals_s, default=0.0)


def list_exchanges(schedule: Schedule) -> Iterator[_Exchange]:
    """Yields the exchange of each level, from the first level on."""
    found: dict[int, list[StageMessage]] = {}
    for message in schedule.messages:
        found.setdefault(message.sent.level, []).append(message)
    for level in sorted(found):
        yield _Exchange(tuple(found[level]))


def isolate(schedule: Schedule, exchange: _Exchange) -> Schedule:
    """A schedule that contains only this exchange, sent by all devices at once."""
    begin, end = StagePlace(0), StagePlace(1)
    messages = tuple(
        replace(one, sent=one.sent if one.source == GATEWAY else begin, received=end)
        for one in exchange.messages
    )
    stages = dict.fromkeys(schedule.stages, (Stage(begin, begin, ()), Stage(end, end, ())))
    return replace(schedule, stages=stages, messages=messages)


def _union(some: Collection[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*some)


def _pattern(schedule: Schedule, exchange: _Exchange) -> Hashable:
    """A key that is equal for exchanges in which the same regions go the same ways, whatever the tensors' names."""
    numbers: dict[str, int] = {}

    def describe(move: Move) -> Hashable:
        item = schedule.draft.graph.tensors[move.tensor].item_bytes
        return numbers.setdefault(move.tensor, len(numbers)), move.region, item

    return tuple((one.source, one.target, tuple(map(describe, one.moves))) for one in exchange.messages)
