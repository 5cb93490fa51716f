"""Which devices were drained or removed: a versioned map that merges to the same whatever the order. No I/O.

Every member keeps it (drains.json) and tells the others of changes; per device the entry with the larger version wins, but
that a device was removed is final: one that joins again is another node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from edgepart.agent.control import DRAIN_STATES, IN, REMOVED, Drain, Version
from edgepart.agent.deployments import MAX_COUNTER, MAX_ENTRIES, Read, entries_of, whole
from edgepart.agent.records import json_record, read_json_record
from edgepart.planner.errors import UsageError

FORMAT = 1


def larger(a: Drain, b: Drain) -> Drain:
    """The entry that wins."""
    return max(a, b, key=lambda entry: (entry.state == REMOVED, entry.version, entry.state, entry.name))


class DrainMap:
    """The entries by node, those included that serve again."""

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
        """Whether these are all in it just so."""
        return all(self._entries.get(entry.node) == entry for entry in entries)

    def merge(self, entries: Iterable[Drain]) -> tuple[Drain, ...]:
        """Take in what is newer; what was taken in."""
        changed = []
        for entry in entries:
            known = self._entries.get(entry.node)
            full = known is None and len(self._entries) >= MAX_ENTRIES
            if full or entry.state not in DRAIN_STATES or not 0 < entry.version.counter < MAX_COUNTER:
                continue
            if known is None or larger(known, entry) != known:
                self._entries[entry.node] = entry
                changed.append(entry)
        return tuple(changed)

    def put(self, writer: str, node: str, name: str, state: str) -> Drain:
        """A new entry, written by `writer`. UsageError where the device was removed, or the map is full."""
        known = self._entries.get(node)
        if known is None and len(self._entries) >= MAX_ENTRIES:
            raise UsageError(f"{MAX_ENTRIES} devices were drained or removed so far, the most there can be")
        if known is not None and known.state == REMOVED:
            raise UsageError(
                f"{name or node} was removed from the cluster; to come back it has to join again"
            )
        counter = known.version.counter if known else 0
        entry = self._entries[node] = Drain(node, name, state, Version(counter + 1, writer))
        return entry


def to_json(entries: Iterable[Drain]) -> dict[str, Any]:
    """The content of drains.json."""
    return {"format": FORMAT, "drains": [json_record(entry) for entry in entries]}


def from_json(document: Any) -> tuple[Drain, ...]:
    """The entries. UsageError names the place and the fault."""
    return whole(readable_from_json(document))


def readable_from_json(document: Any) -> Read[Drain]:
    """The entries that can be read, and what is wrong with each of the others. UsageError where it is no such document."""
    return entries_of(document, "drains", FORMAT, lambda entry: read_json_record(Drain, entry))
