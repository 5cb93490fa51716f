"""How long requests wait when a device joins, leaves or dies: four emulated hosts, and a client that asks without pause.

    python -m benchmarks.replan [--model NAME] [--slow 32] [--rounds N] [--concurrency 1,2] [--events A,B] [--markdown]
                                [--json FILE]

The excess is the longest latency of any request from the event until the next plan has settled, minus the larger of the
two medians before and after. For the event "nothing" it shows how far single requests deviate anyway. The client is on a
host that stays. The requirements are those of the laboratory (docs/laboratory.md).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median

from tests.lab.cluster import cluster
from tests.lab.hosts import numbered
from tests.lab.lab import Lab

from benchmarks.comparing import run_alone
from benchmarks.machine import describe, sentence, show_table
from benchmarks.models import light, sample_inputs
from benchmarks.replan_rounds import EVENTS, STALL_S, Rounds, Row
from benchmarks.serving import client_of, deploy
from benchmarks.work import pack
from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.local import LocalCluster
from edgepart.cli.output import note, say, table
from edgepart.planner.model.load import load_graph

HOSTS, RATE = 4, "1gbit"
TRIES = 3
"""Times that an event is tried if the machine disturbs it."""


def measure(
    model: str, slow: float, rounds: int, concurrencies: Sequence[int], events: Sequence[str]
) -> list[Row]:
    rows: list[Row] = []
    path = light(model)
    inputs = sample_inputs(load_graph(path))
    with (
        tempfile.TemporaryDirectory(prefix="ereplan-") as folder,
        Lab(numbered(HOSTS, f"{slow:g}", rate=RATE)) as lab,
        cluster(lab) as running,
    ):
        work = Path(folder) / "work.npz"
        pack(work, inputs, run_alone(path, inputs))
        asyncio.run(_deploy(running, path, model))
        made = Rounds(lab, running, model, work)
        made.settle_all()
        for _, concurrency, name in product(range(rounds), concurrencies, events):
            counted = 0
            for _ in range(TRIES):
                for event in (EVENTS[name], EVENTS["join"])[: 1 + EVENTS[name].ends]:
                    row = made.row(event, concurrency)
                    rows.append(row)
                    _tell(row)
                    counted += event.name == name and row.stall_s < STALL_S
                made.restore()
                if counted:
                    break
    return rows


async def _deploy(running: LocalCluster, path: Path, model: str) -> None:
    async with client_of(running.first) as client:
        await deploy(client, path, model, DeployOptions())


def _tell(row: Row) -> None:
    detected = (
        ""
        if row.detected_s is None
        else f", known after {row.detected_s * 1e3:.0f} ms, served after {row.served_s * 1e3:.0f} ms"
    )
    note(
        f"{row.event} ({row.victim}, {row.concurrency} at once): {row.before_s * 1e3:.0f} -> {row.after_s * 1e3:.0f} ms, "
        f"longest {row.longest_s * 1e3:.0f} ms at {row.longest_at_s:.2f} s, excess {row.excess_s * 1e3:.0f} ms{detected}, "
        f"settled after {row.settled_s:.1f} s, {row.requests} requests, {row.replays} replays, {row.lost} lost, "
        f"{row.wrong} wrong"
        + ("" if row.stall_s < STALL_S else f"; not counted: the machine stood still for {row.stall_s:.2f} s")
    )


EXCESS_AIM_S, JOIN_AIM_S = 0.25, 5.0
"""The longest that a request should wait for any event, and the time after which a device that joins should serve."""
HEADS = (
    *("event", "at once", "rounds", "before", "after", "longest", "excess", "most", "aim", "known after"),
    *("served after", "aim", "replays", "lost", "wrong"),
)


def show(rows: Sequence[Row], markdown: bool) -> None:
    """Print the medians of the rounds, and of the excess also the maximum."""
    kinds = dict.fromkeys((row.event, row.concurrency) for row in rows)
    found = [_line([row for row in rows if (row.event, row.concurrency) == kind]) for kind in kinds]
    show_table(table(HEADS, found, right=HEADS[1:]), markdown)


def _line(some: Sequence[Row]) -> tuple[str, ...]:
    known = [row.detected_s for row in some if row.detected_s is not None]
    return (
        some[0].event,
        str(some[0].concurrency),
        str(len(some)),
        *(
            _ms(median(getattr(row, name) for row in some))
            for name in ("before_s", "after_s", "longest_s", "excess_s")
        ),
        _ms(max(row.excess_s for row in some)),
        _ms(EXCESS_AIM_S),
        _ms(median(known)) if known else "",
        _ms(median(row.served_s for row in some)),
        _ms(JOIN_AIM_S) if some[0].event == "join" else "",
        *(str(sum(getattr(row, name) for row in some)) for name in ("replays", "lost", "wrong")),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument(
        "--slow",
        type=float,
        default=32,
        help="times as slow as this machine; a plan has to gain by each host, or nothing changes when one joins",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", default="1,2")
    parser.add_argument(
        "--events",
        default="nothing,leave,kill,leader leaves,leader killed",
        help="what ends an agent is followed by a join",
    )
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    concurrencies = [int(part) for part in given.concurrency.split(",")]
    asked, known = given.events.split(","), [name for name in EVENTS if name != "join"]
    if strange := [name for name in asked if name not in known]:
        parser.error(
            f"--events {strange[0]!r}: there are {', '.join(known)}; a join follows each that ends an agent"
        )
    every = measure(given.model, given.slow, given.rounds, concurrencies, asked)
    rows = [row for row in every if row.stall_s < STALL_S]
    say(f"{given.model} on {HOSTS} hosts {given.slow:g} times as slow, on {sentence()}.\n")
    show(rows, given.markdown)
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "machine": describe(),
            "rows": [asdict(row) | {"excess_s": row.excess_s} for row in every],
        }
        given.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
