"""Measures how soon a device that is throttled while it serves is noticed and gets less work, on emulated hosts.

    python -m benchmarks.drift [--model resnet50] [--hosts 4] [--slow 8] [--to 24] [--rounds 3] [--markdown] [--json FILE]

A client sends requests without pause meanwhile. The requirements are those of the laboratory
(docs/laboratory.md).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.lab.cluster import cluster
from tests.lab.hosts import numbered
from tests.lab.lab import Lab

from benchmarks.comparing import run_alone
from benchmarks.machine import describe, sentence, show_table
from benchmarks.models import light, sample_inputs
from benchmarks.serving import client_of, deploy, settle
from benchmarks.stalls import Stalls
from benchmarks.work import pack
from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.local import LocalCluster
from edgepart.cli.output import note, say, table
from edgepart.planner.errors import ClusterError
from edgepart.planner.model.load import load_graph

WITHIN_S = 120.0
POLL_S = 0.1
CALM_S = 6.0
"""Seconds of requests before and after a throttling, from which the median latencies are taken."""


@dataclass(frozen=True)
class Row:
    """The figures of one throttling."""

    box: str
    noticed_s: float
    """Seconds from the throttling until the leader planned with it, measured to its first log line that says so."""
    served_s: float
    """Seconds to the first answer by a plan that gives the box less work."""
    before_s: float
    """Median latency before the throttling."""
    throttled_s: float
    """Median latency on the old plan."""
    after_s: float
    searches: int
    """Searches that the leader made meanwhile."""
    stall_s: float


class Rounds:
    """Throttlings, one after the other, of the hosts of a lab's cluster that serves a client."""

    def __init__(
        self, lab: Lab, running: LocalCluster, model: str, work: Path, slow: float, to: float
    ) -> None:
        self._lab = lab
        self._running = running
        self._model = model
        self._work = work
        self._slow = slow
        self._to = to
        self._out = lab.folder / "asked.jsonl"

    def row(self, box: str) -> Row:
        """Throttle the box until another plan serves, wait `CALM_S`, then undo it; return the figures.

        It begins once the deployment is settled.
        """
        card = asyncio.run(self._settled())
        searches = self._said("(now ")
        time.sleep(CALM_S)
        with Stalls() as stalls:
            at, mark = time.monotonic(), self._said("(now ")
            self._lab.pace(box, self._to)
            try:
                self._running.wait(lambda: self._said("(now ") > mark, "a search", timeout_s=WITHIN_S)
                noticed_s = time.monotonic() - at
                self._running.wait(
                    lambda: self._epochs(at, card["epoch"]), "another plan", timeout_s=WITHIN_S
                )
                served = self._epochs(at, card["epoch"])[0]
                time.sleep(CALM_S)
            finally:
                self._lab.pace(box, self._slow)
        lines = self._lines()
        return Row(
            box=box,
            noticed_s=noticed_s,
            served_s=served - at,
            before_s=_median(ended - began for began, ended, *_ in lines if at - CALM_S < ended <= at),
            throttled_s=_median(ended - began for began, ended, *_ in lines if began > at and ended < served),
            after_s=_median(ended - began for began, ended, *_ in lines if began > served),
            searches=self._said("(now ") - searches,
            stall_s=stalls.longest_s,
        )

    def asking(self) -> Any:
        """Start the client's process on the first host, wait for its first answer, and return the process."""
        first = self._running.first
        arguments = (first.url, str(first.state), self._model, str(self._work), "1", str(self._out))
        process = self._lab.start(first.name, sys.executable, "-m", "benchmarks.keep_asking", *arguments)
        self._running.wait(lambda: self._out.exists() and self._out.stat().st_size, "the first answer")
        return process

    async def _settled(self) -> dict[str, Any]:
        async with client_of(self._running.first) as client:
            return await settle(client, self._model)

    def _lines(self) -> list[Any]:
        return [
            json.loads(line)
            for line in self._out.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]

    def _epochs(self, at: float, before: Any) -> list[float]:
        """Return the times of answers since `at` by plans other than the one that served before."""
        return [
            ended for _, ended, epoch, *_ in self._lines() if ended > at and epoch and epoch != _text(before)
        ]

    def _said(self, text: str) -> int:
        return sum(agent.log.read_text().count(text) for agent in self._running.living)


def _text(epoch: Any) -> str:
    """Return an epoch in the form that answers have."""
    return epoch if isinstance(epoch, str) else ".".join(map(str, epoch))


def _median(seconds: Any) -> float:
    found = list(seconds)
    return median(found) if found else 0.0


def measure(model: str, hosts: int, slow: float, to: float, rounds: int) -> list[Row]:
    """Throttle one box after the other and return their rows. Raises EdgepartError if a throttling is not noticed."""
    path = light(model)
    inputs = sample_inputs(load_graph(path))
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="edrift-") as folder,
        Lab(numbered(hosts, f"{slow:g}", rate="1gbit")) as lab,
        cluster(lab) as running,
    ):
        work = Path(folder) / "work.npz"
        pack(work, inputs, run_alone(path, inputs))
        asyncio.run(_deploy(running, path, model))
        made = Rounds(lab, running, model, work, slow, to)
        process = made.asking()
        try:
            for number in range(rounds):
                rows.append(made.row(f"box-{2 + number % (hosts - 1)}"))
                note(str(rows[-1]))
        finally:
            process.terminate()
            process.wait()
    return rows


async def _deploy(running: LocalCluster, path: Path, model: str) -> None:
    async with client_of(running.first) as client:
        await deploy(client, path, model, DeployOptions())


HEADS = (
    "throttled",
    "noticed after",
    "other plan after",
    "before",
    "throttled",
    "after",
    "searches",
    "stall",
)


def lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    return [
        (
            row.box,
            f"{row.noticed_s:.1f} s",
            f"{row.served_s:.1f} s",
            *(f"{seconds * 1e3:.0f} ms" for seconds in (row.before_s, row.throttled_s, row.after_s)),
            str(row.searches),
            f"{row.stall_s:.2f} s",
        )
        for row in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--slow", type=float, default=8.0, help="times as slow as this machine")
    parser.add_argument("--to", type=float, default=24.0, help="the same of the throttled one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    try:
        rows = measure(given.model, given.hosts, given.slow, given.to, given.rounds)
    except ClusterError as error:
        sys.exit(f"error: {error}")
    say(
        f"{given.model}, one of {given.hosts} hosts from {given.slow:g} to {given.to:g} times as slow, on {sentence()}.\n"
    )
    show_table(table(HEADS, lines(rows), right=HEADS[1:]), given.markdown)
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(
            json.dumps({"machine": describe(), "rows": [asdict(row) for row in rows]}, indent=1)
        )


if __name__ == "__main__":
    main()
