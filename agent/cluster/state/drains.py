"""The map of drains: which devices were drained or removed. It is versioned, and merging gives the same
result in any order. Rules, without I/O.

Every member keeps the map (drains.json) and tells the others of changes. For each device the entry with the
larger version wins; of two entries of one version, the one that says that the device was removed wins. A
device that was removed and joins again is another node.

Each entry is signed with the CA's key, as charters are, so that any member can pass it on and none can forge
one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from cryptography import x509

from edgepart.agent.cluster.state.deployments import (
    MAX_COUNTER,
    MAX_ENTRIES,
    ReadResult,
    read_entries,
    require_all_readable,
)
from edgepart.agent.security import charter
from edgepart.agent.security.certificates import Key, fingerprint
from edgepart.agent.wire.codec import json_record, read_json_record
from edgepart.agent.wire.control import DRAIN_STATES, IN, REMOVED, REMOVING, Drain, Version
from edgepart.planner.errors import FrameError, UsageError

FORMAT = 1


def choose_winner(a: Drain, b: Drain) -> Drain:
    """The entry that wins a merge."""
    return max(a, b, key=_rank)


def _rank(entry: Drain) -> tuple[Version, bool, str, str, bytes]:
    return entry.version, entry.state == REMOVED, entry.state, entry.name, entry.signature


def sign(entry: Drain, ca: x509.Certificate, key: Key) -> Drain:
    """The entry with the CA's signature."""
    return replace(entry, signature=charter.sign(_statement(entry, ca), key))


def is_signed(entry: Drain, ca: x509.Certificate) -> bool:
    """Whether the CA signed the entry."""
    return charter.is_signed(entry.signature, _statement(entry, ca), ca)


def _statement(entry: Drain, ca: x509.Certificate) -> bytes:
    state = REMOVING if entry.state == REMOVED else entry.state
    version = entry.version
    words = [
        "edgepart drain 1",
        fingerprint(ca),
        entry.node,
        entry.name,
        state,
        version.counter,
        version.node,
    ]
    return json.dumps(words).encode()


class DrainMap:
    """Entries by node, including those of devices that serve again."""

    def __init__(self, entries: Iterable[Drain] = ()) -> None:
        self._entries: dict[str, Drain] = {}
        self.merge(entries)

    def __iter__(self) -> Iterator[Drain]:
        """All entries, sorted by node."""
        return iter([self._entries[node] for node in sorted(self._entries)])

    def get(self, node: str) -> Drain | None:
        return self._entries.get(node)

    def state(self, node: str) -> str:
        entry = self._entries.get(node)
        return entry.state if entry else IN

    def has(self, entries: Iterable[Drain]) -> bool:
        """Whether the map contains each of these entries, exactly as given."""
        return all(self._entries.get(entry.node) == entry for entry in entries)

    def merge(self, entries: Iterable[Drain]) -> tuple[Drain, ...]:
        """Take over the entries that are newer than what is known; return those that were taken over."""
        changed = []
        for entry in entries:
            known = self._entries.get(entry.node)
            full = known is None and len(self._entries) >= MAX_ENTRIES
            if full or entry.state not in DRAIN_STATES or not 0 < entry.version.counter < MAX_COUNTER:
                continue
            if known is None or choose_winner(known, entry) != known:
                self._entries[entry.node] = entry
                changed.append(entry)
        return tuple(changed)

    def next(self, writer: str, node: str, name: str, state: str) -> Drain:
        """The next entry of a device, not signed yet. Raises UsageError if the device was removed, or if the
        map is full."""
        known = self._entries.get(node)
        if known is None and len(self._entries) >= MAX_ENTRIES:
            raise UsageError(f"{MAX_ENTRIES} devices were drained or removed so far, the most there can be")
        if known is not None and known.state == REMOVED:
            raise UsageError(
                f"{name or node} was removed from the cluster; to come back it has to join again"
            )
        return Drain(node, name, state, Version((known.version.counter if known else 0) + 1, writer))


def to_json(entries: Iterable[Drain]) -> dict[str, Any]:
    """The content of drains.json."""
    return {"format": FORMAT, "drains": [_pack(entry) for entry in entries]}


def from_json(document: Any) -> tuple[Drain, ...]:
    """The entries of a document. Raises UsageError, which names the place and the fault, if one cannot be
    read."""
    return require_all_readable(read_drains(document))


def read_drains(document: Any) -> ReadResult[Drain]:
    """The readable entries, and what is wrong with each of the others. Raises UsageError if the document has
    another form."""
    return read_entries(document, "drains", FORMAT, _entry)


def _pack(entry: Drain) -> dict[str, Any]:
    packed: dict[str, Any] = json_record(entry)
    return packed | {"signature": entry.signature.hex()}


def _entry(document: Any) -> Drain:
    try:
        signature = bytes.fromhex(document.get("signature", ""))
    except (AttributeError, ValueError, TypeError) as error:
        raise FrameError(f"Drain.signature: {error}") from error
    return read_json_record(Drain, document | {"signature": signature})
