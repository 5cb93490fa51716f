"""State files: what an agent remembers over a restart, small and whole. Door: files in the state directory.

term.json         largest term seen, and this device's incarnation
deployments.json  the versioned map, tombstones included
cluster.json      where members listened when last seen: hints to call them
profiles.json     what segments took on devices of which kind
agent.json        addresses in use; there while the agent runs
lock              held by the agent that runs on this directory
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from edgepart.agent import deployments, profiles
from edgepart.agent.control import Deployment, Profile
from edgepart.agent.store import read_json, write_atomic
from edgepart.planner.errors import UsageError

log = logging.getLogger(__name__)


class StateFiles:
    """The files under one state directory. UsageError, with the path, for one that is damaged."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._counters = {"term": 0, "incarnation": 0} | self._counts()

    def _counts(self) -> dict[str, int]:
        path = self.state / "term.json"
        document = read_json(path)
        if document is None:
            return {}
        if not isinstance(document, dict) or not all(isinstance(value, int) for value in document.values()):
            raise UsageError(
                f"{path} is damaged: expected counts, found {document!r}; restore it from a backup"
            )
        return {key: document[key] for key in ("term", "incarnation") if key in document}

    @property
    def term(self) -> int:
        return self._counters["term"]

    @property
    def incarnation(self) -> int:
        return self._counters["incarnation"]

    def keep(self, **counts: int) -> None:
        """Remember a larger term or incarnation; on disk when this returns."""
        self._counters |= counts
        self._write("term.json", self._counters)

    def deployments(self) -> tuple[Deployment, ...]:
        path = self.state / "deployments.json"
        document = read_json(path)
        try:
            return () if document is None else deployments.from_json(document)
        except UsageError as error:
            raise UsageError(f"{path} is damaged: {error}") from error

    def keep_deployments(self, entries: Iterable[Deployment]) -> None:
        self._write("deployments.json", deployments.to_json(entries))

    def profiles(self) -> tuple[Profile, ...]:
        """Where the file is damaged, a warning and none: segments are measured again."""
        path = self.state / "profiles.json"
        try:
            document = read_json(path)
            return () if document is None else profiles.from_json(document)
        except UsageError as error:
            log.warning("%s is not used: %s", path, error)
            return ()

    def keep_profiles(self, timings: Iterable[Profile]) -> None:
        self._write("profiles.json", profiles.to_json(timings))

    def members(self) -> dict[str, tuple[str, ...]]:
        """Addresses by node id, as they were last seen. Where the file is damaged, a warning and none: hints are no
        reason not to start, and the file is written anew."""
        path = self.state / "cluster.json"
        try:
            document = read_json(path)
        except UsageError as error:
            log.warning("%s", error)
            return {}
        if document is None:
            return {}
        if not isinstance(document, dict) or not all(isinstance(found, list) for found in document.values()):
            log.warning(
                "%s is damaged: expected lists of addresses by node id; members are looked for anew", path
            )
            return {}
        return {node: tuple(map(str, addresses)) for node, addresses in document.items()}

    def keep_members(self, members: Mapping[str, Iterable[str]]) -> None:
        self._write("cluster.json", {node: list(addresses) for node, addresses in sorted(members.items())})

    def announce(self, name: str, listen: str, http: str) -> None:
        """Tell other programs on this machine where the agent is."""
        self._write("agent.json", {"name": name, "pid": os.getpid(), "listen": listen, "http": http})

    def withdraw(self) -> None:
        (self.state / "agent.json").unlink(missing_ok=True)

    def lock(self) -> int:
        """Makes this process the only agent on the directory until the descriptor that it gives is closed, or the
        process ends however it ends. UsageError where another one runs."""
        descriptor = os.open(self.state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise UsageError(
                f"an agent runs on {self.state} already; stop it, or give this one a directory of its own (--state)"
            ) from error
        return descriptor

    def _write(self, name: str, document: Any) -> None:
        write_atomic(self.state / name, json.dumps(document, indent=1).encode() + b"\n")
