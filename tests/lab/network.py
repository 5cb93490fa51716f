"""The lab's network: a switch, a cable to each station, and the cuts and slow-downs on them. Does I/O: `ip` and `tc`.

The switch is in a namespace of its own, so that this machine's packet filters do not see it. OUTSIDE's cable
ends in the namespace of the lab's owner and has the first address; each host's cable ends in the host's own
namespace.
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
"""Names of the switch's interface, and of each host's."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that went through a station's cable since it was made. Packets that the kernel joined count one
    header."""

    sent_bytes: int
    received_bytes: int


class Network:
    """The network of one lab. `claims.remove` removes it."""

    def __init__(self, claim: Claim) -> None:
        """Make the network with OUTSIDE as its only station."""
        self._claim = claim
        self._switch = claim.namespace("_switch")
        self._numbers: dict[str, int] = {}
        """Numbers of stations, which are the last parts of their addresses."""
        self._ports: dict[str, dict[int, float]] = {}
        """For each station's port of the switch, the bounds by sender's number that are in force."""
        self.links = Links()
        ip([f"netns add {self._switch}"])
        ip(
            [f"link add {BRIDGE} type bridge mcast_snooping 0", f"link set {BRIDGE} addrgenmode none up"],
            self._switch,
        )
        self.plug_in(OUTSIDE)

    def plug_in(self, station: str) -> None:
        """Add a station. Raises LabError if there are too many."""
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
        """Return the station's IPv4 address."""
        return str(self._claim.subnet[self._numbers[station]])

    def set_rate(self, host: str, rate: float | None) -> None:
        """Set the rate at which the host sends, in bytes per second; None: without a limit."""
        cable, namespace = self._cable(host)
        tc([shaping.egress(cable, rate)], namespace)
        self.links = self.links.with_rate(host, rate)
        self._shape()
        self._fit_packets()

    def change(self, links: Links) -> None:
        """Replace the faults by those of these links, all at once."""
        self.links = links
        if self._shape():
            self._fit_packets()

    def traffic(self) -> dict[str, Traffic]:
        """Return the traffic of each station."""
        found = json.loads(call("ip", "-n", self._switch, "-json", "-statistics", "link", "show"))
        counters = {link["ifname"]: link["stats64"] for link in found}
        ports = {name: counters[_port(number)] for name, number in self._numbers.items()}
        return {name: Traffic(port["rx"]["bytes"], port["tx"]["bytes"]) for name, port in ports.items()}

    def _cable(self, station: str) -> tuple[str, str | None]:
        """Return the station's interface, and the namespace that it is in."""
        return (self._claim.name, None) if station == OUTSIDE else (CABLE, self._claim.namespace(station))

    def _address(self, station: str) -> None:
        cable, namespace = self._cable(station)
        address, subnet = self.address(station), self._claim.subnet
        ip(
            [
                f"link set {cable} addrgenmode none up",
                f"address add {address}/{subnet.prefixlen} dev {cable} noprefixroute",
                # The congestion control of boards, whatever this machine uses.
                f"route add {subnet} dev {cable} src {address} congctl cubic",
            ],
            namespace,
        )

    def _shape(self) -> bool:
        """Bring the switch's ports to the state of `links`; return whether anything had to change."""
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
