"""Agents' transports on loopback, for tests: what they were told, and waiting for it with a bound."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from edgepart.agent.net.transport import Carrier, OnJoin, Transport, TransportOptions
from edgepart.agent.security.identity import Identity
from edgepart.agent.wire.address import Address
from edgepart.agent.wire.frames import Frame

BOUND_S = 15.0
"""No wait of a test takes longer; a failing one ends there."""


@dataclass
class Station:
    """A transport that keeps what comes in."""

    identity: Identity
    handle: Callable[[str, str, Frame], None] | None = None
    on_join: OnJoin | None = None
    options: TransportOptions | None = None
    carrier: Carrier | None = None
    frames: list[tuple[str, str, Frame]] = field(default_factory=list)
    links: list[tuple[str, bool, str]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.transport = Transport(
            self.identity, self._frame, self._link, self.on_join, self.options, carrier=self.carrier
        )
        self.address: Address = self.transport.listen("127.0.0.1", 0)

    @property
    def node_id(self) -> str:
        return self.identity.node_id

    def _frame(self, node_id: str, channel: str, frame: Frame) -> None:
        with self.changed:
            self.frames.append((node_id, channel, frame))
            self.changed.notify_all()
        if self.handle is not None:
            self.handle(node_id, channel, frame)

    def _link(self, node_id: str, up: bool, text: str) -> None:
        with self.changed:
            self.links.append((node_id, up, text))
            self.changed.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, BOUND_S), (self.links, len(self.frames))

    def changes(self) -> list[tuple[str, bool]]:
        return [(node_id, up) for node_id, up, _ in self.links]


@contextmanager
def stations(*identities: Identity, options: TransportOptions | None = None) -> Iterator[list[Station]]:
    made = [Station(identity, options=options) for identity in identities]
    try:
        yield made
    finally:
        for station in made:
            station.transport.stop(0.0)
