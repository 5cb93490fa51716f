"""Detours: data goes around slow links, along routes (planner/devices/routes.py).

A **multicast** is the data that one place sends at one time to the same targets, one or several. It is cut
into chunks. A device that forwards a chunk has a stage for it, in which it receives and sends and computes
nothing.

There is no deadlock. Give each stage a key: (level of `first`, 0) to a stage that computes, and (l, r + 1) to
a stage that forwards, in round r, data that was sent at level l. Everything that a stage receives was sent
with a smaller key, because messages go only to higher levels, and hops only to later rounds. And each device
runs its stages in the order of their keys: a forwarding stage comes after all stages that begin at its level
or before, and before all others. Rules only."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import NamedTuple

from edgepart.planner.devices.routes import Hop, LinkTable, Route, detour
from edgepart.planner.lowering.draft import Move, coalesce_regions
from edgepart.planner.lowering.schedule import Schedule, Stage, StageMessage, StagePlace
from edgepart.planner.region import Region, Span, span

Box = tuple[str, Region]
"""A part of a tensor."""

MOST_BOXES = 64
"""The most boxes that one multicast sends by detours. If overlaps cut it into more boxes, it is sent directly."""

WHOLE_BLOCKS = 16
"""On a long axis, a chunk ends at a multiple of this number: channels that are computed in blocks are sent in
whole blocks."""


@dataclass(frozen=True)
class Multicast:
    """The data that one place sends at one time to the same targets."""

    messages: tuple[StageMessage, ...]
    """One message to each target. It brings the target these boxes, and perhaps more."""
    boxes: tuple[Box, ...]

    @property
    def source(self) -> str:
        return self.messages[0].source

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(message.target for message in self.messages)

    def nbytes(self, schedule: Schedule) -> int:
        return sum(_nbytes(schedule, *box) for box in self.boxes)


class _Turn(NamedTuple):
    """One chunk that arrives at a device and is forwarded. A device forwards chunks in the order of these tuples."""

    level: int
    """The level at which the chunk was first sent."""
    round: int
    """The round of the hop that brings the chunk."""
    multicast: int
    chunk: int


def send_around(schedule: Schedule, tensors: Collection[str], links: LinkTable | None = None) -> Schedule:
    """The schedule in which these tensors go around slow links; unchanged if there are none. `links` is the
    schedule's link table, if the caller has it already."""
    links = links or links_of(schedule)
    routed = [
        (multicast, found)
        for multicast in list_multicasts(schedule)
        if min(name for name, _ in multicast.boxes) in tensors
        for found in [find_detour(schedule, multicast, links)]
        if found is not None
    ]
    return _Rewriting(schedule).along(routed) if routed else schedule


def links_of(schedule: Schedule) -> LinkTable:
    problem = schedule.draft.blueprint.problem
    return LinkTable(problem.cluster, problem.gateway)


def find_detour(schedule: Schedule, multicast: Multicast, links: LinkTable) -> Route | None:
    """The route of a multicast around slow links, None if there is none. It uses only devices of the
    schedule, because other devices would need a program."""
    return detour(
        multicast.source, multicast.targets, multicast.nbytes(schedule), links, tuple(schedule.stages)
    )


def list_multicasts(schedule: Schedule) -> Iterator[Multicast]:
    """Yields the multicasts of a schedule: what is sent, grouped by sender, time and targets. Those to a single target
    are included; those with more than `MOST_BOXES` boxes are not."""
    together: dict[tuple[str, StagePlace], list[StageMessage]] = {}
    for message in schedule.messages:
        together.setdefault((message.source, message.sent), []).append(message)
    for messages in together.values():
        yield from _multicasts_among(messages)


def _multicasts_among(messages: Sequence[StageMessage]) -> Iterator[Multicast]:
    """Yields the multicasts among messages that are sent at one time: boxes that go to the same targets."""
    found: dict[tuple[int, ...], list[Box]] = {}
    for name in dict.fromkeys(move.tensor for message in messages for move in message.moves):
        wanted = [
            (n, move.region) for n, one in enumerate(messages) for move in one.moves if move.tensor == name
        ]
        for region, places in _apart(wanted):
            found.setdefault(places, []).append((name, region))
    for places, boxes in found.items():
        there = tuple(messages[n] for n in places)
        if len({message.target for message in there}) == len(there) and len(boxes) <= MOST_BOXES:
            yield Multicast(there, tuple(boxes))


def _apart(wanted: Sequence[tuple[int, Region]]) -> list[tuple[Region, tuple[int, ...]]]:
    """The same elements as disjoint regions, each with all places that want it."""
    parts: list[tuple[Region, tuple[int, ...]]] = []
    for place, region in wanted:
        left: tuple[Region, ...] = (region,)
        now: list[tuple[Region, tuple[int, ...]]] = []
        for part, places in parts:
            if part == region:
                both, left = part, ()
            else:
                both = part.intersect(region)
                left = tuple(rest for one in left for rest in one.subtract(part))
            if both.is_empty and part != region:
                now.append((part, places))
                continue
            now.append((both, (*places, place)))
            now += [(rest, places) for rest in part.subtract(both)]
        parts = [*now, *((one, (place,)) for one in left)]
    return parts


class _Rewriting:
    """Rewrites one schedule so that multicasts are sent along routes."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.taken: dict[int, list[Box]] = {}
        """The boxes that each message no longer brings, by id of the message."""
        self.hops: list[tuple[Hop, Multicast, tuple[Move, ...], int]] = []
        """The hops, with the moves that they bring and the number of their multicast."""
        self.passes: dict[str, list[_Turn]] = {}
        """The chunks that each device forwards."""

    def along(self, routed: Sequence[tuple[Multicast, Route]]) -> Schedule:
        for number, (multicast, way) in enumerate(routed):
            for message in multicast.messages:
                self.taken.setdefault(id(message), []).extend(multicast.boxes)
            self._take(multicast, way, number)
        stages, at = dict(self.schedule.stages), dict[tuple[str, int, int], StagePlace]()
        for device, passes in self.passes.items():
            stages[device], places = _with(stages[device], passes)
            at.update(((device, number, chunk), place) for (number, chunk), place in places.items())
        hops = [self._message(at, *one) for one in self.hops]
        return replace(self.schedule, stages=stages, messages=(*self._straight(), *hops))

    def _take(self, multicast: Multicast, way: Route, number: int) -> None:
        chunks = chunks_of(self.schedule, multicast.boxes, way.chunks)
        passing = {(hop.source, hop.chunk) for hop in way.hops}
        level = multicast.messages[0].sent.level
        for hop in way.hops:
            boxes = chunks[hop.chunk]
            if not boxes:
                continue
            moves = tuple(Move(name, region, hop.source, hop.target) for name, region in boxes)
            self.hops.append((hop, multicast, moves, number))
            if (hop.target, hop.chunk) in passing:
                turn = _Turn(level, hop.round, number, hop.chunk)
                self.passes.setdefault(hop.target, []).append(turn)

    def _message(
        self,
        at: Mapping[tuple[str, int, int], StagePlace],
        hop: Hop,
        multicast: Multicast,
        moves: tuple[Move, ...],
        number: int,
    ) -> StageMessage:
        """The message of one hop. A chunk to forward is received by the stage that forwards it, any other
        chunk where it was received before."""
        sent = at.get((hop.source, number, hop.chunk), multicast.messages[0].sent)
        received = at.get((hop.target, number, hop.chunk))
        if received is None:
            received = next(one.received for one in multicast.messages if one.target == hop.target)
        return StageMessage(hop.source, hop.target, sent, received, moves)

    def _straight(self) -> Iterator[StageMessage]:
        """Yields the messages without the boxes that detours bring."""
        for message in self.schedule.messages:
            taken = self.taken.get(id(message))
            if taken is None:
                yield message
            elif moves := tuple(_remaining_moves(message.moves, taken)):
                yield replace(message, moves=moves)


def _remaining_moves(moves: Sequence[Move], taken: Sequence[Box]) -> Iterator[Move]:
    for move in moves:
        gone = [region for name, region in taken if name == move.tensor]
        if move.region not in gone:
            rest = move.region.subtract_all(gone) if gone else (move.region,)
            yield from (replace(move, region=region) for region in coalesce_regions(rest))


def _with(
    stages: Sequence[Stage], passes: Sequence[_Turn]
) -> tuple[tuple[Stage, ...], dict[tuple[int, int], StagePlace]]:
    """A device's stages together with its forwarding stages, in order, and the place at which each chunk of
    each multicast is forwarded."""
    late = max((max(stage.first.late, stage.last.late) for stage in stages), default=0)
    made: list[Stage] = []
    places: dict[tuple[int, int], StagePlace] = {}
    rest = iter(sorted(passes))
    coming = next(rest, None)
    for stage in chain(stages, (None,)):
        while coming is not None and (stage is None or stage.first.level > coming.level):
            late += 1
            at = StagePlace(coming.level, late)
            places[coming.multicast, coming.chunk] = at
            made.append(Stage(at, at, ()))
            coming = next(rest, None)
        if stage is not None:
            made.append(stage)
    return tuple(made), places


def chunks_of(schedule: Schedule, boxes: Sequence[Box], count: int) -> list[list[Box]]:
    """About equal parts, each of whole slices of the boxes. Some parts are empty if there are fewer slices
    than parts."""
    chunks: list[list[Box]] = [[] for _ in range(count)]
    for name, region in boxes:
        parts = _cut(region, count) if _nbytes(schedule, name, region) else [region]
        for part in parts:
            smallest = min(range(count), key=lambda n: sum(r.size for _, r in chunks[n]))
            chunks[smallest].append((name, part))
    return chunks


def _cut(region: Region, count: int) -> list[Region]:
    """The parts of a region that is cut along the first axis with at least `count` indices, or else along the
    longest axis. A chunk is then mostly contiguous."""
    shape = region.shape
    if count == 1 or region.is_empty or not shape:
        return [region]
    axis = next((n for n, extent in enumerate(shape) if extent >= count), shape.index(max(shape)))
    extent = shape[axis]
    unit = WHOLE_BLOCKS if extent >= count * WHOLE_BLOCKS else 1
    bounds = [extent * n // (count * unit) * unit for n in range(count)] + [extent]
    return [
        region.replace(axis, _between(region.spans[axis], start, stop))
        for start, stop in pairwise(bounds)
        if start < stop
    ]


def _between(one: Span, start: int, stop: int) -> Span:
    """The indices of `one` from position `start` up to, but not including, position `stop`."""
    found: list[tuple[int, int]] = []
    for interval in one:
        low, high = max(start, 0), min(stop, interval.size)
        if low < high:
            found.append((interval.start + low, interval.start + high))
        start, stop = start - interval.size, stop - interval.size
    return span(*found)


def _nbytes(schedule: Schedule, name: str, region: Region) -> int:
    """Bytes of a region; 0 if the tensor's shape is not known before the run."""
    tensor = schedule.draft.graph.tensors[name]
    return 0 if tensor.shape is None else region.size * tensor.item_bytes
