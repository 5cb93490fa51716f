"""State files: the small files in which an agent keeps what it needs after a restart. Door: files in the state directory.

term.json         largest term seen, and this device's incarnation
deployments.json  the versioned map, tombstones included
drains.json       the versioned map of devices that were drained or removed
cluster.json      addresses of members when last seen: hints for dialling them
http.json         where members serve HTTP: for clients on this machine, when this agent is gone
plans/            the plan by which each deployment was served last
profiles.json     how long segments took, by kind of device
verdicts.json     what engines were tried with, and what they are refused for
card.json         what this device measured of itself and its links
agent.json        addresses in use; exists while the agent runs
ballast           bytes that are deleted when the disk is full, so that the files above can still be written
lock              held by the agent that runs on this directory

Once the agent runs, all writing is done by the disk queue's thread (write_queue.py).

A file that cannot be written (the disk is full) is written as soon as possible; meanwhile the agent goes on with
the contents in memory. A damaged file is set aside and reported; other members have the contents of most files.
An unreadable entry does not affect the others: the old file is kept under another name, and a new one gets the
readable entries.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from edgepart import __version__
from edgepart.agent.cluster.membership.election import MAX_TERM, term_beyond_any
from edgepart.agent.cluster.state import deployments, drains, kept_plans, profiles
from edgepart.agent.cluster.state.cards import MeasuredDevice, parse_card
from edgepart.agent.cluster.state.deployments import ReadResult, read_each
from edgepart.agent.engines.verdicts import EngineVerdict, verdict_from_json, verdicts_to_json
from edgepart.agent.storage.atomic_files import read_json, set_aside, set_aside_copy, sweep, write_atomic
from edgepart.agent.wire.bounds import Addresses, NodeId
from edgepart.agent.wire.codec import read_json_record
from edgepart.agent.wire.control import Deployment, Drain, Prepare, Profile
from edgepart.planner.errors import FrameError, UsageError

log = logging.getLogger(__name__)
T = TypeVar("T")

BALLAST_BYTES = 1 << 20
"""The size of the ballast. With more, more state can still be written on a full disk; that is a few files of
some kB."""
SPARE_BYTES = 64 << 20
"""A disk with less free space counts as full; models are fetched only if this much stays free."""
CHECK, CHECKED = "crc", frozenset({"term.json", "deployments.json", "drains.json"})
"""The field that holds a file's checksum, and the files that have one: all but those with hints, which may be
wrong."""
PLANS = "plans/"
"""The folder of kept plans, whose files have checksums, too."""
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Hint:
    """The address at which a member listened when it was last seen."""

    node: NodeId
    listen: Addresses


class StateFiles:
    """The files under one state directory. Raises UsageError, with the path, if a file is damaged whose
    contents nobody else has."""

    def __init__(self, state: Path, clock: Callable[[], float] = time.time) -> None:
        self.state = state
        self.damaged: list[str] = []
        """A sentence about each file that was found damaged since the start."""
        self._clock = clock
        self._behind: dict[str, tuple[bytes, str]] = {}
        """The contents that could not be written yet and the reason, by file name."""
        self._counters = {"term": 0, "incarnation": 0} | self._counts()

    # Counters

    def _counts(self) -> dict[str, int]:
        """Read the term and the incarnation. If the file is damaged, take a term larger than any that was
        used, because a smaller one would let old plans run. Raises UsageError if the clock is too wrong for
        that."""

        def read(document: Any) -> dict[str, int]:
            entries = document if isinstance(document, dict) else {"term": None}
            counts = {key: entries.get(key, 0) for key in ("term", "incarnation")}
            good = {key: n for key, n in counts.items() if type(n) is int and 0 <= n < MAX_TERM}
            if "term" not in good:
                raise UsageError(f"expected counts, found {str(document)[:80]}")
            if good != counts:  # other members tell this device if its incarnation is too small
                text = (
                    f"term.json: incarnation: {str(counts['incarnation'])[:40]} is no count; it begins anew"
                )
                log.error("%s", text)
                self.damaged.append(text)
            return good

        found = self._read("term.json", read)
        if found is not None:
            return found
        if not self.damaged:
            return {}
        try:
            return {"term": term_beyond_any(self._clock())}
        except ValueError as error:
            text = f"{self.damaged[-1]}. A new term cannot be made up: {error}; set the clock and start again"
            raise UsageError(text) from error

    @property
    def term(self) -> int:
        return self._counters["term"]

    @property
    def incarnation(self) -> int:
        return self._counters["incarnation"]

    def keep(self, **counts: int) -> bool:
        """Remember a larger term or incarnation; return whether it is on disk now."""
        self._counters |= counts
        return self._write("term.json", self._counters)

    # Maps and hints

    def deployments(self) -> tuple[Deployment, ...]:
        """Read the deployments. There are none if the file is damaged: other members tell theirs."""
        return self._entries("deployments.json", deployments.read_deployments, self.keep_deployments)

    def keep_deployments(self, entries: Iterable[Deployment]) -> bool:
        """Write the deployments; return whether they are on disk now."""
        return self._write("deployments.json", deployments.to_json(entries))

    def drains(self) -> tuple[Drain, ...]:
        """Read the drains. There are none if the file is damaged: other members tell theirs."""
        return self._entries("drains.json", drains.read_drains, self.keep_drains)

    def keep_drains(self, entries: Iterable[Drain]) -> bool:
        return self._write("drains.json", drains.to_json(entries))

    def profiles(self) -> tuple[Profile, ...]:
        """Read the profiles. There are none if the file is damaged: segments are measured again."""
        return self._entries("profiles.json", profiles.read_profiles, self.keep_profiles)

    def keep_profiles(self, timings: Iterable[Profile]) -> bool:
        return self._write("profiles.json", profiles.to_json(timings))

    def plans(self) -> tuple[Prepare, ...]:
        """Read the orders that brought the plans by which deployments were served last. One that is damaged, or was kept by
        another version of edgepart, is left out: another plan is made."""

        def read(document: Any) -> Prepare | None:
            try:
                return kept_plans.from_json(document, __version__)
            except kept_plans.OtherVersion as error:
                log.info("a plan that served before is not used: %s", error)
                return None

        found = {
            path.stem: self._read(PLANS + path.name, read)
            for path in sorted((self.state / PLANS).glob("*.json"))
        }
        return tuple(order for name, order in found.items() if order is not None and order.deployment == name)

    def keep_plan(self, deployment: str, order: Prepare | None) -> bool:
        """Write the order that brought the plan by which the deployment is served; None deletes what was written. Return
        whether that is on disk now."""
        name = f"{PLANS}{deployment}.json"
        if order is not None:
            return self._write(name, kept_plans.to_json(order, __version__))
        self._behind.pop(name, None)
        (self.state / name).unlink(missing_ok=True)
        return True

    def verdicts(self) -> tuple[EngineVerdict, ...]:
        """Read the verdicts about engines. There are none if the file is damaged: engines are tried again."""

        def read(document: Any) -> ReadResult[EngineVerdict]:
            if not isinstance(document, list):
                raise UsageError(f"no verdicts about engines: expected list, found {type(document).__name__}")
            return read_each(document, "no verdicts about engines: verdicts", verdict_from_json)

        return self._entries("verdicts.json", read, self.keep_verdicts)

    def keep_verdicts(self, verdicts: Iterable[EngineVerdict]) -> bool:
        return self._write("verdicts.json", verdicts_to_json(verdicts))

    def card(self) -> MeasuredDevice | None:
        """Read what an earlier start measured of this device and its links. There is nothing if the file is damaged: all is
        measured again."""

        def read(document: Any) -> MeasuredDevice:
            try:
                return parse_card(json.dumps(document).encode())
            except FrameError as error:
                raise UsageError(str(error)) from error

        return self._read("card.json", read)

    def keep_card(self, document: bytes) -> bool:
        """Write the document of this device's card."""
        return self._place("card.json", document + b"\n")

    def members(self) -> dict[str, tuple[str, ...]]:
        """Read the addresses of members when last seen, by node id. There are none if the file is damaged:
        members are looked for anew."""

        def read(document: Any) -> ReadResult[Hint]:
            if not isinstance(document, dict):
                raise UsageError("cluster.json: expected lists of addresses by node id")
            listed = ({"node": node, "listen": listen} for node, listen in document.items())
            return read_each(listed, "cluster.json", lambda entry: read_json_record(Hint, entry))

        def keep(hints: Iterable[Hint]) -> bool:
            return self.keep_members({hint.node: hint.listen for hint in hints})

        return {hint.node: hint.listen for hint in self._entries("cluster.json", read, keep)}

    def keep_members(self, members: Mapping[str, Iterable[str]]) -> bool:
        return self._write(
            "cluster.json", {node: list(addresses) for node, addresses in sorted(members.items())}
        )

    def keep_urls(self, urls: Iterable[str]) -> bool:
        """Tell clients on this machine whom to ask when this agent is gone."""
        return self._write("http.json", {"members": sorted(urls)})

    # While the agent runs

    def announce(self, name: str, listen: str, http: str, grpc: str = "") -> bool:
        """Tell other programs on this machine where the agent is; `grpc` is "" if that is off."""
        return self._write(
            "agent.json",
            {"name": name, "pid": os.getpid(), "listen": listen, "http": http, "grpc": grpc or None},
        )

    def withdraw(self) -> None:
        self._behind.pop("agent.json", None)
        (self.state / "agent.json").unlink(missing_ok=True)

    def lock(self) -> int:
        """Make this process the only agent on the directory until the returned descriptor is closed or the
        process ends in whatever way. Raises UsageError if another agent runs there."""
        descriptor = os.open(self.state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise UsageError(
                f"an agent runs on {self.state} already; stop it, or give this one a directory of its own (--state)"
            ) from error
        sweep(self.state)
        sweep(self.state / PLANS)
        return descriptor

    # A full disk

    @property
    def behind(self) -> frozenset[str]:
        """The names of the files whose newest contents are not on disk."""
        return frozenset(self._behind.copy())

    @property
    def free_bytes(self) -> int:
        return shutil.disk_usage(self.state).free

    @property
    def trouble(self) -> str:
        """A sentence about what is wrong with the disk; "" if nothing is."""
        if behind := self._behind.copy():  # a copy in one step: another thread writes
            why = "; ".join(sorted({why for _, why in behind.values()}))
            names = ", ".join(sorted(behind))
            return f"{names} cannot be written ({why}): what is new would be lost with this device's power"
        if (free := self.free_bytes) < SPARE_BYTES:
            return f"the disk of {self.state} is full ({free / 1e6:.0f} MB are free): no model can be stored here"
        return ""

    def catch_up(self) -> bool:
        """Write the files that could not be written before; return whether all are on disk now."""
        for name, (data, _) in list(self._behind.items()):
            self._place(name, data)
        if not self._behind and self.free_bytes >= SPARE_BYTES and not self._ballast.exists():
            self.take_ballast()
        return not self._behind

    def take_ballast(self) -> None:
        """Write the ballast if there is none. Without it, no file can be written once the disk is full."""
        if not self._ballast.exists():
            try:
                write_atomic(self._ballast, os.urandom(BALLAST_BYTES))  # what cannot be compressed away
            except OSError as error:
                log.warning("no room is kept in reserve in %s: %s", self.state, error.strerror)

    @property
    def _ballast(self) -> Path:
        return self.state / "ballast"

    def _write(self, name: str, document: Any) -> bool:
        if name in CHECKED or name.startswith(PLANS):
            document = {**document, CHECK: _check(document)}
        return self._place(name, json.dumps(document, indent=1).encode() + b"\n")

    def _place(self, name: str, data: bytes) -> bool:
        try:
            try:
                write_atomic(self.state / name, data)
            except OSError as error:
                if error.errno not in FULL or not self._ballast.exists():
                    raise
                log.warning("the disk of %s is full: what was kept in reserve is used up", self.state)
                self._ballast.unlink()
                write_atomic(self.state / name, data)
        except OSError as error:
            if name not in self._behind:
                log.error("%s cannot be written: %s; tried again until it can", self.state / name, error)
            self._behind[name] = data, error.strerror or repr(error)
            return False
        if self._behind.pop(name, None) is not None:
            log.info("%s is written again", self.state / name)
        return True

    # A damaged file

    def _entries(
        self,
        name: str,
        parse: Callable[[Any], ReadResult[T]],
        keep: Callable[[Iterable[T]], bool],
    ) -> tuple[T, ...]:
        """The readable entries of a file. Unreadable ones are reported, and stay in a copy of the file."""
        read: ReadResult[T] | None = self._read(name, parse)
        if read is None:
            return ()
        if faults := read.faults:
            more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
            kept = set_aside_copy(self.state / name)
            text = f"{faults[0]}{more}: what cannot be read is left out, and was kept in {kept}"
            log.error("%s", text)
            self.damaged.append(text)
            keep(read.entries)
        return read.entries

    def _read(self, name: str, parse: Callable[[Any], T]) -> T | None:
        """The contents of a file; None if there is no file, or if it is damaged and now set aside."""
        path = self.state / name
        try:
            document = read_json(path)
            return None if document is None else parse(_verify(document))
        except deployments.TooNew:
            raise
        except UsageError as error:
            text = f"{path} is damaged ({error}); it was kept as {set_aside(path)}"
            log.error("%s", text)
            self.damaged.append(text)
            return None


def _check(document: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())


def _verify(document: Any) -> Any:
    """The document without its checksum. Raises UsageError if the checksum is wrong. A document without one
    was written by an earlier version."""
    if not isinstance(document, dict) or CHECK not in document:
        return document
    found = {key: value for key, value in document.items() if key != CHECK}
    if _check(found) != document[CHECK]:
        raise UsageError("its checksum is wrong")
    return found
