"""The specification of a lab: hosts, with sizes and rates as people write them. Does no I/O.

A rate is in bits per second, as links are sold: "100mbit", "1gbit". Sizes are written as for the product:
"512M", "2G".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgepart.agent.options import parse_bytes

OUTSIDE = "outside"
"""The lab's own end of the network, from which its owner (a client or a benchmark) talks to hosts."""

MOST_HOSTS = 200
NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_BITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


class LabError(Exception):
    """A lab was asked for something impossible, or the system refused it. The text says which, and why."""


@dataclass(frozen=True, slots=True)
class Host:
    """One emulated device."""

    name: str
    """Lower case letters, digits and "-"; it is also the name of the agent on the host."""
    slow: float | None = None
    """ONNX Runtime takes this many times as long as on this machine's core; `Lab.pace` changes it. None: not
    slowed."""
    slow_python: float | None = None
    """Python, TLS and the kernel's work for it take this many times as long (cli/emulation/slow_python.py); None: they
    are as fast as on this machine."""
    engine: str | None = None
    """An engine beside its CPU, as cli/emulation/lab_engine.py has it; None: the host has none."""
    memory: str | None = None
    """Maximum memory of all processes on it together; beyond it, one of them is killed."""
    rate: str | None = None
    """Rate at which it sends, and at which it receives from OUTSIDE; None: as fast as this machine is."""
    disk: str | None = None
    """Size of its state folder, which is then a disk of its own. It is kept in memory and counts as the
    host's memory."""
    cpus: float | None = None
    """CPUs, to starve it on purpose. Not a way to slow it down: a host that waits saves up its quota, and is
    fast afterwards."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name) or self.name == OUTSIDE:
            raise LabError(f"host {self.name!r}: give lower case letters, digits and '-', not {OUTSIDE!r}")
        for what in ("slow", "slow_python"):
            factor = getattr(self, what)
            if factor is not None and not 1.0 <= factor < float("inf"):
                raise LabError(f"{self.name}: {what}={factor}: give a number from 1 up")
        if self.cpus is not None and not 0.01 <= self.cpus < float("inf"):
            raise LabError(f"{self.name}: cpus={self.cpus}: give a number of CPUs from 0.01 up")
        if self.rate is not None:
            parse_rate(self.rate)
        for size in (self.memory, self.disk):
            if size is not None:
                parse_bytes(size, option=self.name)


def parse_rate(text: str) -> float:
    """Return the bytes per second of "20mbit", "1gbit", "2.5Gbit" or "8000bit". Raises LabError for other texts.

    >>> parse_rate("100mbit")
    12500000.0
    """
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([kmg]?)bit", text.strip().lower())
    bits = float(found[1]) * _BITS[found[2]] if found else 0.0
    if bits < 8000:
        raise LabError(f"rate {text!r}: give at least 8kbit, such as 20mbit, 100mbit or 1gbit")
    return bits / 8


def numbered(
    count: int,
    slow: str,
    *,
    slow_python: float | None = None,
    rate: str | None = None,
    memory: str | None = None,
    disk: str | None = None,
) -> list[Host]:
    """Return `count` hosts, named from box-1; `slow` is one number, or one for each with commas. Raises LabError."""
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
        Host(f"box-{n}", slow=factor, slow_python=slow_python, rate=rate, memory=memory, disk=disk)
        for n, factor in enumerate(factors, 1)
    ]
