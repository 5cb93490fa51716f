"""An emulated aarch64 agent in a cluster with two agents of this machine: it joins, computes a share of models, and all
answers are compared with those of one session here. As root, because the kernel has to be told how to run programs for
aarch64.

    python -m benchmarks.arm .venv/aarch64 [--models resnet50_small,bert_base_small] [--markdown]

Exits with 1 if an answer is wrong, or the emulated agent takes no part. The agents of this machine are slowed down, so that
they get no larger share than the emulated one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnxruntime
from rich.table import Table

from benchmarks.comparing import differences, largest_difference, run_alone, tolerance_for
from benchmarks.latency import names
from benchmarks.machine import sentence, show_table
from benchmarks.models import zoo_model
from benchmarks.serving import client_of, deploy
from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.demo.command import slow_box
from edgepart.cli.local import LocalCluster, Place
from edgepart.cli.output import note
from edgepart.planner.model.load import load_graph

BINFMT = Path("/proc/sys/fs/binfmt_misc")
QEMU = "/usr/bin/qemu-aarch64-static"
FORMAT = "edgepart-aarch64"
# The head of an ELF file of 64 bits, little endian, that is a program for machine 183; F has the kernel open qemu at once.
REGISTERED = (
    rf":{FORMAT}:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
    rf":{QEMU}:F"
)
CPU = "max,sme=off"
PI, DESK, SHELF = "pi", "desk", "shelf"
SLOW = 200.0
"""How many times as slow as this machine the others are, so that the emulated one gets about half of a model."""
MODELS = ("resnet50_small", "bert_base_small", "resnet50_qdq_int8_small")
START_S, ANSWER_S = 600.0, 300.0
REQUESTS = 3
SOURCE = Path(__file__).resolve().parents[1] / "src"


@dataclass(frozen=True)
class Row:
    """What came of one model."""

    model: str
    strategy: str
    shares: Mapping[str, float]
    """The part of the floating-point operations that each device computes."""
    largest: float
    """The largest difference from one session here, relative to the largest value."""
    faults: tuple[str, ...]


@contextmanager
def registered() -> Iterator[None]:
    """Have the kernel run programs for aarch64 with qemu for as long as the block lasts. Ends the process where that is not
    possible."""
    if not (BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT)], check=False)
    if any("qemu-aarch64" in one.name or one.name == FORMAT for one in BINFMT.glob("*")):
        yield  # Debian's package has registered them, or an earlier run was killed.
        return
    try:
        (BINFMT / "register").write_bytes(REGISTERED.encode())
    except OSError as error:
        sys.exit(f"error: the kernel cannot be told to run programs for aarch64 by {QEMU}: {error}; be root")
    try:
        yield
    finally:
        (BINFMT / FORMAT).write_text("-1")


def emulated_python(folder: Path) -> str:
    """What the emulated agent's interpreter says of itself."""
    place = place_of(PI, folder)
    script = "import onnxruntime as o, platform as p; print(p.machine(), p.python_version(), o.__version__)"
    done = subprocess.run(
        [place.python, "-c", script],
        env={**os.environ, **place.env},
        capture_output=True,
        text=True,
        check=True,
    )
    machine, python, runtime = done.stdout.split()
    return f"{machine}, Python {python}, ONNX Runtime {runtime}"


def place_of(name: str, folder: Path) -> Place:
    """Where an agent runs: emulated, or as a slow box of this machine."""
    if name != PI:
        return Place(env=slow_box(SLOW))
    root = folder / "root"
    path = os.pathsep.join((str(SOURCE), str(folder / "site")))
    env = {"QEMU_LD_PREFIX": str(root), "QEMU_CPU": CPU, "PYTHONPATH": path}
    return Place(env=env, python=str(root / "usr" / "bin" / "python3.11"))


async def tried(cluster: LocalCluster, name: str, strategy: str) -> Row:
    """Deploy a model on the emulated agent and one of this machine, ask every agent, and undeploy it."""
    model = zoo_model(name)
    inputs = [model.inputs(seed) for seed in range(REQUESTS)]
    expected = [run_alone(model.path, one) for one in inputs]
    allowed = tolerance_for(load_graph(model.path, shapes=model.shapes))
    faults, largest = list[str](), 0.0
    async with AsyncExitStack() as stack:
        clients = {one.name: await stack.enter_async_context(client_of(one)) for one in cluster.living}
        options = DeployOptions(shapes=dict(model.shapes), strategy=strategy, devices=(PI, DESK))
        await deploy(clients[DESK], model.path, name, options)
        plan = await clients[DESK].get(f"/api/models/{name}/plan")
        for asked, client in clients.items():
            for given, right in zip(inputs, expected, strict=True):
                got = (await client.infer(name, given, timeout_s=ANSWER_S)).outputs
                largest = max(largest, largest_difference(got, right))
                faults += [f"asked through {asked}, {text}" for text in differences(got, right, allowed)]
        await clients[DESK].undeploy(name)
    total = sum(one["flops"] for one in plan["devices"].values())
    shares = {device: one["flops"] / total for device, one in plan["devices"].items()}
    if not shares.get(PI):
        faults.append(f"{PI} computes nothing: {plan['why']}")
    return Row(name, strategy, shares, largest, tuple(faults))


def tabled(rows: Sequence[Row]) -> Table:
    table = Table("model", "strategy", f"computed by {PI}", "by the other", "largest difference", "answers")
    for row in rows:
        pi, others = row.shares.get(PI, 0.0), sum(row.shares.values()) - row.shares.get(PI, 0.0)
        answers = "; ".join(row.faults) or "the same"
        table.add_row(row.model, row.strategy, f"{pi:.0%}", f"{others:.0%}", f"{row.largest:.1e}", answers)
    return table


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="what `make .venv/aarch64/.made` makes")
    parser.add_argument("--models", type=names, default=MODELS)
    parser.add_argument("--strategy", default="bbgrap")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args(given)
    folder = options.folder.resolve()
    rows = []
    with (
        registered(),
        LocalCluster(
            (DESK, SHELF, PI),
            options=("--threads", "1"),
            places=lambda name: place_of(name, folder),
            patience_s=START_S,
        ) as cluster,
    ):
        pi = emulated_python(folder)
        note(
            f"{PI} is {pi}; {DESK} and {SHELF} are {platform.machine()}, ONNX Runtime {onnxruntime.__version__}"
        )
        for name in options.models:
            rows.append(asyncio.run(tried(cluster, name, options.strategy)))
            note(f"{name}: {'; '.join(rows[-1].faults) or 'the same answers'}")
    print(f"{sentence()}; {PI} is {pi}\n")
    show_table(tabled(rows), options.markdown)
    return 1 if any(row.faults for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
