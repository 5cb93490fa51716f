"""Stages: the order in time. A stage is the work of one device between two communications: it receives,
computes and sends. Facts.

A device's shares of one level (by_level.py) make a stage. Messages go only from a level to a higher one, and
each device runs its stages in the order of their levels. So a device at level l waits only for devices at
lower levels, and by induction over l no two devices can wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Protocol

from edgepart.planner.access.declare.protocol import Access, Outputs
from edgepart.planner.devices.engine import CPU, Engine
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.lowering.draft import Case, Draft, Group, Move, Share, classify_need
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.plans.plan import GATEWAY
from edgepart.planner.plans.reduced_precision import transfer_bytes
from edgepart.planner.region import Region


class CostModel(Protocol):
    """The methods of planner/cost/cost.py that lowering needs."""

    def know(self, graph: Graph) -> None: ...

    def compute_s(
        self, op: Operator, access: Access, outputs: Outputs, device: str, engine: str | None = None
    ) -> float: ...

    def segment_s(self, device: str, engine: str = CPU) -> float: ...

    def engines(self, device: str) -> Sequence[Engine]: ...

    def copy_s(self, device: str, nbytes: float) -> float: ...

    def profiled_s(self, timed_as: str, device: str) -> float | None: ...

    def drift(self, device: str, engine: str = CPU) -> float: ...


class NoCost:
    """A cost of 0 for everything, for callers that need a correct plan without predictions."""

    def know(self, graph: Graph) -> None:
        """Does nothing."""

    def compute_s(
        self, op: Operator, access: Access, outputs: Outputs, device: str, engine: str | None = None
    ) -> float:
        return 0.0

    def segment_s(self, device: str, engine: str = CPU) -> float:
        return 0.0

    def engines(self, device: str) -> Sequence[Engine]:
        return ()

    def copy_s(self, device: str, nbytes: float) -> float:
        return 0.0

    def profiled_s(self, timed_as: str, device: str) -> float | None:
        return None

    def drift(self, device: str, engine: str = CPU) -> float:
        return 1.0


Seconds = Mapping[tuple[str, str], float]
"""Predicted seconds of shares, by operator name and device."""


class ShareTimes:
    """Predicts the seconds of shares, once for each group."""

    def __init__(self, cost: CostModel) -> None:
        self.cost = cost
        self._found: dict[Group, Seconds] = {}

    def seconds_of(self, draft: Draft) -> Seconds:
        """The seconds of every share of a draft."""
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


def predict_seconds(draft: Draft, cost: CostModel) -> Seconds:
    """The seconds of every share of a single draft."""
    return ShareTimes(cost).seconds_of(draft)


def stage_s(draft: Draft, stage: Stage, seconds: Seconds, cost: CostModel) -> float:
    """Predicted seconds of the operators of a stage."""
    if not stage.is_part and not (stage.shares and cost.engines(stage.shares[0].device)):
        return sum(seconds[share.operator.name, share.device] for share in stage.shares)
    accesses = draft.blueprint.accesses
    return sum(
        cost.compute_s(
            share.operator, accesses[share.operator.name], share.outputs, share.device, stage.engine
        )
        for share in stage.shares
    )


@dataclass(frozen=True, slots=True, order=True)
class StagePlace:
    """A position in a device's order of stages."""

    level: int
    late: int = 0
    """0 for the level's stage, 1 for work that is put off until the level's messages are sent, more for the
    parts of a cut stage (borders_first.py)."""


START = StagePlace(-1)
"""The place at which the gateway sends the inputs: before every level."""


@dataclass(frozen=True, slots=True)
class StageMessage:
    """Moves that travel together."""

    source: str
    target: str
    sent: StagePlace
    """The stage of the source; the message is sent after that stage computes."""
    received: StagePlace
    """The stage of the target; the message is received before that stage computes."""
    moves: tuple[Move, ...]


def message_bytes(problem: Problem, message: StageMessage) -> int:
    """Bytes of a message on the wire, as far as shapes are known before the run."""
    ends, tensors = (message.source, message.target), problem.graph.tensors
    shares = problem.answer_share if message.target == GATEWAY else {}
    return sum(
        ceil(
            shares.get(move.tensor, 1)
            * transfer_bytes(tensors[move.tensor], move.region, ends, problem.transfer_dtype)
        )
        for move in message.moves
    )


@dataclass(frozen=True, slots=True)
class Stage:
    """A step of a device: it receives the messages of `first`, computes, then sends the messages of `last`."""

    first: StagePlace
    last: StagePlace
    shares: tuple[Share, ...]
    """The shares that the stage computes, in the graph's order; () if it only forwards what it receives."""
    is_part: bool = False
    """Whether the shares are parts of the draft's shares: another stage computes the rest of them."""
    engine: str = CPU
    """The engine of the device that runs them."""


@dataclass(frozen=True)
class Schedule:
    """Every device's stages, in order, and the messages between them."""

    draft: Draft
    stages: Mapping[str, tuple[Stage, ...]]
    messages: tuple[StageMessage, ...]

    @cached_property
    def receives(self) -> Mapping[tuple[str, StagePlace], tuple[StageMessage, ...]]:
        """Messages by target device and `received`."""
        return _group((message.target, message.received, message) for message in self.messages)

    @cached_property
    def sends(self) -> Mapping[tuple[str, StagePlace], tuple[StageMessage, ...]]:
        """Messages by source device and `sent`."""
        return _group((message.source, message.sent, message) for message in self.messages)

    def received_messages(self, device: str, stage: Stage) -> tuple[StageMessage, ...]:
        return self.receives.get((device, stage.first), ())

    def sent_messages(self, device: str, stage: Stage) -> tuple[StageMessage, ...]:
        return self.sends.get((device, stage.last), ())


def _group(
    entries: Iterator[tuple[str, StagePlace, StageMessage]],
) -> dict[tuple[str, StagePlace], tuple[StageMessage, ...]]:
    found: dict[tuple[str, StagePlace], list[StageMessage]] = {}
    for device, at, message in entries:
        found.setdefault((device, at), []).append(message)
    return {key: tuple(messages) for key, messages in found.items()}


def reads_mixed(draft: Draft, share: Share, name: str, need: Region) -> bool:
    """Whether `need` is joined from a part that the share's device computes and parts that it receives."""
    return is_mixed(need, draft.computed_regions(name).get(share.device))


def is_mixed(need: Region, own: Region | None) -> bool:
    """Whether `need` is joined from a part of `own`, which the device computes, and parts that it receives."""
    return classify_need(need, own) in (Case.BIGGER, Case.SHIFTED)
