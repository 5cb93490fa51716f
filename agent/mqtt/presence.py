"""Presence: agents announce through the broker that they are running, and at which addresses. Records and their reader are
rules; the class is a part of the session (session.py).

Each agent keeps a retained record under its node id, so that agents that connect later read it at once, and a will, by
which the broker itself announces that the agent is gone. As with mDNS no record is trusted (anybody who may write to the
broker can send one). A record is only a hint to connect, or to check whether an agent is still there (tunnel_sockets.py);
it never ends a link.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edgepart.agent.mqtt.session import Session, Will
from edgepart.agent.net.sightings import FINGERPRINT_DIGITS, MOST_ADDRESSES, AgentHint
from edgepart.agent.security.certificates import NODE_ID
from edgepart.agent.wire.address import Address, format_address, parse_address
from edgepart.planner.errors import FrameError, UsageError

log = logging.getLogger(__name__)

VERSION = 1
MOST_BYTES = 4096
"""The size limit of a record."""
MOST_NODES = 1024
"""The most nodes whose records are kept, so that other writers at the broker cannot fill our memory."""
GONE_S = 3600
"""Seconds after a goodbye for which the broker keeps the record that the agent is gone."""
AGAIN_TICKS = 30
"""The number of the session's ticks after which hints are repeated, as in mDNS, because dialling forgets them."""


@dataclass(frozen=True, slots=True)
class Present:
    """The record in which an agent announces itself."""

    node: str
    boot: str
    """A random id of the agent's process."""
    name: str = ""
    """The member's name, for people."""
    version: str = ""
    addresses: tuple[Address, ...] = ()
    """Empty if the agent is gone."""

    def encode(self) -> bytes:
        document = {
            "v": VERSION,
            "node": self.node,
            "boot": self.boot,
            "name": self.name,
            "version": self.version,
            "addresses": [format_address(address) for address in self.addresses[:MOST_ADDRESSES]],
        }
        return json.dumps(document).encode()

    @property
    def gone(self) -> Present:
        return Present(self.node, self.boot)


def read_present(topic: str, payload: bytes) -> Present:
    """Return the record in a message. Raises FrameError if no agent can have written it."""
    if len(payload) > MOST_BYTES:
        raise FrameError(f"{len(payload)} bytes are too many")
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("v") != VERSION:
        raise FrameError("no record of this version")
    node, boot = _text(document, "node"), _text(document, "boot")
    if not NODE_ID.fullmatch(node) or node != topic.rpartition("/")[2] or not NODE_ID.fullmatch(boot):
        raise FrameError("not of the node that the topic names")
    listed = document.get("addresses")
    if not isinstance(listed, list) or len(listed) > MOST_ADDRESSES:
        raise FrameError(f"addresses are a list of up to {MOST_ADDRESSES}")
    try:
        addresses = tuple(parse_address(str(text)) for text in listed)
    except UsageError as error:
        raise FrameError(str(error)) from error
    return Present(node, boot, _text(document, "name"), _text(document, "version"), addresses)


def _text(document: dict[str, Any], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or not value.isprintable():
        raise FrameError(f"{key} is no text")
    return value[:63]


class Presence:
    """Announces this agent, and receives the announcements of others."""

    def __init__(
        self,
        session: Session,
        root: str,
        fingerprint: str,
        on_seen: Callable[[AgentHint], None],
        on_doubt: Callable[[str, str], None],
    ) -> None:
        """Set up presence, which announces nothing before `say`. The session's thread calls `on_seen` for agents that are
        there, and `on_doubt(node, why)` for agents that are said to be gone."""
        self._session = session
        self._root = root
        self._fingerprint = fingerprint[:FINGERPRINT_DIGITS]
        self._on_seen = on_seen
        self._on_doubt = on_doubt
        self._me: Callable[[], Present] | None = None
        self._said: Present | None = None
        self._known: dict[str, Present] = {}
        self._ticks = 0

    def say(self, me: Callable[[], Present]) -> None:
        """Announce this member from now on. Call this before the session starts. `me` is called again now and then,
        because addresses change."""
        self._me = me

    def goodbye(self) -> None:
        """Announce that this agent is gone, before the connection is ended on purpose: the broker publishes no will
        then."""
        if self._said is not None:
            self._publish(self._said.gone, GONE_S)
            self._said = None

    # A part of the session

    def topics(self) -> Sequence[str]:
        return [f"{self._root}/presence/+"]

    def connected(self) -> None:
        if self._me is not None:
            self._said = self._me()
            self._publish(self._said)

    def disconnected(self, why: str) -> None:
        """Forget all records: the broker sends those of running agents again after the next connection."""
        self._known.clear()

    def took(self, topic: str, payload: bytes, retained: bool) -> None:
        if not topic.startswith(f"{self._root}/presence/") or not payload:
            return
        try:
            record = read_present(topic, payload)
        except FrameError as error:
            log.debug("%s is not used: %s", topic, error)
            return
        if self._said is not None and record.node == self._said.node:
            self._heard_of_me(record)
        elif record.addresses:
            self._came(record)
        elif (known := self._known.get(record.node)) is not None and known.boot == record.boot:
            del self._known[record.node]
            self._on_doubt(record.node, "it has left the broker")

    def unheard(self, message_id: int) -> None:
        """Do nothing: there need not be any other agent."""

    def poll_events(self) -> dict[int, int]:
        return {}

    def ready(self, descriptor: int, events: int) -> None:
        """Do nothing: this part has no sockets."""

    def tick(self) -> None:
        self._ticks += 1
        if self._ticks % AGAIN_TICKS:
            return
        for record in self._known.values():
            self._tell(record)
        if self._me is not None and (now := self._me()) != self._said:  # The addresses have changed.
            self._said = now
            self._publish(now)

    def _came(self, record: Present) -> None:
        known = self._known.get(record.node)
        if known is None and len(self._known) >= MOST_NODES:
            return
        self._known[record.node] = record
        if known is not None and known.boot != record.boot:
            self._on_doubt(record.node, "it was started anew")
        self._tell(record)

    def _heard_of_me(self, record: Present) -> None:
        assert self._said is not None
        if not record.addresses:
            # The will of an earlier start or an earlier connection, whose end the broker noticed late.
            self._publish(self._said)
        elif record.boot != self._said.boot:
            log.warning("another agent says that it is this node: was its state directory copied?")

    def _tell(self, record: Present) -> None:
        self._on_seen(
            AgentHint(record.node, record.addresses, self._fingerprint, record.name, True, record.version)
        )

    def _publish(self, record: Present, expiry_s: int | None = None) -> None:
        self._session.publish(
            f"{self._root}/presence/{record.node}", record.encode(), qos=1, retain=True, expiry_s=expiry_s
        )


def will(root: str, node: str, boot: str) -> Will:
    return Will(f"{root}/presence/{node}", Present(node, boot).encode(), GONE_S)
