"""How much faster slow devices are together: real agents on this machine, each made a slow device from outside
(tests/lab/slow), and a client of the first one's HTTP.

An emulated device sleeps through most of its computing, so several fit on few cores. What is left of a core's time
between runs is the product's own: frames, TLS, Python. It is not slowed down.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.comparing import alone, differences, largest_difference
from benchmarks.models import light, sample_inputs
from benchmarks.serving import POLL_S, SETTLE_WITHIN_S, Answers, ask, client_of, deploy, settle
from edgepart.agent.messages import DeployOptions
from edgepart.cli.client import Client
from edgepart.cli.local import LocalCluster
from edgepart.planner.errors import InternalError
from edgepart.planner.model import load_graph

SLOW = Path(__file__).resolve().parents[1] / "tests" / "lab" / "slow"
FACTOR = 8
NAMES = ("a", "b", "c", "d")
MODELS = ("vgg19", "resnet50", "inception_v1")
COUNTS = (1, 2, 4)
WARM_UP, REQUESTS = 2, 5
TRIES = 3
"""A measurement during which the plan changed is made again; so is an agent's own, where something disturbed it."""
ALIKE = 0.93
"""The devices are equal: one that found itself below this share of the quickest was disturbed while it measured."""

BARE = """
import sys, time
from pathlib import Path
from benchmarks.executor import Bare
from benchmarks.models import sample_inputs
from edgepart.planner.model import load_graph
path = Path(sys.argv[1])
inputs, run = sample_inputs(load_graph(path)), Bare(path, 1)
times = []
for _ in range(6):
    began = time.perf_counter()
    run(inputs)
    times.append(time.perf_counter() - began)
print(sorted(times[1:])[2])
"""


@dataclass(frozen=True)
class Speedup:
    """Of one model on so many slow devices."""

    model: str
    devices: int
    strategy: str
    used: tuple[str, ...]
    latency_s: float
    """Median at the client."""
    seconds: tuple[float, ...]
    speedup: float
    """One slow device's latency, through the same cluster, over this."""
    predicted_s: float
    busiest_s: float
    """What the busiest device computed for one request, median: measured inside the devices."""
    all_busy_s: float
    """The sum over the devices."""
    segments: int
    """Of the device that has most."""
    messages: int
    """Syncs between devices, as the plan counts them."""
    moved_bytes: int
    """Between devices, for one request."""
    largest_difference: float
    why: str

    @property
    def share(self) -> float:
        """Of the latency, what the busiest device computes."""
        return self.busiest_s / self.latency_s

    @property
    def balance(self) -> float:
        """Of the busiest device's computing, what one does on average: 1 where all do equally much."""
        return self.all_busy_s / len(self.used) / self.busiest_s


def slow_environment(runs: Path | None = None, factor: float = FACTOR) -> dict[str, str]:
    """Makes a process a slow device; `runs` is told when it computed."""
    paths = [str(SLOW), os.environ.get("PYTHONPATH", "")]
    told = {} if runs is None else {"EDGEPART_LAB_RUNS": str(runs)}
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "EDGEPART_LAB_SLOW": str(factor), **told}


def bare_slow_s(path: Path) -> float:
    """One session in a slow process of its own, without anything of the product around it: a check of the base."""
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, **slow_environment()}
    environment["PYTHONPATH"] += f"{os.pathsep}{root}"
    done = subprocess.run(
        [sys.executable, "-c", BARE, str(path)], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise InternalError(f"the bare slow session failed: {done.stderr[-2000:]}")
    return float(done.stdout)


def measure(models: Sequence[str], say: Any) -> tuple[list[Speedup], dict[str, float]]:
    """Rows, and by model what a bare slow session takes. `say(text)` is told how far it is."""
    bare: dict[str, float] = {}
    for name in models:
        bare[name] = bare_slow_s(light(name))
        say(f"{name}: a bare slow session takes {bare[name]:.3f} s")
    with tempfile.TemporaryDirectory(prefix="edgepart-speedup-") as folder:
        runs = {name: Path(folder) / f"{name}.runs" for name in NAMES}
        environments = {name: slow_environment(path) for name, path in runs.items()}
        options = ("--threads", "1")
        cluster = LocalCluster(
            NAMES, options=options, env=environments, folder=Path(folder), listen="127.0.0.1:0"
        )
        with cluster:
            _until_alike(cluster, say)
            rows = asyncio.run(_all(cluster, models, runs, say))
    return rows, bare


def _until_alike(cluster: LocalCluster, say: Any) -> None:
    """Starts agents again that measured themselves while the machine did something else."""
    for _ in range(TRIES):
        devices = {one["name"]: one["families"] for one in asyncio.run(_devices(cluster))}
        best = {family: max(one[family] for one in devices.values()) for family in devices[NAMES[0]]}
        alike = {name: min(one[family] / best[family] for family in best) for name, one in devices.items()}
        parts = ", ".join(f"{name} {part:.0%}" for name, part in sorted(alike.items()))
        say(f"what each measured of itself, of the best in any kind of operator: {parts}")
        slower = [name for name, part in alike.items() if part < ALIKE]
        if not slower:
            return
        for name in slower:
            say(f"{name} is started again: it was disturbed while it measured itself")
            agent = cluster.agents[name]
            agent.stop()
            agent.start()
            cluster.wait(lambda agent=agent: agent.addresses, f"agent {name} to be up again", agent)
        cluster.wait_for_members(len(NAMES))
    say("the devices are still not equal; what follows is of unequal ones")


async def _devices(cluster: LocalCluster) -> list[dict[str, Any]]:
    """What all of them found themselves to be, as soon as the first one has been told."""
    async with client_of(cluster.first) as client:
        for _ in range(round(SETTLE_WITHIN_S / POLL_S)):
            found: list[dict[str, Any]] = (await client.get("/api/devices"))["devices"]
            if len(found) == len(NAMES):
                return found
            await asyncio.sleep(POLL_S)
    raise InternalError(
        f"of {len(NAMES)} devices only {[one['name'] for one in found]} told what they can do"
    )


async def _all(
    cluster: LocalCluster, models: Sequence[str], runs: Mapping[str, Path], say: Any
) -> list[Speedup]:
    rows: list[Speedup] = []
    async with client_of(cluster.first) as client:
        for name in models:
            one: Speedup | None = None
            for count in COUNTS:
                row = await _one(client, name, count, one, runs)
                one = one or row
                rows.append(row)
                say(
                    f"{name} on {count}: {row.latency_s:.3f} s, {row.speedup:.2f}x, predicted {row.predicted_s:.3f} s, "
                    f"busiest computes {row.busiest_s:.3f} s"
                )
    return rows


async def _one(
    client: Client, model: str, count: int, one: Speedup | None, runs: Mapping[str, Path]
) -> Speedup:
    path = light(model)
    inputs = sample_inputs(load_graph(path))
    strategy = "single" if count == 1 else "auto"
    name = f"{model}-{count}"
    await deploy(client, path, name, DeployOptions(strategy=strategy, devices=NAMES[:count]))
    answers, card = await _measured(client, name, inputs)
    plan = await client.get(f"/api/models/{name}/plan")
    await client.undeploy(name)
    expected = alone(path, inputs)
    if found := differences(answers.outputs, expected):
        raise InternalError(f"{model} on {count} devices answers wrongly: {found}")
    latency_s = median(answers.seconds)
    busy = [busy_s(file, answers.spans) for file in runs.values()]
    devices = plan["devices"].values()
    return Speedup(
        model=model,
        devices=count,
        strategy=plan["strategy"],
        used=tuple(plan["devices"]),
        latency_s=latency_s,
        seconds=answers.seconds,
        speedup=(one.latency_s if one else latency_s) / latency_s,
        predicted_s=float(card["predicted_latency_s"]),
        busiest_s=max(busy),
        all_busy_s=sum(busy),
        segments=max(device["segments"] for device in devices),
        messages=int(plan["syncs"]),
        moved_bytes=sum(device["sent_bytes"] for device in devices),
        largest_difference=largest_difference(answers.outputs, expected),
        why=str(plan["why"]),
    )


async def _measured(client: Client, name: str, inputs: Mapping[str, Any]) -> tuple[Answers, dict[str, Any]]:
    for _ in range(TRIES):
        card = await settle(client, name)
        answers = await ask(client, name, inputs, warm_up=WARM_UP, count=REQUESTS)
        if len(answers.epochs) == 1:
            return answers, card
    raise InternalError(f"{name}: the plan changed during each of {TRIES} measurements")


def busy_s(runs: Path, spans: Sequence[tuple[float, float]]) -> float:
    """Median over the spans of how long the device computed in them."""
    return median(
        sum(max(0.0, min(ended, stop) - max(began, start)) for began, ended in _runs(runs))
        for start, stop in spans
    )


def _runs(path: Path) -> Iterator[tuple[float, float]]:
    if path.exists():
        for line in path.read_text().splitlines():
            began, ended = line.split()
            yield float(began), float(ended)
