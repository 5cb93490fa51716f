"""Stages: the order in time. A stage is what one device does between two communications: receive, compute,
send.

Facts. A device's shares of one level (by_level.py) make a stage; messages go from a level to a
higher one only, and each device takes its stages in the order of their levels. So a device at level l waits
for devices at lower levels only, and by induction over l no two can wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from edgepart.planner.access.declare.protocol import Access, Outputs
from edgepart.planner.lowering.draft import Case, Draft, Group, Move, Share, case_of
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.region import Region


class CostModel(Protocol):
    """What planning asks of planner/cost/cost.py."""

    def know(self, graph: Graph) -> None: ...

    def compute_s(self, op: Operator, access: Access, outputs: Outputs, device: str) -> float: ...

    def segment_s(self, device: str) -> float: ...

    def copy_s(self, device: str, nbytes: float) -> float: ...

    def profiled_s(self, digest: str, device: str) -> float | None: ...

    def drift(self, device: str) -> float: ...


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

    def drift(self, device: str) -> float:
        return 1.0


Seconds = Mapping[tuple[str, str], float]
"""By operator name and device."""


class ShareTimes:
    """Predicted seconds of shares; of a group, once."""

    def __init__(self, cost: CostModel) -> None:
        self.cost = cost
        self._found: dict[Group, Seconds] = {}

    def seconds_of(self, draft: Draft) -> Seconds:
        """Of every share."""
        found: dict[tuple[str, str], float] = {}
        for name, group in draft.groups.items():
            seconds = self._found.get(group)
            if seconds is None:
                seconds = self._found[group] = self._seconds(group, draft.blueprint.accesses[name])
            found.update(seconds)
        return found

    def _seconds(self, group: Group, access: Access) -> Seconds:
        op = group.operator
        return {
            (op.name, share.device): self.cost.compute_s(op, access, share.outputs, share.device)
            for share in group.shares
        }


def seconds_of(draft: Draft, cost: CostModel) -> Seconds:
    """Of one draft on its own."""
    return ShareTimes(cost).seconds_of(draft)


def stage_s(draft: Draft, stage: Stage, seconds: Seconds, cost: CostModel) -> float:
    """What the operators of a stage take."""
    if not stage.is_part:
        return sum(seconds[share.operator.name, share.device] for share in stage.shares)
    accesses = draft.blueprint.accesses
    return sum(
        cost.compute_s(share.operator, accesses[share.operator.name], share.outputs, share.device)
        for share in stage.shares
    )


@dataclass(frozen=True, slots=True, order=True)
class At:
    """A place in a device's order of stages."""

    level: int
    late: int = 0
    """1 for what is put off until the level's messages are sent; more where a stage is cut (borders_first.py)."""


START = At(-1)
"""When the gateway sends the inputs: before every level."""


@dataclass(frozen=True, slots=True)
class StageMessage:
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
    is_part: bool = False
    """Whether the shares are parts of the draft's: another stage computes the rest."""


@dataclass(frozen=True)
class Schedule:
    """Every device's stages, in order, and the messages between them."""

    draft: Draft
    stages: Mapping[str, tuple[Stage, ...]]
    messages: tuple[StageMessage, ...]

    @cached_property
    def receives(self) -> Mapping[tuple[str, At], tuple[StageMessage, ...]]:
        """By target device and `received`."""
        return _grouped((message.target, message.received, message) for message in self.messages)

    @cached_property
    def sends(self) -> Mapping[tuple[str, At], tuple[StageMessage, ...]]:
        """By source device and `sent`."""
        return _grouped((message.source, message.sent, message) for message in self.messages)

    def received(self, device: str, stage: Stage) -> tuple[StageMessage, ...]:
        return self.receives.get((device, stage.first), ())

    def sent(self, device: str, stage: Stage) -> tuple[StageMessage, ...]:
        return self.sends.get((device, stage.last), ())


def _grouped(
    entries: Iterator[tuple[str, At, StageMessage]],
) -> dict[tuple[str, At], tuple[StageMessage, ...]]:
    found: dict[tuple[str, At], list[StageMessage]] = {}
    for device, at, message in entries:
        found.setdefault((device, at), []).append(message)
    return {key: tuple(messages) for key, messages in found.items()}


def mixed(draft: Draft, share: Share, name: str, need: Region) -> bool:
    """Whether `need` is put together from what the device computes and what it is sent."""
    return is_mixed(need, draft.computed(name).get(share.device))


def is_mixed(need: Region, own: Region | None) -> bool:
    """The same of a region that is needed where `own` is computed."""
    return case_of(need, own) in (Case.BIGGER, Case.SHIFTED)
