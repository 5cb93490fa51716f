"""Cost of an idle agent: alone, and as one of three members that found each other by mDNS.

It is measured from outside, for a minute, once the agents have found and measured each other. Nothing is
deployed. Processes that an agent keeps running count as part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.serving import cpu_s_of
from edgepart.cli.local import LocalAgent, LocalCluster

WATCHED_S = 60.0
REST_S = 20.0
"""Seconds before the measurement, in which devices and links are measured and the measuring processes end."""
CLUSTERS = (("alone", ("a",)), ("one of three", ("a", "b", "c")))


@dataclass(frozen=True)
class Idle:
    """Figures of one agent."""

    members: str
    """Description of the cluster, with the agent's name if there are several."""
    core: float
    """CPU seconds per second."""
    resident_bytes: int
    """All of its pages that are in memory, including those shared with other processes."""
    own_share_bytes: int
    """Each page divided by the number of processes that share it, so that the sum over agents is what they
    take together."""
    threads: int
    switches_per_s: float
    """Context switches of its threads per second; nearly all of them are wakeups."""
    notes: tuple[str, ...] = ()
    """Problems, such as mDNS that does not reach the others."""


@dataclass(frozen=True)
class _Reading:
    cpu_s: float
    switches: int
    resident_bytes: int
    own_share_bytes: int
    threads: int


def measure(note: Callable[[str], None]) -> list[Idle]:
    """Return a row for each agent."""
    return [row for words, names in CLUSTERS for row in _measure(words, names, note)]


def _measure(words: str, names: tuple[str, ...], note: Callable[[str], None]) -> list[Idle]:
    note(f"idle, {words}: {REST_S + WATCHED_S:.0f} s of nothing")
    with LocalCluster(names) as cluster:
        time.sleep(REST_S)
        before, began = _readings(cluster.living), time.monotonic()
        time.sleep(WATCHED_S)
        after, took_s = _readings(cluster.living), time.monotonic() - began
        return [
            Idle(
                members=words if len(names) == 1 else f"{words}: {name}",
                core=(after[name].cpu_s - before[name].cpu_s) / took_s,
                resident_bytes=after[name].resident_bytes,
                own_share_bytes=after[name].own_share_bytes,
                threads=after[name].threads,
                switches_per_s=(after[name].switches - before[name].switches) / took_s,
                notes=tuple(cluster.notes),
            )
            for name in names
        ]


def _readings(agents: list[LocalAgent]) -> Mapping[str, _Reading]:
    return {agent.name: _reading(agent) for agent in agents}


def _reading(agent: LocalAgent) -> _Reading:
    """Return the reading of an agent's process together with its running descendants."""
    process = psutil.Process(int(agent.addresses["pid"]))
    every = [process, *process.children(recursive=True)]
    return _Reading(
        cpu_s_of(agent),
        sum(_switches(one.pid) for one in every),
        sum(one.memory_info().rss for one in every),
        sum(_own_share_bytes(one.pid) for one in every),
        sum(one.num_threads() for one in every),
    )


def _switches(pid: int) -> int:
    """Return the context switches of all threads of a process; those of ended threads are lost."""
    return sum(
        int(line.split()[1])
        for status in Path(f"/proc/{pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if "ctxt_switches" in line
    )


def _own_share_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
