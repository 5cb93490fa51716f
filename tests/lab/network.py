"""The lab's network: a switch, a cable to each station, and what is cut and slowed on them. A door: `ip` and `tc`.

The switch is in a namespace of its own, so that this machine's packet filters do not see it. OUTSIDE's cable ends in the
namespace that the lab's owner is in, and has the first address; each host's ends in its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.lab import shaping
from tests.lab.claims import Claim
from tests.lab.hosts import MOST_HOSTS, OUTSIDE, LabError
from tests.lab.links import Links
from tests.lab.system import call, ip, tc

BRIDGE, CABLE = "br0", "eth0"
"""Interfaces: the switch's, and each host's."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What went through a station's cable since it was made. Packets that the kernel joined count one header."""

    sent_bytes: int
    received_bytes: int


class Network:
    """Of one lab. `claims.remove` takes it away."""

    def __init__(self, claim: Claim) -> None:
        """With OUTSIDE as its only station."""
        self._claim = claim
        self._switch = claim.namespace("_switch")
        self._numbers: dict[str, int] = {}
        """Of stations; the last part of their addresses."""
        self._ports: dict[str, dict[int, float]] = {}
        """What the switch's ports have now."""
        self.links = Links()
        ip([f"netns add {self._switch}"])
        ip(
            [f"link add {BRIDGE} type bridge mcast_snooping 0", f"link set {BRIDGE} addrgenmode none up"],
            self._switch,
        )
        self.plug_in(OUTSIDE)

    def plug_in(self, station: str) -> None:
        """One more. LabError where there are too many."""
        number = max(self._numbers.values(), default=0) + 1
        if number > MOST_HOSTS + 1:
            raise LabError(f"a lab has at most {MOST_HOSTS} hosts")
        self._numbers[station] = number
        cable, namespace = self._cable(station)
        where = ""
        if namespace is not None:
            ip([f"netns add {namespace}"])
            ip(["link set lo up"], namespace)
            where = f"netns {namespace} "
        port, peer = _port(number), f"peer name {cable} {where}address {shaping.hardware_address(number)}"
        ip([f"link add {port} netns {self._switch} type veth {peer}"])
        ip([f"link set {port} addrgenmode none master {BRIDGE} up"], self._switch)
        tc(shaping.port_opened(port), self._switch)
        self._ports[station] = {}
        self._address(station)
        self.change(self.links)

    def address(self, station: str) -> str:
        """IPv4."""
        return str(self._claim.subnet[self._numbers[station]])

    def set_rate(self, host: str, rate: float | None) -> None:
        """What it sends at, in bytes a second; None is freely."""
        cable, namespace = self._cable(host)
        tc([shaping.egress(cable, rate)], namespace)
        self.links = self.links.with_rate(host, rate)
        self._shape()
        self._fit_packets()

    def change(self, links: Links) -> None:
        """To the faults of these links, all at once."""
        self.links = links
        if self._shape():
            self._fit_packets()

    def traffic(self) -> dict[str, Traffic]:
        """By station."""
        found = json.loads(call("ip", "-n", self._switch, "-json", "-statistics", "link", "show"))
        counters = {link["ifname"]: link["stats64"] for link in found}
        ports = {name: counters[_port(number)] for name, number in self._numbers.items()}
        return {name: Traffic(port["rx"]["bytes"], port["tx"]["bytes"]) for name, port in ports.items()}

    def _cable(self, station: str) -> tuple[str, str | None]:
        """Its interface, and the namespace that it is in."""
        return (self._claim.name, None) if station == OUTSIDE else (CABLE, self._claim.namespace(station))

    def _address(self, station: str) -> None:
        cable, namespace = self._cable(station)
        address, subnet = self.address(station), self._claim.subnet
        ip(
            [
                f"link set {cable} addrgenmode none up",
                f"address add {address}/{subnet.prefixlen} dev {cable} noprefixroute",
                # What boards do about losses, whatever this machine does about them.
                f"route add {subnet} dev {cable} src {address} congctl cubic",
            ],
            namespace,
        )

    def _shape(self) -> bool:
        """Brings the switch's ports to what `links` says; whether there was anything to do."""
        lines: list[str] = []
        for station, now in self._ports.items():
            wanted = self.links.into(station, self._numbers)
            lines += shaping.port_changes(_port(self._numbers[station]), now, wanted)
            self._ports[station] = wanted
        if lines:
            tc(lines, self._switch)
        return bool(lines)

    def _fit_packets(self) -> None:
        for station in self._numbers:
            cable, namespace = self._cable(station)
            slowest = self.links.slowest_from(station, self._numbers)
            ip([shaping.largest_packet(cable, slowest)], namespace)


def _port(number: int) -> str:
    return f"p{number}"
