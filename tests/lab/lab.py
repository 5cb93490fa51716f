"""Lab: emulated hosts on this machine, each with its network, speed, memory and disk, that can be cut, slowed, frozen and
killed while they run. A door: control groups, mounts and processes; the network is network.py's.
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
from tests.lab import claims, residents
from tests.lab.cgroups import Groups
from tests.lab.hosts import OUTSIDE, Host, LabError, parse_rate
from tests.lab.links import Way, ways
from tests.lab.network import Network, Traffic
from tests.lab.shaping import CUT
from tests.lab.system import NAMESPACES, call, missing

SLOW = Path(__file__).parent / "slow"
Part = TypeVar("Part")


class Lab:
    """`with Lab([Host("pi-a", slow=8, memory="1G", rate="100mbit"), Host("pi-b")]) as lab:`. Not for several threads
    at once."""

    def __init__(self, hosts: Sequence[Host] = (), *, folder: Path | None = None) -> None:
        """`folder` is where hosts' state folders come to be, and stays; without it, one that goes with the lab."""
        self._first = tuple(hosts)
        self._folder = folder
        self._claim: claims.Claim | None = None
        self._network: Network | None = None
        self._groups: Groups | None = None
        self._hosts: dict[str, Host] = {}
        self._children: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Lab:
        """LabError where there can be no lab (`missing()` says why), or not this one; nothing is left then."""
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
        """As they were asked for, by name."""
        return self._hosts

    @property
    def name(self) -> str:
        """What all of its parts are called; its owner's process id is in it."""
        return self._made.name

    @property
    def folder(self) -> Path:
        """Holds a state folder for each host, of the host's name."""
        return Path(self._made.folder)

    def add(self, host: Host) -> None:
        """One more host, while the others run. LabError where the name is taken, or it cannot be as it is asked for."""
        if host.name in self._hosts:
            raise LabError(f"there is a host {host.name} already")
        # What a system may not be able to do comes first, so that there is no host then.
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

    # To run something on a host

    def address(self, station: str) -> str:
        """Its IPv4 address; a host's, or OUTSIDE."""
        return self._net.address(self._station(station))

    def prefix(self, host: str) -> tuple[str, ...]:
        """Words before a command, by which it runs on the host; its process id is that of the command itself."""
        groups = " ".join(quote(str(group)) for group in self._limits.of(host))
        join = f'for group in {groups}; do [ ! -d "$group" ] || echo $$ > "$group/cgroup.procs" || exit 125; done'
        enter = f'exec nsenter --net={quote(str(NAMESPACES / self._namespace(host)))} -- "$@"'
        return ("sh", "-c", f"{join}; {enter}", host)

    def environment(self, host: str) -> dict[str, str]:
        """What a process needs besides its owner's environment to be as slow as the host."""
        if self._hosts[self._host(host)].slow is None:
            return {}
        path = os.pathsep.join(filter(None, (str(SLOW), os.environ.get("PYTHONPATH", ""))))
        return {"PYTHONPATH": path, "EDGEPART_LAB_SLOW": f"@{self._pace_file(host)}"}

    def start(self, host: str, *command: str, **options: Any) -> subprocess.Popen[Any]:
        """A process on the host, in a session of its own, once it is there. `options` are Popen's."""
        options = {"stdin": subprocess.DEVNULL, "start_new_session": True, **options}
        process = subprocess.Popen([*self.prefix(host), *command], env=self._env(host), **options)
        self._children.append(process)
        # Whoever freezes or kills the host next means this one too.
        residents.wait_for(self._namespace(host), process)
        return process

    def run(self, host: str, *command: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """A process on the host, to its end; what it printed is text."""
        return subprocess.run(
            [*self.prefix(host), *command],
            env=self._env(host),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    # To do something to the network

    def cut(self, one: str, other: str | None = None, *, one_way: bool = False) -> None:
        """Nothing gets through between the two, or between `one` and everybody. One way: nothing from `one`.

        Nobody is told, as when a cable is pulled out of a switch further away."""
        self._net.change(self._net.links.with_fault(self._ways(one, other, one_way), CUT))

    def slow(self, one: str, other: str | None = None, *, rate: str, one_way: bool = False) -> None:
        """What goes between the two, or between `one` and each of the others, goes at `rate` at most."""
        self._net.change(self._net.links.with_fault(self._ways(one, other, one_way), parse_rate(rate)))

    def heal(self, one: str | None = None, other: str | None = None) -> None:
        """Takes back what was cut and slowed between the two; all of it that `one` has to do with; all of it."""
        for station in filter(None, (one, other)):
            self._station(station)
        self._net.change(self._net.links.healed(one, other))

    def set_rate(self, host: str, rate: str | None) -> None:
        """What the host sends at from now on; None is as fast as this machine is."""
        self._net.set_rate(self._host(host), None if rate is None else parse_rate(rate))

    def traffic(self) -> dict[str, Traffic]:
        """By host, and OUTSIDE."""
        return self._net.traffic()

    # To do something to a host

    def pace(self, host: str, slow: float) -> None:
        """From its next run on, ONNX Runtime takes this many times as long as on this machine. LabError where the host was
        made without `slow`: its processes do not look."""
        if self._hosts[self._host(host)].slow is None:
            raise LabError(
                f"{host} was made to be as fast as this machine: give it slow=1 to change that later"
            )
        if not 1.0 <= slow < float("inf"):
            raise LabError(f"{host}: slow={slow}: give a number from 1 up")
        write_atomic(self._pace_file(host), repr(float(slow)).encode())

    def starve(self, host: str, cpus: float | None) -> None:
        """Gives the host so many CPUs' worth of time, in portions of a tenth of a second; None is all there is."""
        self._limits.limit_cpu(self._host(host), cpus)
        self._limits.take_in(host, self.processes(host))

    def processes(self, host: str) -> list[int]:
        """Ids of all that run on it, whoever started them."""
        return residents.processes(self._namespace(host))

    def freeze(self, host: str) -> None:
        """Stops all processes on it where they are; the network still takes what is sent to them."""
        residents.freeze(self._namespace(host))

    def thaw(self, host: str) -> None:
        residents.thaw(self._namespace(host))

    def kill(self, host: str) -> None:
        """SIGKILL for all processes on it. Its disk stays; the network says that nobody listens there."""
        residents.kill(self._namespace(host))

    def close(self) -> None:
        """Removes everything. Again does nothing."""
        if self._claim is None:
            return
        for host in self._hosts:
            residents.kill(self._claim.namespace(host))
        for child in self._children:
            child.wait()
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):  # what was not yet written is for nobody
                        stream.close()
        claims.remove(self._claim)
        self._claim = self._network = self._groups = None

    # What it is made of

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
