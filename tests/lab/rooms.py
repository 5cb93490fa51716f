"""Rooms: several networks with a router between them, and hosts that are on one or more of them.

Multicast stays inside a room. A lab (lab.py) has one switch, and hosts as slow as boards; rooms are for tests
of which hosts reach each other. Everything is in namespaces of its own: this machine's networks are not
touched. Does I/O: `ip`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.lab.hosts import LabError
from tests.lab.system import NAMESPACES, call, ip, missing

ROUTER, PREFIX = "router", "erooms"


class Rooms:
    """Networks and hosts: `with Rooms({"pi-a": [0], "pi-b": [0, 1]}) as rooms:`.

    A host has an interface (eth0, eth1, ...) for each of its rooms, the addresses 10.81.ROOM.N, and a route
    to the other rooms through its first room.
    """

    def __init__(self, hosts: Mapping[str, Sequence[int]]) -> None:
        self._hosts = {name: tuple(rooms) for name, rooms in hosts.items()}
        self._made: list[str] = []
        self._children: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Rooms:
        """Set up the rooms. Raises LabError if there can be none."""
        if reason := missing():
            raise LabError(reason)
        _sweep()
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self) -> None:
        for name in (ROUTER, *self._hosts):
            ip([f"netns add {self.namespace(name)}"])
            self._made.append(name)
            ip(["link set lo up"], self.namespace(name))
        for room in sorted({room for rooms in self._hosts.values() for room in rooms}):
            bridge = f"link add room{room} type bridge mcast_snooping 0"
            address = f"address add {_address(room, 1)}/24 dev room{room}"
            ip([bridge, address, f"link set room{room} up"], self.namespace(ROUTER))
        for number, (host, rooms) in enumerate(self._hosts.items(), 2):
            for place, room in enumerate(rooms):
                self._plug_in(host, number, place, room)
        self.run(ROUTER, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")

    def _plug_in(self, host: str, number: int, place: int, room: int) -> None:
        port, inside = f"p{number}-{room}", self.namespace(host)
        peer = f"peer name eth{place} netns {inside}"
        ip(
            [f"link add {port} type veth {peer}", f"link set {port} master room{room} up"],
            self.namespace(ROUTER),
        )
        lines = [f"link set eth{place} up", f"address add {_address(room, number)}/24 dev eth{place}"]
        if place == 0:
            lines.append(f"route add default via {_address(room, 1)}")
        ip(lines, inside)

    def namespace(self, host: str) -> str:
        return f"{PREFIX}{os.getpid()}-{host}"

    def prefix(self, host: str) -> tuple[str, ...]:
        """Return the words before a command that make it run on the host, or on the router."""
        return ("nsenter", f"--net={NAMESPACES / self.namespace(host)}", "--")

    def run(self, host: str, *command: str) -> str:
        """Run a command to its end and return its output. Raises LabError if it fails."""
        return call(*self.prefix(host), *command)

    def start(self, host: str, *command: str, **options: Any) -> subprocess.Popen[Any]:
        """Start a process in a session of its own; it ends with the rooms."""
        child = subprocess.Popen([*self.prefix(host), *command], start_new_session=True, **options)
        self._children.append(child)
        return child

    def address(self, host: str, room: int) -> str:
        """Return the IPv4 address of a host, or of the router."""
        number = 1 if host == ROUTER else 2 + list(self._hosts).index(host)
        return _address(room, number)

    def close(self) -> None:
        """Kill all processes in the rooms and remove everything."""
        for name in self._made:
            _remove(self.namespace(name))
        for child in self._children:
            child.wait()
        self._made.clear()


def _address(room: int, number: int) -> str:
    return f"10.81.{room}.{number}"


def _remove(namespace: str) -> None:
    """Remove a namespace with all processes in it."""
    for pid in call("ip", "netns", "pids", namespace).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    ip([f"netns del {namespace}"])


def _sweep() -> None:
    """Remove what killed owners left; their process ids are in the names."""
    for place in NAMESPACES.glob(f"{PREFIX}*"):
        owner = place.name.removeprefix(PREFIX).partition("-")[0]
        if not Path(f"/proc/{owner}").exists():
            _remove(place.name)
