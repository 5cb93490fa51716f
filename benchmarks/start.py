"""Start: what a box waits for when something starts, and the memory that agents take, against the aims.

    python -m benchmarks.start [--models N] [--markdown] [--json FILE]

CPU seconds are those of the process and of all that it started, and count less of what else a machine does. Memory is
resident, with that of the processes that an agent keeps running. Three agents deploy, ask and undeploy one model after the
other, each another one; then all are killed at once while a model serves, as in a power cut.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from benchmarks.machine import describe, show_table
from benchmarks.models.builder import Builder
from benchmarks.models.model import save
from benchmarks.serving import client_of, cpu_s_of, deploy
from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.cli.output import note, say, table
from edgepart.planner.errors import ClusterError, EdgepartError
from edgepart.planner.figures import format_bytes, format_seconds

VERSIONS = 9
STARTS = 5
"""Starts of which the median counts."""
MODELS = 30
REQUESTS = 3
"""Requests for each model, to each of the agents in turn."""
SHAPE = (1, 3, 256, 256)
WIDTH, LAYERS = 16, 4
REST_S = 45.0
"""Seconds of rest before memory is read: the processes beside an agent end after 30 s without work."""
CUT_WITHIN_S = 120.0


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    what: str
    measured: str
    cpu: str = ""
    aim: str = ""
    value: float = 0.0
    """What was measured, in seconds or bytes."""


def version_figure() -> Figure:
    """How long `edgepart --version` takes."""
    taken = [_timed([sys.executable, "-m", "edgepart", "--version"]) for _ in range(VERSIONS)]
    return _seconds("edgepart --version", taken, "<= 0.2 s")


def _timed(command: Sequence[str]) -> tuple[float, float]:
    """Seconds and CPU seconds of a command."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    took_s, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _seconds(what: str, taken: Sequence[tuple[float, float]], aim: str) -> Figure:
    wall_s, cpu_s = (median(one[n] for one in taken) for n in (0, 1))
    return Figure(what, format_seconds(wall_s), format_seconds(cpu_s), aim, wall_s)


def start_figures() -> list[Figure]:
    """How long an agent takes until it listens: at its first start, in which it measures its box, and later."""
    with tempfile.TemporaryDirectory(prefix="edgepart-") as folder:
        agent = LocalAgent("a", Path(folder) / "a")
        agent.type("init", "--name", "a")
        taken = []
        try:
            for _ in range(STARTS + 1):
                taken.append(_started(agent))
                agent.stop()
        finally:
            agent.kill()
    return [
        _seconds("first start of an agent until it listens", taken[:1], ""),
        _seconds("later start of an agent until it listens", taken[1:], "<= 1 s"),
    ]


def _started(agent: LocalAgent) -> tuple[float, float]:
    """Seconds and CPU seconds from the command until the agent listens."""
    began = time.monotonic()
    agent.start()
    while not agent.addresses:
        if not agent.alive:
            raise ClusterError(f"the agent ended: {agent.log.read_text()[-500:]}")
        time.sleep(0.01)
    took_s = time.monotonic() - began
    return took_s, cpu_s_of(agent)


def memory_figures(models: int) -> list[Figure]:
    """The memory of agents without anything deployed, before and after many models; and the power cut."""
    with LocalCluster(["alone"]) as cluster:
        time.sleep(REST_S)
        (alone,) = _resident(cluster).values()
    with LocalCluster(["a", "b", "c"]) as cluster:
        time.sleep(REST_S)
        before = _resident(cluster)
        asyncio.run(_serve_each(cluster, models))
        time.sleep(REST_S)
        after = _resident(cluster)
        cut_s = _cut_power(cluster)
    more = max(after[name] - before[name] for name in before)
    return [
        _bytes("idle agent, alone", alone, "<= 70 MB"),
        _bytes("idle agent, the largest of three", max(before.values()), "<= 70 MB"),
        _bytes(f"the same after {models} models", max(after.values())),
        _bytes(f"more than before {models} models, the most of three", more, "<= 20 MB"),
        Figure(
            "power cut of three: the last agent's start until an answer",
            format_seconds(cut_s),
            "",
            "<= 10 s",
            cut_s,
        ),
    ]


def _bytes(what: str, nbytes: int, aim: str = "") -> Figure:
    return Figure(what, format_bytes(nbytes), "", aim, float(nbytes))


def _resident(cluster: LocalCluster) -> dict[str, int]:
    found = {}
    for agent in cluster.living:
        process = psutil.Process(int(agent.addresses["pid"]))
        every = [process, *process.children(recursive=True)]
        found[agent.name] = sum(one.memory_info().rss for one in every)
    return found


async def _serve_each(cluster: LocalCluster, models: int) -> None:
    """Deploy, ask and undeploy one model after the other."""
    with tempfile.TemporaryDirectory(prefix="edgepart-") as folder:
        for number in range(models):
            note(f"model {number + 1} of {models}")
            path = _model(number, Path(folder))
            async with client_of(cluster.first) as client:
                await deploy(client, path, f"m{number}", DeployOptions())
            for agent in cluster.living:
                async with client_of(agent) as client:
                    for _ in range(REQUESTS):
                        await client.infer(f"m{number}", {"x": _input()})
            async with client_of(cluster.first) as client:
                await client.undeploy(f"m{number}")


def _model(number: int, folder: Path) -> Path:
    """A chain of convolutions whose weights are different for each number."""
    b = Builder(f"m{number}")
    x, ins = b.input("x", SHAPE), SHAPE[1]
    for _ in range(LAYERS):
        x, ins = b.add("Relu", b.conv(x, ins, WIDTH, (3, 3), gain=2.0 + number / 100)), WIDTH
    b.output(x, "y")
    path = folder / f"m{number}.onnx"
    save(b.model(), path)
    return path


def _input() -> Any:
    return np.random.default_rng(0).standard_normal(SHAPE, np.float32)


def _cut_power(cluster: LocalCluster) -> float:
    """Seconds from the start of the last of all agents, which were killed while a model served, until an answer."""
    with tempfile.TemporaryDirectory(prefix="edgepart-") as folder:

        async def serve() -> None:
            async with client_of(cluster.first) as client:
                await deploy(client, _model(0, Path(folder)), "kept", DeployOptions())
                await client.infer("kept", {"x": _input()})

        asyncio.run(serve())
    time.sleep(REST_S)
    note("power cut")
    agents = cluster.living
    for agent in agents:
        agent.kill()
    for agent in agents:
        agent.start()
    began = time.monotonic()
    while time.monotonic() - began < CUT_WITHIN_S:
        try:
            asyncio.run(_ask(cluster.first))
            return time.monotonic() - began
        except (EdgepartError, OSError, KeyError):
            time.sleep(0.05)
    raise ClusterError(f"no answer within {CUT_WITHIN_S:.0f} s of the power cut")


async def _ask(agent: LocalAgent) -> None:
    async with client_of(agent) as client:
        await client.infer("kept", {"x": _input()})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=("version", "start", "memory"), help="one part of it")
    parser.add_argument("--models", type=int, default=MODELS, help="how many models are deployed")
    parser.add_argument(
        "--markdown", action="store_true", help="print the table as docs/benchmarks.md has it"
    )
    parser.add_argument("--json", type=Path, help="write every number there")
    options = parser.parse_args(arguments)
    parts: dict[str, Callable[[], list[Figure]]] = {
        "version": lambda: [version_figure()],
        "start": start_figures,
        "memory": lambda: memory_figures(options.models),
    }
    found = [figure for name, part in parts.items() if options.only in (None, name) for figure in part()]
    if not options.markdown:
        say(f"Starts and memory, medians of {STARTS} starts")
    rows = [(one.what, one.measured, one.cpu, one.aim) for one in found]
    columns = ("what", "measured", "CPU", "aim")
    show_table(table(columns, rows, right=columns[1:]), markdown=options.markdown)
    if options.json:
        options.json.write_text(
            json.dumps({"machine": describe(), "rows": [asdict(one) for one in found]}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
