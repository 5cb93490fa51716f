"""Tasks: the requests under way on this device, and the installed programs that they follow. Rules: no door."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass(eq=False)
class RequestTask:
    """One request under way on this device."""

    deployment: str
    epoch: Epoch
    request: str
    installed: InstalledProgram
    progress: Progress
    exact: bool = False
    """Whether none of the request's pieces may be rounded."""
    step: SequenceStep | None = None
    """The step of a sequence that the request is; None if it is none."""
    prefill: bool = False
    """Whether it reads many rows at once."""
    began: Sequence[Value] = field(default=(), init=False)
    """The kept pieces of states with which it began."""

    @property
    def lane(self) -> str:
        return parent_of(self.deployment)

    @property
    def sequence(self) -> SequenceKey | None:
        return (self.deployment, self.epoch, self.step.sequence) if self.step is not None else None

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
    return InstalledProgram(prepared, schedule, dict(nodes), peers, prepared.scratch())


def check_same_request(task: RequestTask, message: Tensors) -> None:
    """Raises FrameError if a frame of a request contradicts what the request is."""
    if (message.deployment, message.epoch) != (task.deployment, task.epoch):
        raise FrameError(f"request {message.request} is of {task.deployment} {task.epoch}")
    if (message.step, message.prefill) != (task.step, task.prefill):
        raise FrameError(f"request {message.request} is {task.step or 'no step of a sequence'}")
    if task.step is not None and gateway_of(task.step.sequence) != gateway_of(task.request):
        raise FrameError(f"request {message.request} is a step of another gateway's sequence")


def may_send(installed: InstalledProgram, message: Tensors, source: str) -> bool:
    """Whether a frame comes from the node that the plan names. A `source` of "" is unknown, as in trials, and passes."""
    transfer = installed.schedule.incoming.get(message.transfer)
    by_gateway = transfer is None or transfer.source == GATEWAY
    expected = (
        gateway_of(message.request) if by_gateway or transfer is None else installed.nodes[transfer.source]
    )
    if not source or source == expected:
        return True
    log.warning("node %s sent data of a request that is not its to send", source)
    return False
