"""Joins, leaves and losses in a lab's cluster, one after another, under a client that asks without pause.

For benchmarks/replan.py. Does I/O: laboratory and clock.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from tests.lab.lab import Lab

from benchmarks.serving import POLL_S, SETTLE_WITHIN_S, client_of
from benchmarks.stalls import Stalls
from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.planner.errors import ClusterError

STAYED_S = 6.0
"""A plan on the devices that should have one is settled once it has not changed for this long."""
STALL_S = 0.25
"""An event during which this process was kept waiting for this long says nothing about the cluster, which
shares its machine. It is repeated."""
QUIET_S = 13.0
"""Everything is settled after this long without a log line of `LOADED`: a search for a better plan takes ten
seconds at most."""
LOADED = ("a plan for", "a program of")
CALM_S = 4.0
"""Seconds before an event and after the last change, from whose requests the medians are taken."""
STAMP = re.compile(r"^(\S+ \S+?),(\d{3}) ")
KNOWN = ("is suspect", "is gone", "is leaving")
SERVED = ("is served on epoch",)


@dataclass(frozen=True)
class Event:
    """A kind of event: what happens to which agent."""

    name: str
    leads: bool
    """Whether it happens to the leader."""
    act: Callable[[LocalAgent], Any]
    ends: bool = True
    """Whether its agent is gone afterwards."""


EVENTS = {
    event.name: event
    for event in (
        # How far single requests deviate from the median anyway: the baseline for the other events.
        Event("nothing", False, lambda agent: None, ends=False),
        Event("join", False, LocalAgent.start, ends=False),
        Event("leave", False, lambda agent: agent.signal(signal.SIGTERM)),
        Event("leader leaves", True, lambda agent: agent.signal(signal.SIGTERM)),
        Event("kill", False, LocalAgent.kill),
        Event("leader killed", True, LocalAgent.kill),
    )
}


@dataclass(frozen=True)
class Row:
    """The effect of one event on requests."""

    event: str
    concurrency: int
    victim: str
    before_s: float
    """Median latency before the event."""
    after_s: float
    longest_s: float
    """Longest latency of all requests that ended after the event and began before everything was settled."""
    longest_at_s: float
    """When that request ended, in seconds after the event."""
    detected_s: float | None
    """Seconds from the event until a member first knew of it; None for joins."""
    served_s: float
    """Seconds from the event until the first new plan served requests of the client's gateway."""
    settled_s: float
    """Seconds from the event to the last change of the plan."""
    requests: int
    replays: int
    lost: int
    wrong: int
    stall_s: float
    """The longest that the machine kept this process waiting meanwhile."""

    @property
    def excess_s(self) -> float:
        return self.longest_s - max(self.before_s, self.after_s)


class Rounds:
    """Events, one after the other, in a lab's cluster that serves a client."""

    def __init__(self, lab: Lab, running: LocalCluster, model: str, work: Path) -> None:
        self._lab = lab
        self._running = running
        self._model = model
        self._work = work
        self._asked = 0

    def row(self, event: Event, concurrency: int) -> Row:
        """Run one event and return its row. The cluster may have one device more or less afterwards."""
        victim = self._victim(event)
        stays = next(a for a in self._running.living if a is not victim and a.name != self._leader())
        with Stalls() as stalls, self._asking(stays, concurrency) as lines:
            time.sleep(CALM_S)
            at, wall = time.monotonic(), time.time()
            event.act(victim)
            wanted = {agent.name for agent in self._running.living if not event.ends or agent is not victim}
            settled = self._settle(stays, wanted, {victim.name} if event.name == "join" else set())
            time.sleep(CALM_S)
        if event.ends:
            self._running.wait(lambda: not victim.alive, f"{victim.name} to end")
        known = self._said(wanted, KNOWN, wall)
        served = self._said({stays.name}, SERVED, wall)
        return _row(event, concurrency, victim.name, lines(), at, settled, known, served, stalls.longest_s)

    def restore(self) -> None:
        """Start every agent that is down, and wait until all is settled."""
        for agent in self._running.agents.values():
            if not agent.alive:
                agent.start()
                self._running.wait(lambda agent=agent: agent.addresses, f"{agent.name} to be up", agent)
        self.settle_all()

    def settle_all(self) -> None:
        """Wait until the plan is settled, and until no agent has logged a loaded plan or program, contingency
        plans included, for `QUIET_S`."""
        self._settle(self._running.living[0], set(self._running.agents), set())
        last, since = -1, time.monotonic()
        while time.monotonic() < since + QUIET_S:
            logs = [agent.log.read_text() for agent in self._running.living]
            if (count := sum(log.count(text) for log in logs for text in LOADED)) != last:
                last, since = count, time.monotonic()
            time.sleep(POLL_S)

    def _leader(self) -> str:
        leader: str = self._running.status()["leader"]
        return leader

    def _victim(self, event: Event) -> LocalAgent:
        if event.name == "join":
            return next(agent for agent in self._running.agents.values() if not agent.alive)
        leader = self._leader()
        return [a for a in self._running.living if (a.name == leader) == event.leads][-1]

    @contextmanager
    def _asking(self, agent: LocalAgent, concurrency: int) -> Iterator[Callable[[], list[Any]]]:
        self._asked += 1
        out = self._lab.folder / f"asked-{self._asked}.jsonl"
        arguments = (agent.url, str(agent.state), self._model, str(self._work), str(concurrency), str(out))
        process = self._lab.start(agent.name, sys.executable, "-m", "benchmarks.keep_asking", *arguments)
        try:
            self._running.wait(lambda: out.exists() and out.stat().st_size, "the client's first answer")
            yield lambda: [json.loads(line) for line in out.read_text().splitlines()]
        finally:
            process.terminate()
            process.wait()

    def _settle(self, agent: LocalAgent, present: set[str], needed: set[str]) -> float:
        """Wait until a plan on some of the devices that are `present`, and on all that are `needed`, has been stable for
        `STAYED_S`; return when it came, on the monotonic clock."""

        async def look() -> float:
            until = time.monotonic() + SETTLE_WITHIN_S
            last, since = None, time.monotonic()
            async with client_of(agent) as client:
                while time.monotonic() < until:
                    plan, now = await _plan(client, self._model), time.monotonic()
                    if plan != last:
                        last, since = plan, now
                    elif plan is not None and needed <= set(plan[1]) <= present and now - since >= STAYED_S:
                        return since
                    await asyncio.sleep(POLL_S)
            raise ClusterError(
                f"no plan on {sorted(needed or present)} settled within {SETTLE_WITHIN_S:.0f} s; the last was {last}"
            )

        return asyncio.run(look())

    def _said(self, names: set[str], texts: Sequence[str], wall: float) -> float | None:
        """Return the time of the first log line after `wall` with one of the texts by one of the agents, in
        seconds since `wall`; None if there is none."""
        logs = [self._running.agents[name].log.read_text() for name in names]
        lines = [line for log in logs for line in log.splitlines() if any(text in line for text in texts)]
        return min((at - wall for at in map(_time, lines) if at >= wall - 0.001), default=None)


async def _plan(client: Any, model: str) -> tuple[str, tuple[str, ...]] | None:
    cards = (await client.get("/api/models"))["models"]
    card = next(card for card in cards if card["name"] == model)
    return (card["epoch"], tuple(card["devices"])) if card["state"] == "serving" else None


def _time(line: str) -> float:
    """Return the time of a log line, in seconds since the Unix epoch; 0 if it has none."""
    found = STAMP.match(line)
    return datetime.fromisoformat(found[1]).timestamp() + int(found[2]) / 1e3 if found else 0.0


def _row(
    event: Event,
    concurrency: int,
    victim: str,
    lines: list[Any],
    at: float,
    settled: float,
    detected: float | None,
    served: float | None,
    stall_s: float,
) -> Row:
    """Return the row of an event. `lines` are those of keep_asking: began, ended, epoch, replays, wrong, error."""
    before = [ended - began for began, ended, *_ in lines if ended <= at]
    after = [ended - began for began, ended, *_ in lines if began >= settled]
    between = [
        (ended - began, ended - at)
        for began, ended, *_ in lines
        if ended >= at and began <= settled + STAYED_S
    ]
    longest_s, longest_at_s = max(between)
    return Row(
        event.name,
        concurrency,
        victim,
        median(before),
        median(after),
        longest_s,
        longest_at_s,
        detected,
        settled - at if served is None else served,
        settled - at,
        len(lines),
        sum(line[3] for line in lines),
        sum(bool(line[5]) for line in lines),
        sum(line[4] for line in lines),
        stall_s,
    )
