"""A broker in memory, and sessions on it that a test turns: no thread, no network, and messages are lost when a test says
so."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from edgepart.planner.errors import Unavailable


@dataclass
class FakeBroker:
    """Keeps what was published until `deliver` is called."""

    queue: deque[tuple[str, bytes, bool]] = field(default_factory=deque)
    sessions: list[FakeSession] = field(default_factory=list)
    retained: dict[str, bytes] = field(default_factory=dict)

    def deliver(self) -> bool:
        """One message to whoever reads its topic; whether there was one."""
        if not self.queue:
            return False
        topic, payload, retain = self.queue.popleft()
        if retain:
            self.retained[topic] = payload
        for session in self.sessions:
            session.hand(topic, payload, False)
        return True

    def settle(self) -> None:
        """Everything that there is to do is done."""
        busy = True
        while busy:
            busy = self.deliver() or sum(session.turn() for session in self.sessions) > 0


class FakeSession:
    """As session.Session to its parts."""

    def __init__(self, network: FakeBroker, largest_bytes: int = 1 << 20) -> None:
        self.network = network
        self.broker = "mqtt://fake"
        self.largest_bytes = largest_bytes
        self.is_up = True
        self.is_full = False
        self.parts: list[Any] = []
        self._ids = 0
        self._unheard: list[int] = []
        network.sessions.append(self)

    def start(self, *parts: Any) -> None:
        self.parts += parts
        for part in parts:
            part.connected()
        for topic, payload in self.network.retained.items():
            self.hand(topic, payload, True)

    def reads(self, topic: str) -> bool:
        if not self.is_up:
            return False
        filters = [each for part in self.parts for each in part.topics()]
        return any(topic.rpartition("/")[0] == each.removesuffix("/+") for each in filters)

    def hand(self, topic: str, payload: bytes, retained: bool) -> None:
        if self.reads(topic):
            for part in self.parts:
                part.took(topic, payload, retained)

    def publish(
        self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False, expiry_s: int | None = None
    ) -> int:
        self._ids += 1
        assert len(payload) <= self.largest_bytes
        self.network.queue.append((topic, payload, retain))
        if qos and not retain and not any(session.reads(topic) for session in self.network.sessions):
            self._unheard.append(self._ids)
        return self._ids

    def post(self, work: Callable[[], None]) -> None:
        self._unheard = []
        work()
        for message_id in self._unheard:
            for part in self.parts:
                part.unheard(message_id)
        while self.network.deliver():
            pass

    def check_up(self) -> None:
        if not self.is_up:
            raise Unavailable("no connection to the broker")

    def turn(self) -> bool:
        """One look at the local sockets; whether anything was to be done."""
        watched: dict[int, int] = {}
        for part in self.parts:
            found: Mapping[int, int] = part.poll_events()
            watched.update(found)
        poll = select.poll()
        for descriptor, events in watched.items():
            poll.register(descriptor, events)
        happened = poll.poll(0)
        for descriptor, events in happened:
            for part in self.parts:
                part.ready(descriptor, events)
        return bool(happened)
