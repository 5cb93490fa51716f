"""What a lab is asked for: hosts, and the sizes and rates that people write. Facts and rules: no door.

A rate is in bits a second, as links are sold: "100mbit", "1gbit". Sizes are those of the product: "512M", "2G".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgepart.agent.options import parse_bytes

OUTSIDE = "outside"
"""The lab's own end of the network: where its owner, a client or a benchmark, talks to hosts from."""

MOST_HOSTS = 200
NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_BITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


class LabError(Exception):
    """A lab was asked for what cannot be, or the system refused it; says which and why."""


@dataclass(frozen=True, slots=True)
class Host:
    """One emulated device."""

    name: str
    """Lower case letters, digits and "-"; the agent on it is called so."""
    slow: float | None = None
    """How many times as slow as this machine's core ONNX Runtime is on it; `Lab.pace` changes it. None: not slowed."""
    memory: str | None = None
    """The most that all processes on it take together; over that, one of them is killed."""
    rate: str | None = None
    """What it sends at, and what it gets from OUTSIDE at; None is as fast as this machine is."""
    disk: str | None = None
    """The size of its state folder, a disk of its own then. It is kept in memory, and counts as the host's memory."""
    cpus: float | None = None
    """To starve it on purpose. No way to make it slow: a host that waits saves up its quota, and then is fast."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name) or self.name == OUTSIDE:
            raise LabError(f"host {self.name!r}: give lower case letters, digits and '-', not {OUTSIDE!r}")
        if self.slow is not None and not 1.0 <= self.slow < float("inf"):
            raise LabError(f"{self.name}: slow={self.slow}: give a number from 1 up")
        if self.cpus is not None and not 0.01 <= self.cpus < float("inf"):
            raise LabError(f"{self.name}: cpus={self.cpus}: give a number of CPUs from 0.01 up")
        if self.rate is not None:
            parse_rate(self.rate)
        for size in (self.memory, self.disk):
            if size is not None:
                parse_bytes(size, option=self.name)


def parse_rate(text: str) -> float:
    """Bytes a second of "20mbit", "1gbit", "2.5Gbit" or "8000bit". LabError.

    >>> parse_rate("100mbit")
    12500000.0
    """
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([kmg]?)bit", text.strip().lower())
    bits = float(found[1]) * _BITS[found[2]] if found else 0.0
    if bits < 8000:
        raise LabError(f"rate {text!r}: give at least 8kbit, such as 20mbit, 100mbit or 1gbit")
    return bits / 8


def numbered(
    count: int, slow: str, *, rate: str | None = None, memory: str | None = None, disk: str | None = None
) -> list[Host]:
    """`count` hosts, box-1 and on; `slow` is one number for all or one for each, with commas. LabError."""
    if not 1 <= count <= MOST_HOSTS:
        raise LabError(f"{count} hosts: give 1 to {MOST_HOSTS}")
    try:
        factors = [float(part) for part in slow.split(",")]
    except ValueError:
        raise LabError(f"slow {slow!r}: give numbers from 1 up, such as 8 or 4,8,8,16") from None
    if len(factors) not in (1, count):
        raise LabError(f"slow {slow!r}: give one number, or one for each of {count} hosts")
    factors *= count // len(factors)
    return [
        Host(f"box-{n}", slow=factor, rate=rate, memory=memory, disk=disk)
        for n, factor in enumerate(factors, 1)
    ]
