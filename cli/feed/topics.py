"""Topics: messages at an MQTT broker as frames, and answers as messages. Door: the agent's session with a broker."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence

from edgepart.agent.mqtt.broker import Broker
from edgepart.agent.mqtt.session import Session, SessionOptions
from edgepart.planner.errors import UsageError

CONNECT_S = 10.0
"""Seconds that the first connection to the broker may take."""
LARGEST_BYTES = 64 << 20
"""Bytes of the largest message that is taken."""


def check_topics(read: str | None, written: str | None) -> None:
    """Raises UsageError unless `read` is a topic, which may have wildcards, and `written` is one without any that is not
    among those that are read."""
    for option, topic in (("--mqtt", read), ("--to-topic", written)):
        if topic is not None and (not topic or "\0" in topic or len(topic.encode()) > 65535):
            raise UsageError(f"{option} {topic[:80]!r}: is no topic of MQTT")
    if read is not None:
        levels = read.split("/")
        wild = [level for level in levels if "+" in level or "#" in level]
        if any(level not in ("+", "#") for level in wild) or "#" in levels[:-1]:
            raise UsageError(
                f"--mqtt {read!r}: + stands for a whole level of a topic, and # for all that follow"
            )
    if written is not None and ("+" in written or "#" in written):
        raise UsageError(f"--to-topic {written!r}: answers need one topic, without + and #")
    if read is not None and written is not None and _matches(read.split("/"), written.split("/")):
        raise UsageError(f"--to-topic {written!r}: --mqtt {read!r} would read the answers as frames")


def _matches(pattern: Sequence[str], levels: Sequence[str]) -> bool:
    """Whether a subscription to `pattern` is sent messages of the topic with these levels.

    >>> _matches(["a", "+"], ["a", "b"]), _matches(["a", "#"], ["a"]), _matches(["a"], ["a", "b"])
    (True, True, False)
    """
    if pattern[:1] == ["#"]:
        return True
    if not pattern or not levels:
        return not pattern and not levels
    return pattern[0] in ("+", levels[0]) and _matches(pattern[1:], levels[1:])


class BrokerTopics:
    """The feed's connection to a broker, as a context manager. It is a part of the session, whose thread calls `topics` and
    the methods after it."""

    def __init__(self, broker: Broker, read: str | None) -> None:
        """`read` is the topic whose messages are frames; None if the broker only gets answers."""
        self._read = read
        self._session = Session(
            broker,
            f"edgepart-feed-{secrets.token_hex(6)}",
            None,
            SessionOptions(largest_message_bytes=LARGEST_BYTES),
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._messages: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        self.unsent = 0
        """Answers that could not be published, because there was no connection to the broker."""

    async def __aenter__(self) -> BrokerTopics:
        """Raises Unavailable, with the reason, if the broker does not let us in."""
        self._loop = asyncio.get_running_loop()
        self._session.start([self])
        try:
            await asyncio.to_thread(self._session.await_up, CONNECT_S)
        except BaseException:
            await asyncio.to_thread(self._session.stop)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._session.stop)

    async def frames(self) -> AsyncGenerator[tuple[str, bytes], None]:
        """Topics and messages as they come, for ever. The connection is made anew when it is lost."""
        while True:
            yield await self._messages.get()

    def publish(self, topic: str, payload: bytes) -> None:
        """Publishes a message, with QoS 1."""

        def send() -> None:
            if not self._session.publish(topic, payload, qos=1):
                self.unsent += 1

        self._session.post(send)

    # A part of the session

    def topics(self) -> list[str]:
        return [] if self._read is None else [self._read]

    def connected(self) -> None:
        """The session has said so in its log."""

    def disconnected(self, why: str) -> None:
        """The session has said so in its log, and goes on trying."""

    def took(self, topic: str, payload: bytes, retained: bool) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._messages.put_nowait, (topic, payload))

    def unheard(self, message_id: int) -> None:
        """Nobody has to read the answers."""

    def poll_events(self) -> Mapping[int, int]:
        return {}

    def ready(self, descriptor: int, events: int) -> None:
        """There are no descriptors to wait for."""

    def tick(self) -> None:
        """Nothing is due from time to time."""
