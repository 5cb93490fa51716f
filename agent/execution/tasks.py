"""Tasks: the requests under way on this device, and the installed programs that they follow. Rules: no door."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from edgepart.agent.cluster.state.bindings import parent_of
from edgepart.agent.execution.copies import Scratch
from edgepart.agent.execution.prepared import RunnableProgram
from edgepart.agent.execution.schedule import DeviceSchedule, Progress, make_schedule
from edgepart.agent.execution.sequences import SequenceKey
from edgepart.agent.trace.spans import Subject
from edgepart.agent.wire.inference import Epoch, SequenceStep, Tensors
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import FrameError, InternalError
from edgepart.planner.plans.plan import GATEWAY, Transfer

log = logging.getLogger(__name__)


READ_HERE_BYTES = 256 << 10
"""The largest transfer for whose sake a compute thread reads a connection itself. Larger ones are better received by
several threads at once, and their bytes take longer than waking a thread."""
TRIAL_WAITS_S = 2.0
"""The seconds by which a request that tries a plan lets later requests go first. If they were more, users would notice less
of trials; if fewer, plans would be tried sooner on a device that is never idle."""
START_TRANSFER = -1
"""The `Tensors.transfer` of a message without arrays, with which the gateway starts a device whose program receives
nothing."""


class StepKind(Enum):
    """The kinds of steps, each of which has programs of its own."""

    USUAL = "usual"
    """A step of one sequence or of none, with an answer."""
    PREFILL = "prefill"
    """A step of one sequence that reads many rows at once, without an answer."""
    BATCH = "batch"
    """A step in each of several sequences."""

    @classmethod
    def of(cls, steps: Sequence[SequenceStep], *, prefill: bool) -> StepKind:
        """The kind of a request that makes `steps` in several sequences, or reads many rows at once, or neither."""
        if steps:
            return cls.BATCH
        return cls.PREFILL if prefill else cls.USUAL


def kind_of(message: Tensors) -> StepKind:
    """The kind of step of which the message is a part."""
    return StepKind.of(message.steps, prefill=message.prefill)


def steps_of(message: Tensors) -> tuple[SequenceStep, ...]:
    """The steps of the request of which the message is a part."""
    return message.steps or ((message.step,) if message.step is not None else ())


@dataclass(frozen=True)
class InstalledProgram:
    """A program of this device, and what is the same for all of its requests."""

    prepared: RunnableProgram
    schedule: DeviceSchedule
    nodes: Mapping[str, str]
    peers: frozenset[str]
    """Node ids that the program's transfers come from or go to."""
    scratch: Scratch
    """Used by the compute thread only."""
    senders: Mapping[int, str] = field(default_factory=dict)
    """The node ids from which transfers come, by their numbers; the gateway, whose id is not known, sends the others."""
    large: frozenset[int] = frozenset()
    """The numbers of the incoming transfers that a compute thread does not read itself."""


@dataclass(eq=False)
class RequestTask:
    """One request under way on this device."""

    deployment: str
    epoch: Epoch
    request: str
    installed: InstalledProgram
    progress: Progress
    exact: bool = False
    """Whether none of the request's pieces may be rounded, as with all by which the agents try plans."""
    steps: tuple[SequenceStep, ...] = ()
    """The steps of sequences that the request makes: none, one, or one for each place of a batch."""
    kind: StepKind = StepKind.USUAL
    likely: int = 0
    """How many of the most likely entries the gateway wants of the pieces that go to it; 0 if it wants whole pieces."""
    came_s: float = 0.0
    """When the request came, on the monotonic clock."""
    is_checked: bool = field(default=False, init=False)
    """Whether a message of the request was found to be what a gateway may send."""
    began: Sequence[Value] = field(default=(), init=False)
    """The kept pieces of states with which it began."""

    @cached_property
    def lane(self) -> str:
        return parent_of(self.deployment)

    @cached_property
    def gateway(self) -> str:
        """The node id of the request's gateway."""
        return gateway_of(self.request)

    def sender_of(self, transfer: int) -> str:
        """The node id from which a transfer of the request comes, or the message that starts the request."""
        return self.installed.senders.get(transfer, self.gateway)

    @cached_property
    def fields(self) -> tuple[SequenceStep | None, bool, tuple[SequenceStep, ...], int]:
        """What `Tensors` of the request say of its steps and its answer: `step`, `prefill`, `steps` and `likely`."""
        if self.kind is StepKind.BATCH:
            return None, False, self.steps, self.likely
        return next(iter(self.steps), None), self.kind is StepKind.PREFILL, (), self.likely

    @cached_property
    def by_sequence(self) -> Mapping[SequenceKey, SequenceStep]:
        """The steps by their sequences, without places of a batch that are of no sequence."""
        return {(self.deployment, self.epoch, one.sequence): one for one in self.steps if one.sequence}

    @property
    def counts_from_s(self) -> float:
        """From when on the request waits for its turn."""
        return self.came_s + TRIAL_WAITS_S if self.exact else self.came_s

    @property
    def subject(self) -> Subject:
        return Subject(self.deployment, self.epoch, self.request)


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A request that this device finished and that may be asked for again. This record refers to no program."""

    deployment: str
    epoch: Epoch
    request: str
    peers: frozenset[str]
    at_s: float


def gateway_of(request: str) -> str:
    """The node id of a request's gateway, which is the first part of its name.

    >>> gateway_of("00ff00ff00ff00ff/5e8f10a2/17-9c01d3be5f7a2260")
    '00ff00ff00ff00ff'
    """
    return request.partition("/")[0]


def make_installed(
    deployment: str, prepared: RunnableProgram, transfers: Sequence[Transfer], nodes: Mapping[str, str]
) -> InstalledProgram:
    """The program with its schedule. Raises InternalError if the schedule cannot be made, or a node id is missing."""
    schedule = make_schedule(prepared.program, transfers, prepared.dtypes, prepared.kept)
    ends = {t.source for t in schedule.incoming.values()} | {t.target for t in schedule.outgoing.values()}
    if unknown := ends - set(nodes) - {GATEWAY}:
        raise InternalError(f"plan of {deployment}: no node id given for devices {sorted(unknown)}")
    peers = frozenset(nodes[name] for name in ends - {GATEWAY})
    incoming = schedule.incoming.values()
    senders = {one.number: nodes[one.source] for one in incoming if one.source != GATEWAY}
    large = frozenset(one.number for one in incoming if one.nbytes > READ_HERE_BYTES)
    return InstalledProgram(prepared, schedule, dict(nodes), peers, prepared.scratch(), senders, large)


def check_same_request(task: RequestTask, message: Tensors) -> None:
    """Raises FrameError if a frame of a request contradicts what the request is."""
    said = (message.step, message.prefill, message.steps, message.likely)
    if (
        task.is_checked
        and said == task.fields
        and (message.deployment, message.epoch) == (task.deployment, task.epoch)
    ):
        return
    if (message.deployment, message.epoch) != (task.deployment, task.epoch):
        raise FrameError(f"request {message.request} is of {task.deployment} {task.epoch}")
    if (kind_of(message), steps_of(message)) != (task.kind, task.steps):
        raise FrameError(f"request {message.request} makes other steps: {task.steps or 'none of a sequence'}")
    if message.likely != task.likely:
        raise FrameError(f"request {message.request} wants {task.likely} likely entries, 0 standing for all")
    if any(gateway_of(one.sequence) != gateway_of(task.request) for one in task.by_sequence.values()):
        raise FrameError(f"request {message.request} is a step of another gateway's sequence")
    task.is_checked = True


def may_send(installed: InstalledProgram, message: Tensors, source: str) -> bool:
    """Whether a frame comes from the node that the plan names. A `source` of "" is unknown, as in trials, and passes."""
    if not source or source == (installed.senders.get(message.transfer) or gateway_of(message.request)):
        return True
    log.warning("node %s sent data of a request that is not its to send", source)
    return False
