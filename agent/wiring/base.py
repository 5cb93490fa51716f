"""Wiring's base: what an agent has before any part is made, and what the parts tell it. Facts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Protocol

from edgepart.agent.chronicle.event_log import EventLog
from edgepart.agent.chronicle.log_lines import LogLine
from edgepart.agent.chronicle.numbered_log import NumberedLog
from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.state import events
from edgepart.agent.engines.verdicts import VerdictBook
from edgepart.agent.options import AgentOptions
from edgepart.agent.security.identity import Identity
from edgepart.agent.state_files import StateFiles
from edgepart.agent.storage.integrity import StoreIntegrity
from edgepart.agent.storage.store import Store
from edgepart.agent.storage.write_queue import DiskQueue
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.wire.address import Address
from edgepart.agent.wire.control import Drain
from edgepart.agent.wire.frames import Frame


class Reactions(Protocol):
    """The calls by which the parts tell the agent what happens. All but `post` and `members_changed` may be
    made in any thread."""

    def frame(self, node: str, channel: str, frame: Frame) -> None: ...
    def link(self, node: str, up: bool, text: str) -> None: ...
    def post(self, event: events.Event) -> None: ...
    def core(self) -> Core: ...
    def engine_judged(self, verdicts: VerdictBook) -> None: ...
    def addresses(self) -> list[Address]: ...
    def link_bytes_s(self, node: str) -> float: ...
    def model_crashed(self, deployment: str, model: str, why: str) -> None: ...
    def members_changed(self, members: tuple[events.Member, ...]) -> None: ...
    def discharge(self, why: str) -> None: ...


@dataclass(frozen=True)
class AgentBase:
    """The parts that an agent has before it measures or starts anything."""

    options: AgentOptions
    name: str
    identity: Identity
    files: StateFiles
    drains: tuple[Drain, ...]
    store: Store
    integrity: StoreIntegrity
    disk: DiskQueue
    recorder: Recorder
    ending: AsyncExitStack
    """Undoes what was started, the last thing first."""
    log_lines: NumberedLog[LogLine]
    events: EventLog = field(default_factory=EventLog)

    def undo(self, stop: Callable[[], object]) -> None:
        """Have `stop` called in a thread when the agent ends."""
        self.ending.push_async_callback(asyncio.to_thread, stop)
