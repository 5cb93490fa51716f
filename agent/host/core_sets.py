"""Core sets: which cores of this box may compute, and which sets of them are worth a try. Door: /sys and the scheduler; the
rest are rules.

With hyperthreads two threads share the units that multiply, and more threads than cores may be slower. Where some cores are
much slower than others (big.LITTLE), all wait for the slowest, and the fast ones alone may be quicker.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgepart.agent.host.system import text_of
from edgepart.planner.errors import UsageError

MUCH_SLOWER = 0.8
"""Cores with less than this share of the fastest core's speed may be worth leaving out."""
SYSTEM = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class LogicalCpu:
    """One logical CPU: a core, or one of its hyperthreads."""

    number: int
    core: tuple[str, str]
    """Package and number of the core to which it belongs."""
    speed: float
    """Its speed, as the system tells it, in no unit: only ratios count; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class CoreSet:
    """Logical CPUs to compute with."""

    what: str
    """What the set is, in words."""
    cpus: frozenset[int]
    threads: int


def allowed_cpus() -> frozenset[int]:
    """The CPUs on which this process may run; nothing if the system does not tell."""
    tell = getattr(os, "sched_getaffinity", None)
    return frozenset(tell(0)) if tell is not None else frozenset()


def confine(cpus: Collection[int]) -> None:
    """Have this process, and those that it starts, run on these CPUs alone. Raises UsageError if one is not there."""
    if missing := sorted({*cpus} - allowed_cpus()):
        raise UsageError(
            f"--cpus: CPU {missing[0]} is not there, or not allowed to this process; it may use {sorted(allowed_cpus())}"
        )
    os.sched_setaffinity(0, cpus)


def read_topology(allowed: Iterable[int], system: Path = SYSTEM) -> tuple[LogicalCpu, ...]:
    """What the system tells of these CPUs."""
    return tuple(_read_cpu(number, system / f"cpu{number}") for number in sorted(allowed))


def _read_cpu(number: int, folder: Path) -> LogicalCpu:
    def read(name: str) -> str:
        return text_of(folder / name).strip()

    core = read("topology/physical_package_id"), read("topology/core_id") or str(number)
    speed = read("cpu_capacity") or read("cpufreq/cpuinfo_max_freq")
    return LogicalCpu(number, core, float(speed) if speed.isdigit() else 0.0)


def sets_to_try(topology: Collection[LogicalCpu], leave: int = 0) -> tuple[CoreSet, ...]:
    """The sets that are worth a try, all CPUs first, with `leave` cores for others. Raises UsageError if none is left."""
    threads = len(topology) - leave
    if threads < 1:
        raise UsageError(
            f"--leave-cores {leave}: there are {len(topology)} here; leave at least one to edgepart"
        )
    every = frozenset(cpu.number for cpu in topology)
    tried = [CoreSet("all cores", every, threads)]
    cores: Mapping[tuple[str, str], LogicalCpu] = {cpu.core: cpu for cpu in topology}
    if len(cores) < threads:
        tried.append(CoreSet("one thread for each core", every, len(cores)))
    fastest = max((cpu.speed for cpu in topology), default=0.0)
    fast = [cpu for cpu in topology if cpu.speed >= MUCH_SLOWER * fastest]
    if fastest and len(fast) < len(topology):
        numbers = frozenset(cpu.number for cpu in fast)
        tried.append(CoreSet("the fast cores", numbers, min(len(fast), threads)))
    return tuple(tried)


def choose_set(seconds: Mapping[CoreSet, float], gain: float = 0.95) -> CoreSet:
    """The quickest set; the first one unless another is quicker by more than noise.

    >>> a, b = CoreSet("a", frozenset({0, 1}), 2), CoreSet("b", frozenset({0}), 1)
    >>> choose_set({a: 1.0, b: 0.97}).what, choose_set({a: 1.0, b: 0.9}).what
    ('a', 'b')
    """
    first, best = next(iter(seconds)), min(seconds, key=lambda one: seconds[one])
    return best if seconds[best] < gain * seconds[first] else first
