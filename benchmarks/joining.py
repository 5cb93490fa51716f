"""Latency of requests while a device joins and fetches a model: three emulated hosts, two of which serve.

    python -m benchmarks.joining [--megabytes 80] [--rate 100mbit] [--concurrency 1] [--json FILE]

Two hosts serve a small model together. A third one joins and copies another, large model from them, as every member
does with models up to 100 MB. Reports the latencies without and during the copy, and how long the copy takes. The
requirements are those of the laboratory (docs/laboratory.md).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.lab.cluster import cluster
from tests.lab.hosts import numbered
from tests.lab.lab import Lab

from benchmarks.comparing import run_alone
from benchmarks.models import light, sample_inputs
from benchmarks.serving import client_of, deploy, settle
from benchmarks.work import pack
from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.local import LocalCluster
from edgepart.cli.output import print_json, say
from edgepart.planner.figures import format_seconds
from edgepart.planner.model.load import load_graph

SERVING = ("box-1", "box-2")
CALM_S = 8.0
LOOK_S = 0.05
FETCH_WITHIN_S = 400.0


def large(folder: Path, megabytes: int) -> Path:
    """Save a model of one matrix of that size, and return its path."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    width = round((megabytes * 1e6 / 4) ** 0.5)
    weight = np.random.default_rng(1).random((width, width), np.float32)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width]) for name in ("x", "y")]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", values[:1], values[1:], [numpy_helper.from_array(weight, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(made, folder / "large.onnx")
    return folder / "large.onnx"


def measure(megabytes: int, rate: str, concurrency: int) -> dict[str, Any]:
    path = light("squeezenet")
    inputs = sample_inputs(load_graph(path))
    with (
        tempfile.TemporaryDirectory(prefix="ejoin-") as folder,
        Lab(numbered(3, "8", rate=rate)) as lab,
        cluster(lab, SERVING) as running,
    ):
        work = Path(folder) / "work.npz"
        pack(work, inputs, run_alone(path, inputs))
        asyncio.run(_deploy(running, path, large(Path(folder), megabytes)))
        out = lab.folder / "asked.jsonl"
        asked = running.agents[SERVING[1]]
        arguments = (asked.url, str(asked.state), "small", str(work), str(concurrency), str(out))
        client = lab.start(asked.name, sys.executable, "-m", "benchmarks.keep_asking", *arguments)
        try:
            running.wait(lambda: out.exists() and out.stat().st_size, "the client's first answer")
            time.sleep(CALM_S)
            joined_at = time.monotonic()
            began, ended = _join(running)
            time.sleep(CALM_S)
        finally:
            client.terminate()
            client.wait()
        lines = [json.loads(line) for line in out.read_text().splitlines()]
    return {
        "megabytes": megabytes,
        "rate": rate,
        "fetch_s": ended - began,
        "before": _latencies([line for line in lines if line[1] <= joined_at]),
        "during": _latencies([line for line in lines if line[1] >= began and line[0] <= ended]),
        "after": _latencies([line for line in lines if line[0] >= ended]),
        "lost": sum(bool(line[5]) for line in lines),
        "wrong": sum(line[4] for line in lines),
    }


async def _deploy(running: LocalCluster, small: Path, big: Path) -> None:
    async with client_of(running.first) as client:
        await deploy(client, big, "large", DeployOptions(devices=SERVING[:1]))
        await deploy(client, small, "small", DeployOptions(devices=SERVING, strategy="bbgrap"))
        await settle(client, "small")


def _join(running: LocalCluster) -> tuple[float, float]:
    """Add a third agent; return when the copy's first MB and when all of it had arrived."""
    joiner = running.add("box-3")
    arriving, stored = joiner.state / "store" / "partial", joiner.state / "store" / "models"
    until, began = time.monotonic() + FETCH_WITHIN_S, 0.0
    while time.monotonic() < until:
        if not began and any(path.stat().st_size > 1e6 for path in arriving.glob("*") if path.is_file()):
            began = time.monotonic()
        if len(list(stored.glob("*/manifest.json"))) == 2:
            return began, time.monotonic()
        time.sleep(LOOK_S)
    raise TimeoutError("the models did not arrive")


def _latencies(lines: list[Any]) -> dict[str, float]:
    took = np.array([line[1] - line[0] for line in lines])
    if not len(took):
        return {"requests": 0}
    return {
        "requests": len(took),
        **{f"p{q}": float(np.percentile(took, q)) for q in (50, 90, 99)},
        "max": float(took.max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=int, default=80)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = measure(given.megabytes, given.rate, given.concurrency)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    print_json(found)
    before, during = found["before"], found["during"]
    if during["requests"]:
        text = f"p50 {format_seconds(before['p50'])} -> {format_seconds(during['p50'])}, "
        text += f"p99 {format_seconds(before['p99'])} -> "
        say(
            f"{text}{format_seconds(during['p99'])} while {given.megabytes} MB came in {found['fetch_s']:.1f} s"
        )


if __name__ == "__main__":
    main()
