"""Cost of planning on a big graph: one transformer block, repeated to 20,000 operators.

    python -m benchmarks.scale [--nodes 20000] [--json FILE] [--profile STEP]

A child process on one core reads the model, infers its shapes, binds every declaration and makes plans: for one
device, and for three along each of some axes. Prints a table; nothing here passes or fails. The machine should have
nothing else to do.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from benchmarks.machine import describe, sentence, show_table
from edgepart.cli.output import note, say, table
from edgepart.planner.access import accesses
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.figures import format_bytes, format_seconds
from edgepart.planner.layout.strategy import Problem, Strategy
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import best_strategy
from edgepart.planner.region import Array
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.bbgrap import divide_along
from edgepart.planner.strategies.single import run_alone

WIDTH, HEADS, SEQUENCE = 64, 4, 48
SPLITS = ("sequence", "feature")
SHARES = (0.5, 0.3, 0.2)


@dataclass(frozen=True)
class Measured:
    """The figures of one step of planning."""

    step: str
    seconds: float
    cpu_s: float
    """CPU seconds of the process itself; about the same as `seconds` if nothing else runs."""
    peak_bytes: int
    """Peak memory of the process up to the end of this step."""
    detail: str


def transformer(nodes: int) -> ModelProto:
    """Return a model of successive encoder blocks that share their weights: a big graph in a small file."""
    made = list(_blocks(nodes))
    last = made[-1].output[0]
    graph = helper.make_graph(
        made,
        "transformer",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, (1, SEQUENCE, WIDTH))],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in _weights().items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _weights() -> dict[str, Array]:
    rng = np.random.default_rng(0)

    def random(*shape: int) -> Array:
        drawn: Array = (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return drawn

    found: dict[str, Array] = {
        "heads": np.array([0, 0, HEADS, WIDTH // HEADS]),
        "joined": np.array([0, 0, WIDTH]),
        "scale": np.array((WIDTH / HEADS) ** -0.5, np.float32),
        "root": np.array(2**0.5, np.float32),
        "one": np.array(1, np.float32),
        "half": np.array(0.5, np.float32),
    }
    for name in ("q", "k", "v", "o"):
        found |= {f"w_{name}": random(WIDTH, WIDTH), f"b_{name}": random(WIDTH)}
    for name in ("n1", "n2"):
        found |= {f"{name}_scale": np.ones(WIDTH, np.float32), f"{name}_bias": np.zeros(WIDTH, np.float32)}
    found |= {"w_up": random(WIDTH, 4 * WIDTH), "b_up": random(4 * WIDTH)}
    return found | {"w_down": random(4 * WIDTH, WIDTH), "b_down": random(WIDTH)}


def _blocks(nodes: int) -> Iterator[NodeProto]:
    count = block = 0
    while count < nodes:
        made = list(_block(block))
        yield from made
        count += len(made)
        block += 1


def _block(n: int) -> Iterator[NodeProto]:
    """Yield a block from x{n} to x{n + 1}: attention and a two-layer perceptron, each after a norm and beside
    a shortcut."""

    def make(op_type: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
        names = [name.replace("@", f"block{n}/") for name in inputs.split()]
        made = output.replace("@", f"block{n}/")
        return helper.make_node(op_type, names, [made], name=f"{op_type}:{made}", **attributes)

    yield make("LayerNormalization", f"x{n} n1_scale n1_bias", "@n1", axis=-1)
    for name in ("q", "k", "v"):
        yield make("MatMul", f"@n1 w_{name}", f"@{name}m")
        yield make("Add", f"@{name}m b_{name}", f"@{name}b")
        yield make("Reshape", f"@{name}b heads", f"@{name}h")
        yield make("Transpose", f"@{name}h", f"@{name}", perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3])
    yield make("MatMul", "@q @k", "@scores")
    yield make("Mul", "@scores scale", "@scaled")
    yield make("Softmax", "@scaled", "@weights", axis=-1)
    yield make("MatMul", "@weights @v", "@mixed")
    yield make("Transpose", "@mixed", "@back", perm=[0, 2, 1, 3])
    yield make("Reshape", "@back joined", "@flat")
    yield make("MatMul", "@flat w_o", "@om")
    yield make("Add", "@om b_o", "@ob")
    yield make("Add", f"x{n} @ob", "@mid")
    yield make("LayerNormalization", "@mid n2_scale n2_bias", "@n2", axis=-1)
    yield make("MatMul", "@n2 w_up", "@um")
    yield make("Add", "@um b_up", "@ub")
    yield make("Div", "@ub root", "@r")
    yield make("Erf", "@r", "@e")
    yield make("Add", "@e one", "@p")
    yield make("Mul", "@ub @p", "@g")
    yield make("Mul", "@g half", "@h")
    yield make("MatMul", "@h w_down", "@dm")
    yield make("Add", "@dm b_down", "@db")
    yield make("Add", "@mid @db", f"x{n + 1}")


def cluster() -> Cluster:
    """Return three unequal devices on a fast network, so that no plan is cut short because of its prediction."""
    devices = [
        Device(name, "box", flops_per_s=share * 1e11, memory_bytes_per_s=1e10, memory_bytes=8e9)
        for name, share in zip("abc", SHARES, strict=True)
    ]
    links = {(one.name, two.name): Link(1e9, 1e-4) for one in devices for two in devices if one != two}
    return Cluster(tuple(devices), links)


class _Steps:
    """Steps that run in the child one after another, each with its time and the peak memory so far."""

    def __init__(self, profiled: str | None) -> None:
        self.profiled = profiled
        self.measured: list[Measured] = []

    def take(self, name: str, work: Callable[[], tuple[Any, str]]) -> Any:
        profile = cProfile.Profile() if name == self.profiled else None
        start, cpu = time.perf_counter(), time.process_time()
        result, detail = profile.runcall(work) if profile else work()
        taken, cpu = time.perf_counter() - start, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.measured.append(Measured(name, taken, cpu, peak, detail))
        if profile:
            pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(30)
        return result


def measure(path: Path, profiled: str | None = None) -> list[Measured]:
    """Run every step on the model at `path`, in this process."""
    steps = _Steps(profiled)
    steps.take("read", lambda: (None, f"{len(onnx.load(path).graph.node)} nodes"))
    graph: Graph = steps.take("load and shapes", lambda: _loaded(path))
    problem = Problem(graph, cluster(), "a")
    steps.take("declare", lambda: (None, f"{sum(1 for _ in accesses(graph).values())} bound"))
    study = Study(problem)
    strategies = {
        "single": steps.take("lay out single", lambda: (run_alone(study, study.memo.by_speed[0]), ""))
    }
    for axis in SPLITS:
        strategies[axis] = steps.take(f"lay out {axis}", partial(_split, study, axis))
    for name, strategy in strategies.items():
        for sketch in (True, False):
            step = f"{'sketch' if sketch else 'lower'} {name}"
            steps.take(step, partial(_planned, study.memo, strategy, sketch))
    steps.take(
        "search single", lambda: (best_strategy(problem, "single", study), "the best of three devices")
    )
    return steps.measured


def totals(measured: Sequence[Measured]) -> list[Measured]:
    """Return the totals from the file to each full plan, to which the target of 20 seconds and 2 GB applies."""
    found = []
    by_step = {one.step: one for one in measured}
    for name in ("single", *SPLITS):
        parts = [by_step[step] for step in ("load and shapes", "declare", f"lay out {name}", f"lower {name}")]
        wall, cpu = sum(one.seconds for one in parts), sum(one.cpu_s for one in parts)
        peak = max(one.peak_bytes for one in parts)
        found.append(Measured(f"to a plan, {name}", wall, cpu, peak, "loaded, shaped, declared and lowered"))
    return found


def _loaded(path: Path) -> tuple[Graph, str]:
    graph = load_graph(path)
    return graph, f"{len(graph.operators)} operators"


def _split(study: Study, axis: str) -> tuple[Strategy, str]:
    strategy = divide_along(study, axis, study.memo.by_speed)
    return strategy, strategy.why.split(" over")[0]


def _planned(memo: Memo, strategy: Strategy, sketch: bool) -> tuple[None, str]:
    made = make_plan(
        memo.problem,
        strategy,
        model_digest="m",
        cost=memo.cost,
        sketch=sketch,
        accesses=memo.coarse.accesses,
    )
    segments = [segment for program in made.programs.values() for segment in program.segments]
    size = sum(len(segment.model) for segment in segments)
    return None, f"{len(segments)} segments, {len(made.transfers)} transfers, {format_bytes(size)} of models"


def in_child(path: Path, profiled: str | None) -> list[Measured]:
    """Run `measure` in a fresh process on one core; libraries get one thread."""
    command = [sys.executable, "-m", "benchmarks.scale", "--child", str(path)]
    command += ["--profile", profiled] if profiled else []
    core = min(os.sched_getaffinity(0))
    done = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    return [Measured(**one) for one in json.loads(done.stdout)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=20_000, help="at least so many operators")
    parser.add_argument("--profile", help="a step: where it spends its time, on stderr")
    parser.add_argument("--json", type=Path, help="write every number there")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        sys.stdout.write(json.dumps([asdict(one) for one in measure(options.child, options.profile)]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "transformer.onnx"
        onnx.save(transformer(options.nodes), path)
        note(f"{path.stat().st_size:,} bytes; a child measures")
        found = in_child(path, options.profile)
    say(f"On {sentence()}, one core.")
    rows = [
        (
            one.step,
            format_seconds(one.seconds),
            format_seconds(one.cpu_s),
            format_bytes(one.peak_bytes),
            one.detail,
        )
        for one in (*found, *totals(found))
    ]
    columns = ("step", "time", "CPU time", "peak memory", "made")
    show_table(table(columns, rows, right=columns[1:4]))
    if options.json:
        document = {
            "machine": describe(),
            "nodes": options.nodes,
            "steps": [asdict(one) for one in (*found, *totals(found))],
        }
        options.json.write_text(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
