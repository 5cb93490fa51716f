"""Lab: emulated hosts on this machine, each with its network, speed, memory and disk, that can be cut, slowed, frozen and
killed while they run. A door: the network, control groups, mounts and processes.

Hosts hang on one switch, which is in a network namespace too, so that this machine's packet filters do not see it. The
lab's own end of it, OUTSIDE, is an interface of the namespace that its owner is in, and has the first address.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from edgepart.agent.options import parse_bytes
from edgepart.agent.store import write_atomic
from tests.lab import claims, residents, shaping
from tests.lab.cgroups import Groups
from tests.lab.hosts import MOST_HOSTS, OUTSIDE, Host, LabError, parse_rate
from tests.lab.links import Links, ways
from tests.lab.system import NAMESPACES, call, ip, missing, tc

SLOW = Path(__file__).parent / "slow"
BRIDGE, CABLE = "br0", "eth0"
"""Interfaces: the switch's, and each host's."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What went through a host's cable since it was made. Packets that the kernel joined count one header."""

    sent_bytes: int
    received_bytes: int


class Lab:
    """`with Lab([Host("pi-a", slow=8, memory="1G", rate="100mbit"), Host("pi-b")]) as lab:`. Not for several threads
    at once."""

    def __init__(self, hosts: Sequence[Host] = (), *, folder: Path | None = None) -> None:
        """`folder` is where hosts' state folders come to be, and stays; without it, one that goes with the lab.
        LabError where two hosts have one name."""
        if len({host.name for host in hosts}) < len(hosts):
            raise LabError("two hosts have the same name")
        self._first = tuple(hosts)
        self._folder = folder
        self._claim: claims.Claim | None = None
        self._groups: Groups | None = None
        self._numbers: dict[str, int] = {}
        """Of stations; the last part of their addresses."""
        self._hosts: dict[str, Host] = {}
        self._links = Links()
        self._ports: dict[str, dict[int, float]] = {}
        """What the switch's ports have now."""
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
            self._make_switch()
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
        if host.name in self._numbers:
            raise LabError(f"there is a host {host.name} already")
        number = max(self._numbers.values()) + 1
        if number > MOST_HOSTS + 1:
            raise LabError(f"a lab has at most {MOST_HOSTS} hosts")
        self._hosts[host.name], self._numbers[host.name] = host, number
        self._plug_in(host.name, number)
        if host.rate is not None:
            self._links = self._links.with_rate(host.name, parse_rate(host.rate))
            self._shape(cables=[host.name])
        if host.memory is not None:
            self._limits.limit_memory(host.name, parse_bytes(host.memory))
        if host.cpus is not None:
            self._limits.limit_cpu(host.name, host.cpus)
        if host.slow is not None:
            self.pace(host.name, host.slow)
        self._make_disk(host)

    # To run something on a host

    def address(self, station: str) -> str:
        """Its IPv4 address; a host's, or OUTSIDE."""
        return str(self._made.subnet[self._number(station)])

    def prefix(self, host: str) -> tuple[str, ...]:
        """Words before a command, by which it runs on the host; its process id is that of the command itself."""
        groups = " ".join(quote(str(group)) for group in self._limits.of(host))
        join = f'for group in {groups}; do [ ! -d "$group" ] || echo $$ > "$group/cgroup.procs" || exit 125; done'
        enter = f'exec nsenter --net={quote(str(NAMESPACES / self._namespace(host)))} -- "$@"'
        return ("sh", "-c", f"{join}; {enter}", host)

    def environment(self, host: str) -> dict[str, str]:
        """What a process needs besides its owner's environment to be as slow as the host."""
        self._number(host)
        if self._hosts[host].slow is None:
            return {}
        path = os.pathsep.join(filter(None, (str(SLOW), os.environ.get("PYTHONPATH", ""))))
        return {"PYTHONPATH": path, "EDGEPART_LAB_SLOW": f"@{self._pace_file(host)}"}

    def start(self, host: str, *command: str, **options: Any) -> subprocess.Popen[Any]:
        """A process on the host, in a session of its own. `options` are Popen's."""
        options = {"stdin": subprocess.DEVNULL, "start_new_session": True, **options}
        process = subprocess.Popen([*self.prefix(host), *command], env=self._env(host), **options)
        self._children.append(process)
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
        self._change(self._links.with_fault(self._ways(one, other, one_way), shaping.CUT))

    def slow(self, one: str, other: str | None = None, *, rate: str, one_way: bool = False) -> None:
        """What goes between the two, or between `one` and each of the others, goes at `rate` at most."""
        self._change(self._links.with_fault(self._ways(one, other, one_way), parse_rate(rate)))

    def heal(self, one: str | None = None, other: str | None = None) -> None:
        """Takes back what was cut and slowed between the two; all of it that `one` has to do with; all of it."""
        for station in filter(None, (one, other)):
            self._number(station)
        self._change(self._links.healed(one, other))

    def set_rate(self, host: str, rate: str | None) -> None:
        """What the host sends at from now on; None is as fast as this machine is."""
        self._links = self._links.with_rate(self._host(host), None if rate is None else parse_rate(rate))
        self._shape(cables=[host])

    def traffic(self) -> dict[str, Traffic]:
        """By host, and OUTSIDE."""
        found = json.loads(call("ip", "-n", self._switch, "-json", "-statistics", "link", "show"))
        counters = {link["ifname"]: link["stats64"] for link in found}
        return {
            name: Traffic(counters[_port(number)]["rx"]["bytes"], counters[_port(number)]["tx"]["bytes"])
            for name, number in self._numbers.items()
        }

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
        self._claim = None

    # How it is made

    @property
    def _made(self) -> claims.Claim:
        if self._claim is None:
            raise LabError("the lab is used outside its `with`")
        return self._claim

    @property
    def _limits(self) -> Groups:
        if self._groups is None:
            raise LabError("the lab is used outside its `with`")
        return self._groups

    @property
    def _switch(self) -> str:
        return self._made.namespace("_switch")

    def _namespace(self, host: str) -> str:
        return self._made.namespace(self._host(host))

    def _host(self, name: str) -> str:
        if name not in self._hosts:
            raise LabError(f"there is no host {name!r}, but {', '.join(self._hosts) or 'none at all'}")
        return name

    def _number(self, station: str) -> int:
        return self._numbers[station if station == OUTSIDE else self._host(station)]

    def _cable(self, station: str) -> tuple[str, str | None]:
        """Its interface, and the namespace that it is in."""
        return (self.name, None) if station == OUTSIDE else (CABLE, self._namespace(station))

    def _make_switch(self) -> None:
        ip([f"netns add {self._switch}"])
        ip(
            [f"link add {BRIDGE} type bridge mcast_snooping 0", f"link set {BRIDGE} addrgenmode none up"],
            self._switch,
        )
        self._numbers[OUTSIDE] = 1
        self._plug_in(OUTSIDE, 1)

    def _plug_in(self, station: str, number: int) -> None:
        cable, namespace = self._cable(station)
        port, where = _port(number), ""
        if namespace is not None:
            ip([f"netns add {namespace}"])
            ip(["link set lo up"], namespace)
            where = f"netns {namespace} "
        peer = f"peer name {cable} {where}address {shaping.hardware_address(number)}"
        ip([f"link add {port} netns {self._switch} type veth {peer}"])
        ip([f"link set {port} addrgenmode none master {BRIDGE} up"], self._switch)
        tc([shaping.port_opened(port)], self._switch)
        self._ports[station] = {}
        address, subnet = self.address(station), self._made.subnet
        ip(
            [
                f"link set {cable} addrgenmode none up",
                f"address add {address}/{subnet.prefixlen} dev {cable} noprefixroute",
                # What boards do about losses, whatever this machine does about them.
                f"route add {subnet} dev {cable} src {address} congctl cubic",
            ],
            namespace,
        )
        self._shape()

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

    def _ways(self, one: str, other: str | None, one_way: bool) -> list[tuple[str, str]]:
        for station in filter(None, (one, other)):
            self._number(station)
        if one == other:
            raise LabError(f"{one} has no link to itself")
        return list(ways(one, other, one_way))

    def _change(self, links: Links) -> None:
        self._links = links
        self._shape()

    def _shape(self, cables: Sequence[str] = ()) -> None:
        """Brings the switch's ports to what `_links` says, all at once, and then the cables of those named; and packet
        sizes to what that asks for."""
        lines: list[str] = []
        for station, now in self._ports.items():
            wanted = self._links.into(station, self._numbers)
            lines += shaping.port_changes(_port(self._numbers[station]), now, wanted)
            self._ports[station] = wanted
        if lines:
            tc(lines, self._switch)
        for host in cables:
            cable, namespace = self._cable(host)
            tc([shaping.egress(cable, self._links.rates.get(host))], namespace)
        if lines or cables:
            self._fit_packets()

    def _fit_packets(self) -> None:
        for station in self._numbers:
            cable, namespace = self._cable(station)
            slowest = self._links.slowest_from(station, self._numbers)
            ip([shaping.largest_packet(cable, slowest)], namespace)


def _port(number: int) -> str:
    return f"p{number}"
