"""Agents on hosts of rooms with a user's options: they listen on all addresses and find each other. Does I/O."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgepart.agent.options import HTTP_PORT, LISTEN_PORT
from edgepart.cli.local import LocalAgent, Place
from tests.lab.rooms import Rooms

BOUND_S = 180.0
"""Longest wait; one that takes longer has failed."""


class Roaming:
    """Agents of one cluster. The first one creates it."""

    def __init__(self, rooms: Rooms, folder: Path, options: tuple[str, ...] = ()) -> None:
        self.rooms = rooms
        self._folder = folder
        self._options = options
        self.agents: dict[str, LocalAgent] = {}

    def add(self, host: str, *options: str, join: tuple[str, ...] = ()) -> LocalAgent:
        """Start an agent with `options` on a host. The first host creates the cluster; others join it with
        the options `join`."""
        place = Place(self.rooms.prefix(host), listen=f"*:{LISTEN_PORT}", http=f"127.0.0.1:{HTTP_PORT}")
        running = ("--threads", "1", *self._options, *options)
        agent = LocalAgent(host, self._folder / host, running, place)
        if self.agents:
            first = next(iter(self.agents.values()))
            token = first.type("token", "create", timeout_s=BOUND_S)["token"]
            agent.type("join", token, "--name", host, *join, timeout_s=BOUND_S)
        else:
            agent.type("init", "--name", host, timeout_s=BOUND_S)
        self.agents[host] = agent
        agent.start()
        self.wait(lambda: agent.addresses, f"{host} to come up")
        return agent

    def seen(self, host: str) -> dict[str, list[str]]:
        """Return the other members' addresses by node id, as the host's agent knows them."""
        try:
            found: dict[str, list[str]] = json.loads((self._folder / host / "cluster.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def together(self, *hosts: str) -> bool:
        """Whether each host sees all others."""
        return all(len(self.seen(host)) == len(hosts) - 1 for host in hosts)

    def doctor(self, host: str) -> dict[str, Any]:
        document: dict[str, Any] = self.agents[host].type("doctor", timeout_s=BOUND_S)
        return document

    def wait(self, done: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + BOUND_S
        while time.monotonic() < deadline:
            if found := done():
                return found
            time.sleep(0.1)
        logs = "\n".join(f"--- {a.name}\n{a.log.read_text()[-3000:]}" for a in self.agents.values())
        raise AssertionError(f"waited {BOUND_S:.0f} s in vain for {what}\n{logs}")

    def close(self) -> None:
        for agent in self.agents.values():
            agent.signal(signal.SIGTERM)
        for agent in self.agents.values():
            agent.stop()


@contextmanager
def roaming(rooms: Rooms, folder: Path, *options: str) -> Iterator[Roaming]:
    made = Roaming(rooms, folder, options)
    try:
        yield made
    finally:
        made.close()
