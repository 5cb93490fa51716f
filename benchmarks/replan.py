"""How long requests wait when a device joins, leaves or dies: four emulated hosts, and a client that asks without pause.

    python -m benchmarks.replan [--model NAME] [--rounds N] [--concurrency 1,2] [--events A,B] [--markdown] [--json FILE]

Excess is the longest latency of any request from the event until the plan that follows has settled, less the larger of the
two medians before and after. The client is on a host that stays; needs what the laboratory needs (docs/laboratory.md).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from tests.lab.cluster import cluster
from tests.lab.hosts import numbered
from tests.lab.lab import Lab

from benchmarks.comparing import alone
from benchmarks.keep_asking import pack
from benchmarks.machine import describe, sentence, show_table
from benchmarks.models import light, sample_inputs
from benchmarks.serving import POLL_S, SETTLE_WITHIN_S, client_of, deploy
from edgepart.agent.messages import DeployOptions
from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.cli.output import note, say, table
from edgepart.planner.errors import ClusterError
from edgepart.planner.model import load_graph

HOSTS, SLOW, RATE = 4, "8", "1gbit"
STAYED_S = 6.0
"""A plan on the devices that should have one is settled when it was the same for so long."""
CALM_S = 4.0
"""Before an event and after the last change: requests whose median counts."""
STARTED = re.compile(r"^(\S+ \S+?),(\d{3}) .*(?:is suspect|is gone|is leaving)")


@dataclass(frozen=True)
class Event:
    """One kind of event: what happens to which agent."""

    name: str
    leads: bool
    """Whether it happens to the leader."""
    act: Callable[[LocalAgent], Any]


EVENTS = {
    event.name: event
    for event in (
        Event("join", False, LocalAgent.start),
        Event("leave", False, lambda agent: agent.signal(signal.SIGTERM)),
        Event("leader leaves", True, lambda agent: agent.signal(signal.SIGTERM)),
        Event("kill", False, LocalAgent.kill),
        Event("leader killed", True, LocalAgent.kill),
    )
}


@dataclass(frozen=True)
class Row:
    """What one event did to requests."""

    event: str
    concurrency: int
    victim: str
    before_s: float
    """Median latency."""
    after_s: float
    longest_s: float
    """Of all requests that ended after the event and began before all was settled."""
    longest_at_s: float
    """When that request ended, after the event."""
    detected_s: float | None
    """From the event to when a member first knew; None for joins."""
    settled_s: float
    """From the event to the last change of the plan."""
    requests: int
    replays: int
    lost: int
    wrong: int

    @property
    def excess_s(self) -> float:
        return self.longest_s - max(self.before_s, self.after_s)


class Rounds:
    """A lab's cluster under a client."""

    def __init__(self, lab: Lab, running: LocalCluster, model: str, work: Path) -> None:
        self._lab = lab
        self._running = running
        self._model = model
        self._work = work
        self._asked = 0

    def row(self, event: Event, concurrency: int) -> Row:
        """One event, after which the cluster is one device larger or smaller than before."""
        victim = self._victim(event)
        stays = next(a for a in self._running.living if a is not victim and a.name != self._leader())
        with self._asking(stays, concurrency) as lines:
            time.sleep(CALM_S)
            at, wall = time.monotonic(), time.time()
            event.act(victim)
            joins = event.name == "join"
            wanted = {agent.name for agent in self._running.living if joins or agent is not victim}
            settled = self._settle(stays, wanted)
            time.sleep(CALM_S)
        if event.name.endswith("eaves") or event.name == "leave":
            self._running.wait(lambda: not victim.alive, f"{victim.name} to end")
        detected = None if joins else self._detected(wanted, wall)
        return _row(event, concurrency, victim.name, lines(), at, settled, detected)

    def restore(self) -> None:
        """All are there again, and settled."""
        for agent in self._running.agents.values():
            if not agent.alive:
                agent.start()
                self._running.wait(lambda agent=agent: agent.addresses, f"{agent.name} to be up", agent)
        self.settle_all()

    def settle_all(self) -> None:
        self._settle(self._running.living[0], set(self._running.agents))

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

    def _settle(self, agent: LocalAgent, wanted: set[str]) -> float:
        """Waits until a plan on `wanted` stayed; when it came, on the monotonic clock."""

        async def look() -> float:
            until = time.monotonic() + SETTLE_WITHIN_S
            last, since = None, time.monotonic()
            async with client_of(agent) as client:
                while time.monotonic() < until:
                    plan, now = await _plan(client, self._model), time.monotonic()
                    if plan != last:
                        last, since = plan, now
                    elif plan is not None and set(plan[1]) == wanted and now - since >= STAYED_S:
                        return since
                    await asyncio.sleep(POLL_S)
            raise ClusterError(f"no plan on {sorted(wanted)} settled; the last was {last}")

        return asyncio.run(look())

    def _detected(self, names: set[str], wall: float) -> float | None:
        """When the first of those logged it, after the event."""
        logs = [self._running.agents[name].log.read_text() for name in names]
        times = [
            at - wall for text in logs for at in map(_time, text.splitlines()) if at and at >= wall - 0.001
        ]
        return min(times, default=None)


async def _plan(client: Any, model: str) -> tuple[str, tuple[str, ...]] | None:
    cards = (await client.get("/api/models"))["models"]
    card = next(card for card in cards if card["name"] == model)
    return (card["epoch"], tuple(card["devices"])) if card["state"] == "serving" else None


def _time(line: str) -> float:
    """Of a line that tells of a loss; 0 for others."""
    found = STARTED.match(line)
    return datetime.fromisoformat(found[1]).timestamp() + int(found[2]) / 1e3 if found else 0.0


def _row(
    event: Event,
    concurrency: int,
    victim: str,
    lines: list[Any],
    at: float,
    settled: float,
    detected: float | None,
) -> Row:
    """Lines are keep_asking's: began, ended, epoch, replays, wrong, error."""
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
        settled - at,
        len(lines),
        sum(line[3] for line in lines),
        sum(bool(line[5]) for line in lines),
        sum(line[4] for line in lines),
    )


def measure(model: str, rounds: int, concurrencies: Sequence[int], events: Sequence[str]) -> list[Row]:
    rows: list[Row] = []
    path = light(model)
    inputs = sample_inputs(load_graph(path))
    with (
        tempfile.TemporaryDirectory(prefix="ereplan-") as folder,
        Lab(numbered(HOSTS, SLOW, rate=RATE)) as lab,
        cluster(lab) as running,
    ):
        work = Path(folder) / "work.npz"
        pack(work, inputs, alone(path, inputs))
        asyncio.run(_deploy(running, path, model))
        made = Rounds(lab, running, model, work)
        made.settle_all()
        for _, concurrency, name in product(range(rounds), concurrencies, events):
            for event in (EVENTS[name], EVENTS["join"]):
                row = made.row(event, concurrency)
                rows.append(row)
                _tell(row)
            made.restore()
    return rows


async def _deploy(running: LocalCluster, path: Path, model: str) -> None:
    async with client_of(running.first) as client:
        await deploy(client, path, model, DeployOptions())


def _tell(row: Row) -> None:
    detected = "" if row.detected_s is None else f", known after {row.detected_s * 1e3:.0f} ms"
    note(
        f"{row.event} ({row.victim}, {row.concurrency} at once): {row.before_s * 1e3:.0f} -> {row.after_s * 1e3:.0f} ms, "
        f"longest {row.longest_s * 1e3:.0f} ms at {row.longest_at_s:.2f} s, excess {row.excess_s * 1e3:.0f} ms{detected}, "
        f"settled after {row.settled_s:.1f} s, {row.requests} requests, {row.replays} replays, {row.lost} lost, "
        f"{row.wrong} wrong"
    )


def show(rows: Sequence[Row], markdown: bool) -> None:
    heads = (
        "event",
        "at once",
        "rounds",
        "before",
        "after",
        "longest",
        "excess",
        "most",
        "known after",
        "replays",
        "lost",
        "wrong",
    )
    found = []
    for key in dict.fromkeys((row.event, row.concurrency) for row in rows):
        some = [row for row in rows if (row.event, row.concurrency) == key]
        known = [row.detected_s for row in some if row.detected_s is not None]
        found.append(
            (
                key[0],
                str(key[1]),
                str(len(some)),
                *(
                    _ms(median(values))
                    for values in zip(
                        *((r.before_s, r.after_s, r.longest_s, r.excess_s) for r in some), strict=True
                    )
                ),
                _ms(max(row.excess_s for row in some)),
                _ms(median(known)) if known else "",
                str(sum(row.replays for row in some)),
                str(sum(row.lost for row in some)),
                str(sum(row.wrong for row in some)),
            )
        )
    show_table(table(heads, found, right=heads[1:]), markdown)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", default="1,2")
    parser.add_argument(
        "--events", default="leave,kill,leader leaves,leader killed", help="each is followed by a join"
    )
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    concurrencies = [int(part) for part in given.concurrency.split(",")]
    rows = measure(given.model, given.rounds, concurrencies, given.events.split(","))
    say(f"On {sentence()}.\n")
    show(rows, given.markdown)
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        document = {"machine": describe(), "rows": [asdict(row) | {"excess_s": row.excess_s} for row in rows]}
        given.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
