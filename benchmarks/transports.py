"""Overhead of a broker: the same agents, model and messages over TCP and through MQTT, in one run.

    python -m benchmarks.transports [--model NAME] [--rounds N] [--markdown] [--json FILE]

Prints tables; nothing here passes or fails. Needs mosquitto, which it starts itself. Everything is on this machine, so the
broker shares the agents' processors.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks import wires
from benchmarks.comparing import differences, run_alone
from benchmarks.machine import describe, sentence, show_table
from benchmarks.models import light, sample_inputs
from benchmarks.mosquitto import Mosquitto
from benchmarks.serving import client_of
from edgepart.cli.local import LocalAgent, LocalCluster, edgepart
from edgepart.cli.output import note, say, table
from edgepart.planner.figures import format_bytes, format_seconds
from edgepart.planner.model.load import load_graph

SIZES = [1 << 10, 64 << 10, 1 << 20, 8 << 20]
WARM_UP = 3


@dataclass(frozen=True)
class Served:
    """The figures of a model split over two agents."""

    way: str
    model: str
    latency_s: float
    """Median at a client on this machine."""
    wrong: int
    """Answers that differ from those of one session."""


def serve(folder: Path, url: str, model: str, requests: int) -> list[Served]:
    """Run two clusters of two agents, send requests to them in turn, and return their figures."""
    path = light(model)
    graph = load_graph(path)
    inputs = sample_inputs(graph)
    expected = run_alone(path, inputs)
    base = ("--threads", "1", "--no-mdns")
    ways = {"tcp": base, "mqtt": (*base, "--mqtt", url, "--transport", "mqtt")}
    times: dict[str, list[float]] = {way: [] for way in ways}
    wrong = dict.fromkeys(ways, 0)

    async def ask(agent: LocalAgent) -> tuple[float, bool]:
        async with client_of(agent) as client:
            await client.infer(model, inputs)
            began = time.perf_counter()
            answer = await client.infer(model, inputs)
            return time.perf_counter() - began, bool(differences(answer.outputs, expected))

    with ExitStack() as stack:
        clusters: dict[str, LocalCluster] = {}
        for way, options in ways.items():
            cluster = LocalCluster(["a", "b"], options=options, folder=folder / way, listen="127.0.0.1:0")
            clusters[way] = stack.enter_context(cluster)
            state = str(cluster.first.state)
            edgepart(
                *("deploy", str(path), "--name", model, "--state", state, "--strategy", "bbgrap"),
                *("--axis", "height"),
                timeout_s=180,
            )
        for number in range(WARM_UP + requests):
            for way, cluster in clusters.items():
                took, is_wrong = asyncio.run(ask(cluster.first))
                wrong[way] += is_wrong
                if number >= WARM_UP:
                    times[way].append(took)
    return [Served(way, model, median(times[way]), wrong[way]) for way in ways]


def show(trips: list[wires.Trips], served: list[Served], markdown: bool) -> None:
    plain = {one.nbytes: one for one in trips if one.way == "tcp"}
    columns = ("message", "way", "there and back", "of TCP", "MB/s one way", "sender's CPU ms/MB")
    messages = [
        (
            format_bytes(one.nbytes),
            one.way,
            format_seconds(one.trip_s),
            f"{one.trip_s / plain[one.nbytes].trip_s:.1f}x",
            f"{one.bytes_per_s / 1e6:.0f}",
            f"{one.cpu_s_per_mb * 1e3:.1f}",
        )
        for one in trips
    ]
    say("Data channel, two processes:\n")
    show_table(table(columns, messages, right=columns[2:]), markdown)
    heads = ("model", "way", "request", "of TCP", "wrong")
    requests = [
        (
            one.model,
            one.way,
            format_seconds(one.latency_s),
            f"{one.latency_s / served[0].latency_s:.2f}x",
            str(one.wrong),
        )
        for one in served
    ]
    say("\nSplit by height over two agents:\n")
    show_table(table(heads, requests, right=heads[2:]), markdown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="squeezenet")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=21)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edgepart-") as name, Mosquitto(Path(name)) as broker:
        note("the data channel, each way in turn")
        trips = wires.measure(Path(name) / "wires", broker.url, SIZES, given.rounds)
        note(f"{given.model}, each way in turn")
        served = serve(Path(name), broker.url, given.model, given.requests)
    say(f"On {sentence()}.\n")
    show(trips, served, given.markdown)
    if given.json is not None:
        document = {
            "machine": describe(),
            "wires": [asdict(one) for one in trips],
            "served": [asdict(one) for one in served],
        }
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
