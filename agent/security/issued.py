"""Ledger: the devices that this holder of the CA's key has let in. Door: STATE/identity/issued.json.

With it a user can revoke a box that is gone by its familiar name, and see which devices joined by which token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgepart.agent.storage.atomic_files import read_json
from edgepart.agent.storage.private_files import lock_folder, write_private
from edgepart.planner.errors import UsageError

MOST_ENTRIES = 10_000
"""The most entries that are kept; the oldest beyond this are forgotten."""


@dataclass(frozen=True, slots=True)
class IssuedEntry:
    """One device that was let in."""

    node: str
    name: str
    """The name that the device gave itself; "" if it gave none."""
    token: str
    """The id of the token by which the device joined."""
    at_s: float
    """Seconds since 1970."""


def read(directory: Path) -> tuple[IssuedEntry, ...]:
    """Read the entries in an identity's folder, oldest first. UsageError if they are damaged."""
    path = directory / "issued.json"
    document = read_json(path)
    try:
        return () if document is None else tuple(_entry(entry) for entry in document["issued"])
    except (TypeError, KeyError) as error:
        raise UsageError(f"{path} is damaged ({error}): move it away; it is for people only") from error


def _entry(document: Any) -> IssuedEntry:
    entry = IssuedEntry(**document)
    texts = all(isinstance(text, str) for text in (entry.node, entry.name, entry.token))
    if not texts or type(entry.at_s) not in (int, float):
        raise TypeError(f"an entry {str(document)[:80]}")
    return entry


def add(directory: Path, entry: IssuedEntry) -> None:
    """Add an entry, which is on disk when this returns."""
    with lock_folder(directory):
        entries = (*read(directory), entry)[-MOST_ENTRIES:]
        document = {"issued": [asdict(each) for each in entries]}
        write_private(directory / "issued.json", json.dumps(document).encode())


def find(entries: tuple[IssuedEntry, ...], members: Mapping[str, str], wanted: str) -> str:
    """Return the node id for a name or id. `members` maps the id of each member to its name. Raises UsageError if the name
    belongs to no device or to several.

    >>> find((), {"0123456789abcdef": "pi-a"}, "pi-a")
    '0123456789abcdef'
    """
    known = {entry.node: entry.name for entry in entries} | dict(members)
    if wanted in known:
        return wanted
    found = sorted(node for node, name in known.items() if name == wanted)
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{wanted!r} may be {', '.join(found)}: name one of these. Nothing was changed")
    raise UsageError(
        f"nobody is known as {wanted!r} here: give the node id, 16 hex digits. Nothing was changed"
    )
