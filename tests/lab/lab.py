"""Lab: emulated hosts on this machine, each with its network, speed, memory and disk.

Hosts can be cut off, slowed down, frozen and killed while they run. Does I/O: control groups, mounts and
processes; the network is in network.py.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from edgepart.agent.options import parse_bytes
from edgepart.agent.storage.store import write_atomic
from edgepart.cli.emulation import sitecustomize
from tests.lab import claims, residents
from tests.lab.cgroups import Groups
from tests.lab.hosts import OUTSIDE, Host, LabError, parse_rate
from tests.lab.links import Way, ways
from tests.lab.network import Network, Traffic
from tests.lab.shaping import CUT
from tests.lab.system import NAMESPACES, call, missing

SLOW = Path(sitecustomize.__file__).parent
Part = TypeVar("Part")


class Lab:
    """A lab: `with Lab([Host("pi-a", slow=8, memory="1G", rate="100mbit"), Host("pi-b")]) as lab:`. Not
    thread-safe."""

    def __init__(self, hosts: Sequence[Host] = (), *, folder: Path | None = None) -> None:
        """`folder` gets the hosts' state folders, and stays; without it there is a folder that is removed
        with the lab."""
        self._first = tuple(hosts)
        self._folder = folder
        self._claim: claims.Claim | None = None
        self._network: Network | None = None
        self._groups: Groups | None = None
        self._hosts: dict[str, Host] = {}
        self._children: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Lab:
        """Set the lab up. Raises LabError, and leaves nothing, if there can be no lab (`missing()` says why)
        or not this one."""
        if reason := missing():
            raise LabError(reason)
        claims.clean()
        folder = self._folder or Path(tempfile.mkdtemp(prefix="elab-"))
        self._claim = claims.claim(folder.resolve(), temporary=self._folder is None)
        self._groups = Groups(self._claim.name)
        try:
            self._network = Network(self._claim)
            for host in self._first:
                self.add(host)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def hosts(self) -> Mapping[str, Host]:
        """The hosts as they were asked for, by name."""
        return self._hosts

    @property
    def name(self) -> str:
        """Name prefix of all its parts; it contains the owner's process id."""
        return self._made.name

    @property
    def folder(self) -> Path:
        """Folder with a state folder for each host, of the host's name."""
        return Path(self._made.folder)

    def add(self, host: Host) -> None:
        """Add a host while the others run. Raises LabError if the name is taken, or if the host cannot be set
        up as asked for."""
        if host.name in self._hosts:
            raise LabError(f"there is a host {host.name} already")
        # Limits come first: if the system does not support them, no host is left.
        if host.memory is not None:
            self._limits.limit_memory(host.name, parse_bytes(host.memory))
        if host.cpus is not None:
            self._limits.limit_cpu(host.name, host.cpus)
        self._net.plug_in(host.name)
        self._hosts[host.name] = host
        if host.rate is not None:
            self.set_rate(host.name, host.rate)
        if host.slow is not None:
            self.pace(host.name, host.slow)
        self._make_disk(host)

    # Running something on a host

    def address(self, station: str) -> str:
        """Return the IPv4 address of a host or of OUTSIDE."""
        return self._net.address(self._station(station))

    def prefix(self, host: str) -> tuple[str, ...]:
        """Return the words before a command that make it run on the host; the process id is that of the
        command itself."""
        groups = " ".join(quote(str(group)) for group in self._limits.of(host))
        join = f'for group in {groups}; do [ ! -d "$group" ] || echo $$ > "$group/cgroup.procs" || exit 125; done'
        enter = f'exec nsenter --net={quote(str(NAMESPACES / self._namespace(host)))} -- "$@"'
        return ("sh", "-c", f"{join}; {enter}", host)

    def environment(self, host: str) -> dict[str, str]:
        """Return the variables by which a process is as slow as the host and has its engine, besides its owner's
        environment."""
        here, found = self._hosts[self._host(host)], {}
        if here.slow is not None:
            found[sitecustomize.VARIABLE] = f"@{self._pace_file(host)}"
        if here.slow_python is not None:
            found[sitecustomize.PYTHON_VARIABLE] = repr(here.slow_python)
        if here.engine is not None:
            found[sitecustomize.ENGINE_VARIABLE] = here.engine
            found["EDGEPART_PROVIDERS"] = here.engine.partition(",")[0]
        if found:
            found["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SLOW), os.environ.get("PYTHONPATH", ""))))
        return found

    def start(self, host: str, *command: str, **options: Any) -> subprocess.Popen[Any]:
        """Start a process on the host, in a session of its own; return when it is there. `options` are Popen's."""
        options = {"stdin": subprocess.DEVNULL, "start_new_session": True, **options}
        process = subprocess.Popen([*self.prefix(host), *command], env=self._env(host), **options)
        self._children.append(process)
        # It has to be there before the next freeze or kill of the host, which includes it.
        residents.wait_for(self._namespace(host), process)
        return process

    def run(self, host: str, *command: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a process on the host to its end and return it; its output is text."""
        return subprocess.run(
            [*self.prefix(host), *command],
            env=self._env(host),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    # Changing the network

    def cut(self, one: str, other: str | None = None, *, one_way: bool = False) -> None:
        """Drop all traffic between the two, or between `one` and all others; with `one_way`, only that from `one`.

        No station is notified, as if a cable were pulled out of a more distant switch.
        """
        self._net.change(self._net.links.with_fault(self._ways(one, other, one_way), CUT))

    def slow(self, one: str, other: str | None = None, *, rate: str, one_way: bool = False) -> None:
        """Limit traffic between the two, or between `one` and each of the others, to `rate`."""
        self._net.change(self._net.links.with_fault(self._ways(one, other, one_way), parse_rate(rate)))

    def heal(self, one: str | None = None, other: str | None = None) -> None:
        """Undo cuts and slow-downs between the two, or all that involve `one`, or all."""
        for station in filter(None, (one, other)):
            self._station(station)
        self._net.change(self._net.links.healed(one, other))

    def set_rate(self, host: str, rate: str | None) -> None:
        """Set the rate at which the host sends from now on; None: as fast as this machine is."""
        self._net.set_rate(self._host(host), None if rate is None else parse_rate(rate))

    def traffic(self) -> dict[str, Traffic]:
        """Return the traffic of each host, and of OUTSIDE."""
        return self._net.traffic()

    # Changing a host

    def pace(self, host: str, slow: float) -> None:
        """Make ONNX Runtime take this many times as long as on this machine, from its next run on.

        Raises LabError if the host was made without `slow`, because its processes do not check for changes.
        """
        if self._hosts[self._host(host)].slow is None:
            raise LabError(
                f"{host} was made to be as fast as this machine: give it slow=1 to change that later"
            )
        if not 1.0 <= slow < float("inf"):
            raise LabError(f"{host}: slow={slow}: give a number from 1 up")
        write_atomic(self._pace_file(host), repr(float(slow)).encode())

    def starve(self, host: str, cpus: float | None) -> None:
        """Limit the host to so many CPUs, in portions of a tenth of a second; None removes the limit."""
        self._limits.limit_cpu(self._host(host), cpus)
        self._limits.take_in(host, self.processes(host))

    def processes(self, host: str) -> list[int]:
        """Return the ids of all processes on the host, whoever started them."""
        return residents.processes(self._namespace(host))

    def freeze(self, host: str) -> None:
        """Stop all processes on the host where they are; the network still accepts what is sent to them."""
        residents.freeze(self._namespace(host))

    def thaw(self, host: str) -> None:
        residents.thaw(self._namespace(host))

    def kill(self, host: str) -> None:
        """Send SIGKILL to all processes on the host. Its disk stays; its network refuses connections."""
        residents.kill(self._namespace(host))

    def close(self) -> None:
        """Remove everything. A second call does nothing."""
        if self._claim is None:
            return
        for host in self._hosts:
            residents.kill(self._claim.namespace(host))
        for child in self._children:
            child.wait()
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):  # no one reads what was not yet written
                        stream.close()
        claims.remove(self._claim)
        self._claim = self._network = self._groups = None

    # Parts of the lab

    @property
    def _made(self) -> claims.Claim:
        return _there(self._claim)

    @property
    def _net(self) -> Network:
        return _there(self._network)

    @property
    def _limits(self) -> Groups:
        return _there(self._groups)

    def _namespace(self, host: str) -> str:
        return self._made.namespace(self._host(host))

    def _host(self, name: str) -> str:
        if name not in self._hosts:
            raise LabError(f"there is no host {name!r}, but {', '.join(self._hosts) or 'none at all'}")
        return name

    def _station(self, name: str) -> str:
        return name if name == OUTSIDE else self._host(name)

    def _make_disk(self, host: Host) -> None:
        folder = self.folder / host.name
        folder.mkdir(mode=0o700, exist_ok=True)
        if host.disk is not None:
            size = f"size={parse_bytes(host.disk)},mode=0700"
            call("mount", "-t", "tmpfs", "-o", size, self.name, str(folder))

    def _pace_file(self, host: str) -> Path:
        return self.folder / f"{host}.slow"

    def _env(self, host: str) -> dict[str, str]:
        return {**os.environ, **self.environment(host)}

    def _ways(self, one: str, other: str | None, one_way: bool) -> list[Way]:
        for station in filter(None, (one, other)):
            self._station(station)
        if one == other:
            raise LabError(f"{one} has no link to itself")
        return list(ways(one, other, one_way))


def _there(part: Part | None) -> Part:
    if part is None:
        raise LabError("the lab is used outside its `with`")
    return part
