"""Node parts: what NodeApi is made of. agent/wiring/ makes the parts. Facts, about doors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepart.agent.api.drain import SignEntry
from edgepart.agent.chronicle.event_log import EventLog
from edgepart.agent.chronicle.log_lines import LogLine
from edgepart.agent.chronicle.numbered_log import NumberedLog
from edgepart.agent.cluster.state import events
from edgepart.agent.doctor.report import DoctorReport
from edgepart.agent.measure.trace_collector import TraceCollector
from edgepart.agent.serving.loaded_plans import LoadedPlans
from edgepart.agent.serving.request_gatherer import RequestGatherer
from edgepart.agent.serving.sequences import Sequences
from edgepart.agent.serving.shape_routing import ShapeRouter
from edgepart.agent.storage.store import Store
from edgepart.agent.text.token_sequences import TokenSequences
from edgepart.agent.wire.inference import DeployOptions, Epoch
from edgepart.planner.plans.plan import ValueInfo


@dataclass(frozen=True)
class NodeIdentity:
    """This device's name, its cluster and where its clients connect."""

    name: str
    fingerprint: str
    """The fingerprint of the cluster's CA, in hex."""
    http: Callable[[], str]
    """Returns the URL of this agent's HTTP API; "" while it does not listen."""
    grpc: Callable[[], str]
    """Returns the address of this agent's gRPC server; "" while it does not listen."""
    grpc_trouble: Callable[[], str]
    """Returns why it does not listen although it is to; "" if there is no trouble."""


@dataclass(frozen=True)
class RequestServing:
    """The parts that answer requests here, and their counters."""

    plans: LoadedPlans
    router: ShapeRouter
    gatherer: RequestGatherer
    sequences: Sequences
    tokens: TokenSequences
    kept: Callable[[], tuple[int, int, int]]
    """Returns Executor.count_sequences."""
    mirrored_bytes: Callable[[], int]
    """Returns the bytes that copies of other devices' states take here."""
    latencies: Callable[[], Mapping[tuple[str, Epoch], Sequence[float]]]
    """Returns the seconds that requests took that ran alone on this gateway, by deployment and epoch."""
    computed: Callable[[], int]
    """Returns the number of requests of which this device has computed its part."""
    workers_ended: Callable[[], Mapping[str, int]]
    """Returns the number of worker processes that ended unexpectedly here, by deployment."""


@dataclass(frozen=True)
class ModelFiles:
    """The store of models, and the function that examines new ones in a process of its own."""

    store: Store
    examine: Callable[
        [Path, DeployOptions],
        tuple[Sequence[str], Sequence[Path], DeployOptions, tuple[Sequence[ValueInfo], Sequence[ValueInfo]]],
    ]
    """Returns notes about a model, its files, the options with the shapes that are assumed and the states that were found,
    and its inputs and outputs."""
    fetch: Callable[[str, Sequence[str]], Awaitable[None]]
    """(digest, nodes): returns once the model is in the store. Raises Unavailable if none of the nodes has it."""


@dataclass(frozen=True)
class ManagementActions:
    """The functions that carry out what users ask for."""

    post: Callable[[events.Event], None]
    sealed: SignEntry
    """Has a user's request about drains signed."""
    written: Callable[[], Awaitable[None]]
    """Waits until all waiting writes of state files were tried."""


@dataclass(frozen=True)
class Diagnostics:
    """The parts that describe the state of this device to people."""

    tracing: TraceCollector
    doctor: DoctorReport
    security: Callable[[], dict[str, Any]]
    """Returns the report on certificates and the charter (agent/admission/renewal.py)."""
    disk: Callable[[], Mapping[str, Any]]
    """Returns the state of the disk (agent/maintenance.py)."""
    events: EventLog
    log_lines: NumberedLog[LogLine]
    traffic: Callable[[], Mapping[str, Mapping[str, int]]]
    """Returns what went over this agent's links, by node: "sent_bytes" and "received_bytes"."""
