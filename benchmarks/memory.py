"""Memory of agents against the planner's prediction and against their limits: real agents on this machine.

The figures are what the system reports as resident for each process. Most of a small model's memory is the agent itself;
most of a large one's is its weights. All models but the first one are larger than an agent's limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.table import Table

from benchmarks.comparing import differences, run_alone
from benchmarks.machine import describe, sentence, show_table
from benchmarks.models import sample_inputs
from benchmarks.models.zoo import zoo_model
from benchmarks.serving import client_of, deploy, settle
from edgepart.agent.options import parse_bytes
from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.local import LocalAgent, LocalCluster
from edgepart.planner.errors import InternalError
from edgepart.planner.model.load import load_graph

CASES = (("seeded_light_resnet50", 1, None), ("vit_b16", 3, "300M"), ("bert_base", 4, "260M"))
"""Model, number of agents, and the memory limit of each."""
REST_S = 3.0
"""Seconds of rest before an idle agent is measured."""
REQUESTS = 10
SEEDS = 5
"""Different inputs, so that tables are looked up in different places."""


@dataclass(frozen=True)
class Taken:
    """Memory of one agent, in bytes."""

    model: str
    device: str
    limit: int | None
    """Limit of the whole agent."""
    weights: int
    """Weights of its part of the model."""
    idle: int
    """Resident before anything was deployed."""
    predicted: int
    """The planner's prediction of the most that the plan takes."""
    serving: int
    """Resident after all requests."""
    most: int
    """The most that was ever resident since its start."""
    aside: int
    """Resident in the processes beside it, the planner's and the one that cuts weights. They end after some rest."""

    @property
    def added(self) -> int:
        return self.serving - self.idle

    @property
    def of_limit(self) -> float:
        """The most that was ever resident, over the limit."""
        return self.most / self.limit if self.limit else 0.0


def status(pid: int, key: str) -> int:
    """Return a field of /proc/PID/status in bytes, such as VmRSS or VmHWM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:"))


def pid_of(agent: LocalAgent) -> int:
    return int(agent.addresses["pid"])


def measure(model: str, agents: int, limit: str | None) -> list[Taken]:
    """Return a row for each agent. Raises InternalError if an answer is wrong."""
    names = [chr(ord("a") + n) for n in range(agents)]
    options = ["--threads", "1", *(["--memory-limit", limit] if limit else [])]
    with LocalCluster(names, options=options, listen="127.0.0.1:0") as cluster:
        time.sleep(REST_S)
        idle = {agent.name: status(pid_of(agent), "VmRSS") for agent in cluster.living}
        plan, beside = asyncio.run(_serve(cluster, model))
        time.sleep(REST_S)
        return [
            Taken(
                model,
                agent.name,
                parse_bytes(limit) if limit else None,
                plan[agent.name]["weight_bytes"] if agent.name in plan else 0,
                idle[agent.name],
                plan[agent.name]["peak_memory_bytes"] if agent.name in plan else 0,
                status(pid_of(agent), "VmRSS"),
                status(pid_of(agent), "VmHWM"),
                beside[agent.name],
            )
            for agent in cluster.living
        ]


async def _serve(cluster: LocalCluster, model: str) -> tuple[Mapping[str, Any], dict[str, int]]:
    """Deploy and ask a model; return the plan by device, and the memory of processes beside the agents once
    it was made."""
    one = zoo_model(model)
    graph = load_graph(one.path, shapes=one.shapes)
    async with client_of(cluster.first) as client:
        await deploy(client, one.path, "model", DeployOptions(shapes=dict(one.shapes)))
        beside = {agent.name: _beside(agent) for agent in cluster.living}
        await settle(client, "model")
        for number in range(REQUESTS):
            inputs = sample_inputs(graph, number % SEEDS)
            answer = await client.infer("model", inputs)
            if number < SEEDS and (found := differences(answer.outputs, run_alone(one.path, inputs))):
                raise InternalError(f"{model} answers wrongly: {found}")
        devices: Mapping[str, Any] = (await client.get("/api/models/model/plan"))["devices"]
    return devices, beside


def _beside(agent: LocalAgent) -> int:
    children = psutil.Process(pid_of(agent)).children(recursive=True)
    return sum(child.memory_info().rss for child in children)


def table(rows: list[Taken]) -> Table:
    found = Table(title=f"resident memory of agents, MB\n{sentence()}")
    for head in (
        "model",
        "agent",
        "limit",
        "idle",
        "weights",
        "predicted",
        "measured",
        "serving",
        "most",
        "of limit",
    ):
        found.add_column(head, justify="left" if head in ("model", "agent") else "right")
    for row in rows:
        limit = f"{row.limit / 1e6:.0f}" if row.limit else ""
        sizes = (row.idle, row.weights, row.predicted, row.added, row.serving, row.most)
        found.add_row(
            row.model,
            row.device,
            limit,
            *(f"{size / 1e6:.0f}" for size in sizes),
            f"{row.of_limit:.0%}" if row.limit else "",
        )
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--model", choices=[name for name, _, _ in CASES], help="only this one")
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args(arguments)
    rows: list[Taken] = []
    for model, agents, limit in CASES:
        if given.model in (None, model):
            rows += measure(model, agents, limit)
    show_table(table(rows), markdown=True)
    if given.json:
        found = [asdict(row) | {"added": row.added, "of_limit": row.of_limit} for row in rows]
        given.json.write_text(json.dumps({"machine": describe(), "rows": found}, indent=1))
    over = [row for row in rows if row.of_limit > 1.1]
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
