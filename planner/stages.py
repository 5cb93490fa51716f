"""Stages: the order in time. A stage is what one device does between two communications: receive, compute,
send.

Rules. Every share of an operator has a level: the number of messages that have to arrive, one after
another, before it can run. A device's shares of one level make a stage; messages go from a level to a
higher one only, and each device takes its stages in the order of their levels. So a device at level l waits
for devices at lower levels only, and by induction over l no two can wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from edgepart.planner.access.language import Access, Outputs
from edgepart.planner.draft import Case, Draft, Move, Share, case_of, covers
from edgepart.planner.graph import Graph, Operator
from edgepart.planner.plan import GATEWAY
from edgepart.planner.region import Region


class Cost(Protocol):
    """What planning asks of planner/cost.py."""

    def know(self, graph: Graph) -> None: ...

    def compute_s(self, op: Operator, access: Access, outputs: Outputs, device: str) -> float: ...

    def segment_s(self, device: str) -> float: ...

    def copy_s(self, device: str, nbytes: float) -> float: ...

    def profiled_s(self, digest: str, device: str) -> float | None: ...


class NoCost:
    """Counts nothing: for callers that want a plan that is right, and no prediction."""

    def know(self, graph: Graph) -> None:
        """Nothing to know."""

    def compute_s(self, op: Operator, access: Access, outputs: Outputs, device: str) -> float:
        return 0.0

    def segment_s(self, device: str) -> float:
        return 0.0

    def copy_s(self, device: str, nbytes: float) -> float:
        return 0.0

    def profiled_s(self, digest: str, device: str) -> float | None:
        return None


Seconds = Mapping[tuple[str, str], float]
"""By operator name and device."""


def seconds_of(draft: Draft, cost: Cost) -> Seconds:
    """Predicted seconds of every share."""
    accesses = draft.blueprint.accesses
    return {
        key: cost.compute_s(share.operator, accesses[share.operator.name], share.outputs, share.device)
        for key, share in draft.shares.items()
    }


@dataclass(frozen=True, slots=True, order=True)
class At:
    """A place in a device's order of stages."""

    level: int
    late: int = 0
    """1 for what is put off until the level's messages are sent."""


START = At(-1)
"""When the gateway sends the inputs: before every level."""


@dataclass(frozen=True, slots=True)
class Message:
    """Moves that travel together."""

    source: str
    target: str
    sent: At
    """Of the source: after that stage's computing."""
    received: At
    """Of the target: before that stage's computing."""
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A device receives the messages of `first`, computes, then sends those of `last`."""

    first: At
    last: At
    shares: tuple[Share, ...]
    """In the graph's order; () where it only passes on what it receives."""


@dataclass(frozen=True)
class Schedule:
    """Every device's stages, in order, and the messages between them."""

    draft: Draft
    stages: Mapping[str, tuple[Stage, ...]]
    messages: tuple[Message, ...]

    @cached_property
    def receives(self) -> Mapping[tuple[str, At], tuple[Message, ...]]:
        """By target device and `received`."""
        return _grouped((message.target, message.received, message) for message in self.messages)

    @cached_property
    def sends(self) -> Mapping[tuple[str, At], tuple[Message, ...]]:
        """By source device and `sent`."""
        return _grouped((message.source, message.sent, message) for message in self.messages)

    def received(self, device: str, stage: Stage) -> tuple[Message, ...]:
        return self.receives.get((device, stage.first), ())

    def sent(self, device: str, stage: Stage) -> tuple[Message, ...]:
        return self.sends.get((device, stage.last), ())


def _grouped(entries: Iterator[tuple[str, At, Message]]) -> dict[tuple[str, At], tuple[Message, ...]]:
    found: dict[tuple[str, At], list[Message]] = {}
    for device, at, message in entries:
        found.setdefault((device, at), []).append(message)
    return {key: tuple(messages) for key, messages in found.items()}


def mixed(draft: Draft, share: Share, name: str, need: Region) -> bool:
    """Whether `need` is put together from what the device computes and what it is sent."""
    return case_of(need, draft.computed.get(name, {}).get(share.device)) in (Case.BIGGER, Case.SHIFTED)


@dataclass
class _Levels:
    """The longest way to every share and move, found in the graph's order."""

    draft: Draft
    share: dict[tuple[str, str], int] = field(default_factory=dict)
    sent: dict[Move, int] = field(default_factory=dict)
    received: dict[Move, int] = field(default_factory=dict)
    """At the earliest level that reads it; filled in as readers are met."""

    def visit_all(self) -> None:
        for name in self.draft.graph.inputs:
            self.sent.update((move, START.level) for move in self.draft.moves_of.get(name, ()))
        for op in self.draft.graph.operators:
            for share in self.draft.shares_of.get(op.name, ()):
                self._visit(share)
            for name in op.outputs:
                self._send(name)

    def _visit(self, share: Share) -> None:
        feeding = list(self._feeding(share))
        level = max((after for _, after in feeding), default=0)
        self.share[share.operator.name, share.device] = level
        for move, _ in feeding:
            if move is not None:
                self.received[move] = min(level, self.received.get(move, level))

    def _feeding(self, share: Share) -> Iterator[tuple[Move | None, int]]:
        """What the share waits for, and the first level after it."""
        graph, device = self.draft.graph, share.device
        for name, need in share.needs:
            own = self.draft.computed.get(name, {}).get(device)
            if own is not None and covers(own, need):
                # Put together from here and there: not in the segment that computes the part from here.
                step = 1 if mixed(self.draft, share, name, need) else 0
                yield None, self.share[graph.producers[name].name, device] + step
            if own is None or not own.contains(need):
                yield from self._arriving(name, device, need)

    def _arriving(self, name: str, device: str, need: Region) -> Iterator[tuple[Move, int]]:
        for move in self.draft.moves_of.get(name, ()):
            if move.target == device and covers(move.region, need):
                yield move, self.sent[move] + 1

    def _send(self, name: str) -> None:
        """Levels of a tensor's moves: first those from who computes it, then those that are passed on."""
        moves = self.draft.moves_of.get(name, ())
        computed = self.draft.computed.get(name, {})
        direct = [m for m in moves if m.source in computed and computed[m.source].contains(m.region)]
        for move in direct:
            self.sent[move] = self.share[self.draft.graph.producers[name].name, move.source]
        for move in moves:
            if move not in self.sent:
                own = computed.get(move.source)
                level = self.share[self.draft.graph.producers[name].name, move.source] if own else 0
                feeding = [m for m in direct if m.target == move.source and covers(m.region, move.region)]
                level = max([level, *(self.sent[m] + 1 for m in feeding)])
                self.sent[move] = level
                for m in feeding:
                    self.received[m] = min(level, self.received.get(m, level))


def stage(draft: Draft) -> Schedule:
    """Every share at the first level that it can have; one message per move."""
    levels = _Levels(draft)
    levels.visit_all()
    messages = tuple(
        Message(move.source, move.target, At(levels.sent[move]), At(_arrival(levels, move)), (move,))
        for move in draft.moves
    )
    shares: dict[str, dict[int, list[Share]]] = {}
    for share in draft.shares.values():
        level = levels.share[share.operator.name, share.device]
        shares.setdefault(share.device, {}).setdefault(level, []).append(share)
    for message in messages:  # A level that only receives or passes on is a stage as well.
        for device, at in ((message.source, message.sent), (message.target, message.received)):
            if device != GATEWAY:
                shares.setdefault(device, {}).setdefault(at.level, [])
    stages = {device: _stages(shares[device]) for device in sorted(shares)}
    return Schedule(draft, stages, messages)


def _arrival(levels: _Levels, move: Move) -> int:
    after = levels.sent[move] + 1
    return after if move.target == GATEWAY else max(after, levels.received.get(move, after))


def _stages(by_level: Mapping[int, Sequence[Share]]) -> tuple[Stage, ...]:
    return tuple(Stage(At(level), At(level), tuple(by_level[level])) for level in sorted(by_level))
