"""Applies a schedule to a lab's hosts and their agents, and records when each act was done. Does I/O: the
laboratory and the clock."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tests.lab.hosts import Host, LabError
from tests.lab.lab import Lab

from benchmarks import chaos_schedule as schedule
from benchmarks.chaos_presence import Done
from benchmarks.chaos_schedule import LEADER, Act, Incident
from edgepart.cli.local import LocalCluster
from edgepart.planner.errors import ClusterError

FILLER = "filler"
LEAST_FILL = 4096
ORPHANS_S = 2.0
"""How long processes that an agent started may outlive it."""


class Acting:
    """Applies the acts of one run."""

    def __init__(
        self,
        lab: Lab,
        running: LocalCluster,
        like: Host,
        joined: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        """`like` is the template for a host that joins; `joined` is called with its name when it is up."""
        self._lab = lab
        self._running = running
        self._like = like
        self._joined = joined
        self._say = say
        self._led = ""
        """The box that counts as the leader in this incident; "" until it has been asked for."""
        self.done: list[Done] = []
        self.troubles: list[str] = []
        """Acts that should have been possible and failed."""

    def run(self, incidents: Sequence[Incident], began: float, until: float) -> None:
        """Apply the incidents at their times, counted from `began` on the monotonic clock; then wait until
        `until`."""
        for number, incident in enumerate(incidents):
            self._say(f"{incident.at_s:5.1f} s: {incident.kind}")
            self._led = ""
            for act in sorted(incident.acts, key=lambda one: one.after_s):
                _sleep_until(began + incident.at_s + act.after_s)
                self._do(number, act)
        _sleep_until(until)

    def _do(self, number: int, act: Act) -> None:
        box = self._leader() if act.box == LEADER else act.box
        at = time.monotonic()
        self._say(f"        {act.verb} {box} {act.other}".rstrip())
        # Recorded before it is done: a killed agent may be missed before the act returns.
        self.done.append(Done(at, act.verb, box, act.other, incident=number))
        try:
            self._obey(act.verb, box, act.other)
        except (LabError, ClusterError, OSError) as error:
            self.troubles.append(f"{act.verb} {box}: {str(error)[:2000]}")
            self._say(f"        could not {act.verb} {box}: {str(error)[:200]}")
        self.done[-1] = replace(self.done[-1], took_s=time.monotonic() - at)

    def _leader(self) -> str:
        """Return the leader that a running agent reports, asked once in an incident; the first agent if none does."""
        killed = {
            one.box
            for one in self.done
            if one.verb == schedule.KILL and not self._running.agents[one.box].alive
        }
        for agent in self._running.living:
            if self._led or agent.name in killed:
                continue
            try:
                self._led = str(self._running.status(agent)["leader"] or "")
            except ClusterError:
                continue
        self._led = self._led or self._running.living[0].name
        return self._led

    def _obey(self, verb: str, box: str, other: str) -> None:
        lab, agents = self._lab, self._running.agents
        match verb:
            case schedule.KILL:
                process = agents[box].process
                if process is not None and agents[box].alive:
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait()
            case schedule.START:
                if not agents[box].alive:
                    self._sweep(box)
                    agents[box].start()
            case schedule.FREEZE:
                lab.freeze(box)
            case schedule.THAW:
                lab.thaw(box)
            case schedule.CUT | schedule.CUT_FROM | schedule.CUT_TO:
                self._cut(verb, box)
            case schedule.CUT_PAIR:
                lab.cut(box, other)
            case schedule.HEAL:
                lab.heal(box, other or None)
            case schedule.FILL:
                fill(lab.folder / box)
            case schedule.EMPTY:
                (lab.folder / box / FILLER).unlink()
            case schedule.JOIN:
                lab.add(replace(self._like, name=box))
                first = self._running.first  # the first agent lets others in, and may be starting again
                self._running.wait(lambda: first.addresses, f"{first.name} to be up", first)
                self._running.add(box)
                self._joined(box)

    def _cut(self, verb: str, box: str) -> None:
        """Cut the box off from all other hosts, the client's included. The watch outside the cluster still
        reaches it."""
        for host in self._lab.hosts:
            if host == box:
                continue
            if verb == schedule.CUT:
                self._lab.cut(box, host)
            else:
                self._lab.cut(*((box, host) if verb == schedule.CUT_FROM else (host, box)), one_way=True)

    def _sweep(self, box: str) -> None:
        """Wait up to `ORPHANS_S` for the processes that an agent started to end with it; report and kill the rest."""
        until = time.monotonic() + ORPHANS_S
        while (left := self._lab.processes(box)) and time.monotonic() < until:
            time.sleep(0.05)
        if left:
            self.troubles.append(f"{box} was killed, and {len(left)} processes that it had started live on")
            self._lab.kill(box)


def fill(folder: Path) -> None:
    """Take all free space on the folder's disk."""
    descriptor = os.open(folder / FILLER, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        size, more = 0, _free_bytes(descriptor)
        while more >= LEAST_FILL:
            try:
                os.posix_fallocate(descriptor, size, more)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                more //= 2  # the agent writes as well, and the file system needs space for its metadata
                continue
            size += more
            more = _free_bytes(descriptor)
    finally:
        os.close(descriptor)


def _free_bytes(descriptor: int) -> int:
    disk = os.fstatvfs(descriptor)
    return disk.f_bavail * disk.f_frsize


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))
