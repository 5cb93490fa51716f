"""Engines: what execution providers give on this machine, for one box and for two.

    python -m benchmarks.engines [--models resnet50,bert_base] [--rounds 24] [--engine openvino-cpu] [--slow 8]
                                 [--four denoiser] [--markdown] [--json FILE]

Of each model, in turn: a bare session on the CPU and one on the engine, an agent without engines and one with, and two slow
boxes (`--slow` times as slow, each with one thread), of which both compute with the CPU (two such clusters, which differ by
chance), or one with the engine. It has to run where an ONNX Runtime with the engine's provider is installed. Nothing here
passes or fails. The machine should have nothing else to do.

With --four, four slow boxes compute a model of convolutions and attention. Two of them have an engine that is emulated: it
computes segments with convolutions 4 times as fast as their CPU and lacks what attention is made of. Any ONNX Runtime does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from rich.table import Table

from benchmarks.machine import describe, sentence, show_table
from benchmarks.models import Model, named_model
from benchmarks.models.model import kept
from benchmarks.serving import client_of, deploy, rest, settle
from benchmarks.weights import folded
from edgepart.agent.engines.provider_sessions import ENGINE_ERRORS, make_engine_session
from edgepart.agent.execution.runtime.cpu_sessions import make_session, session_options
from edgepart.agent.verify.same_answer import largest_difference
from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.demo.command import slow_box
from edgepart.cli.local import LocalCluster
from edgepart.cli.output import note
from edgepart.client.async_client import AsyncClient
from edgepart.planner.figures import format_seconds

MODELS = ("resnet50", "ppocrv4_det", "minilm_l6", "bert_base")
ROUNDS = 24
BOTH_CPU = {"one": "cpu", "two": "cpu"}
AGAIN = "cpu again"
"""A second cluster that is like the first one: what these two differ by is chance."""
WARM_UP = 5
"""Requests before the counted ones: what they take may make the leader plan again."""
ENGINE = "openvino-cpu"
SLOW = 8.0
NAME = "model"
FOUR = ("one", "two", "three", "four")
LAB_GAIN = 4.0
LAB_LACKS = "MatMul|Gemm|Softmax"
BARE_CPU, BARE_ENGINE = "bare cpu", "bare engine"


@dataclass(frozen=True)
class Served:
    """What a cluster gave."""

    took_s: float
    predicted_s: float
    engines: Mapping[str, int]
    """The number of segments by device and engine."""
    difference: float
    """The largest difference to the answer of a bare session on the CPU."""


@dataclass(frozen=True)
class Row:
    """The figures of one model, in seconds."""

    model: str
    cpu_s: float
    engine_s: float | None
    """None if the engine does not take the whole model."""
    one: Mapping[str, Served]
    """One box, by its `--providers`."""
    two: Mapping[str, Served]
    """Two slow boxes, by the `--providers` of the second, or AGAIN; the first one computes with its CPU."""


def find(name: str) -> Model:
    """A model of the zoo, or MiniLM with its weights in float32."""
    if name != "minilm_l6":
        return named_model(name)
    source = named_model("minilm_l6_int8")
    path = kept("minilm_l6_float32", "model.onnx", lambda: folded(source.path))
    return Model(name, path, source.shapes, source.inputs)


def bare_runs(model: Model, engine: str, threads: int) -> tuple[Callable[[], Any], Callable[[], Any] | None]:
    """A run of a session on the CPU, and one on the engine; None if it does not take the model, or `engine` is ""."""
    inputs = model.inputs(0)
    cpu = make_session(str(model.path), session_options(threads))
    asked = {one.name: inputs[one.name] for one in cpu.get_inputs()}
    outputs = [one.name for one in cpu.get_outputs()]

    def run(session: Any) -> Callable[[], Any]:
        return lambda: dict(zip(outputs, session.run(outputs, asked), strict=True))

    if not engine:
        return run(cpu), None
    try:
        return run(cpu), run(make_engine_session(engine, str(model.path), session_options(threads), threads))
    except ENGINE_ERRORS as error:
        note(f"{model.name}: no bare session on {engine}: {error}")
        return run(cpu), None


async def serve(client: AsyncClient, model: Model) -> None:
    """Deploy the model, and wait until its plan stays."""
    await deploy(client, model.path, NAME, DeployOptions(shapes=dict(model.shapes)))
    await settle(client, NAME)


async def measure_clusters(
    clusters: Mapping[str, LocalCluster], model: Model, runs: Mapping[str, Callable[[], Any]], rounds: int
) -> tuple[dict[str, float], dict[str, Served]]:
    """The median seconds of each bare run, and what each cluster gave. They are asked in turn, forwards and backwards, once
    all plans stay and nothing is planned any more, or those that began last would seem slower."""
    inputs, expected = model.inputs(0), next(iter(runs.values()))()
    took: dict[str, list[float]] = {name: [] for name in (*runs, *clusters)}
    outputs: dict[str, Mapping[str, Any]] = {}
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(client_of(cluster.first))
            for name, cluster in clusters.items()
        }

        async def ask(name: str) -> float:
            began = time.perf_counter()
            if name in runs:
                runs[name]()
            else:
                outputs[name] = (await clients[name].infer(NAME, inputs)).outputs
            return time.perf_counter() - began

        for client in clients.values():
            await serve(client, model)
        for name in [*took] * WARM_UP:
            await ask(name)
        cards = {name: await settle(client, NAME) for name, client in clients.items()}
        await rest([agent for cluster in clusters.values() for agent in cluster.living])
        for turn in range(rounds):
            for name in [*took][:: -1 if turn % 2 else 1]:
                took[name].append(await ask(name))
        plans = {name: await client.plan(NAME) for name, client in clients.items()}
    middle = {name: median(found) for name, found in took.items()}
    return {name: middle[name] for name in runs}, {
        name: Served(
            middle[name],
            cards[name]["predicted_latency_s"],
            engines_of(plans[name]),
            largest_difference(outputs[name], expected),
        )
        for name in clusters
    }


def engines_of(plan: Mapping[str, Any]) -> dict[str, int]:
    """The number of segments by device and engine, of the plan's document."""
    return {
        f"{device}: {engine}": count
        for device, one in plan["devices"].items()
        for engine, count in one["engines"].items()
    }


def measure(name: str, engine: str, slow: float, rounds: int) -> Row:
    """Measure one model."""
    model, threads = find(name), len(os.sched_getaffinity(0))
    cpu, other = bare_runs(model, engine, threads)
    runs = {BARE_CPU: cpu} | ({BARE_ENGINE: other} if other else {})
    options = ["--threads", str(threads)]
    bare, one = compare({"cpu": {"one": "cpu"}, "auto": {"one": "auto"}}, model, runs, rounds, options)
    boxes = {"cpu": BOTH_CPU, AGAIN: BOTH_CPU, "auto": {"one": "cpu", "two": "auto"}}
    options = ["--threads", "1", "--spares", "0"]
    _, two = compare(boxes, model, {BARE_CPU: cpu}, rounds, options, slow_box(slow))
    return Row(name, bare[BARE_CPU], bare.get(BARE_ENGINE), one, two)


def compare(
    providers: Mapping[str, Mapping[str, str]],
    model: Model,
    runs: Mapping[str, Callable[[], Any]],
    rounds: int,
    options: Sequence[str],
    env: Mapping[str, str] = MappingProxyType({}),
) -> tuple[dict[str, float], dict[str, Served]]:
    """What `measure_clusters` finds with clusters side by side, whose boxes have these providers. All boxes are one machine
    that is measured once, or the clusters would differ by what its two measurements are off."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        clusters = {}
        for name, boxes in providers.items():
            note(f"{model.name}: {', '.join(f'{box} with {one}' for box, one in boxes.items())}")
            common = {**env, "EDGEPART_MEASURED": f"{folder}/measured.json"}
            each = {box: {**common, "EDGEPART_PROVIDERS": one} for box, one in boxes.items()}
            made = LocalCluster([*boxes], options=options, env=each, patience_s=300, listen="127.0.0.1:0")
            clusters[name] = stack.enter_context(made)
        return asyncio.run(measure_clusters(clusters, model, runs, rounds))


def measure_four(name: str, slow: float, rounds: int) -> dict[str, Served]:
    """What four slow boxes give, by the `--providers` of the two that have an emulated engine."""
    model = find(name)
    cpu, _ = bare_runs(model, "", 1)
    boxes = {lab: {box: lab if box in FOUR[2:] else "cpu" for box in FOUR} for lab in ("cpu", "lab")}
    lab = f"lab,lacks={LAB_LACKS},conv={slow / LAB_GAIN:g},other={slow:g}"
    env = {**slow_box(slow), "EDGEPART_LAB_ENGINE": lab}
    options = ["--threads", "1", "--spares", "0"]
    _, served = compare(boxes, model, {BARE_CPU: cpu}, rounds, options, env)
    return served


def show_four(name: str, served: Mapping[str, Served], markdown: bool) -> None:
    """Print the table of four boxes."""
    table = Table("model", "engines", "one answer takes", "as fast", "predicted", "computed by", "difference")
    for column in table.columns[2:]:
        column.justify = "right"
    for providers, one in served.items():
        table.add_row(
            name,
            "not used" if providers == "cpu" else "used",
            format_seconds(one.took_s),
            f"{served['cpu'].took_s / one.took_s:.2f}x",
            format_seconds(one.predicted_s),
            ", ".join(f"{part} ({count})" for part, count in one.engines.items()),
            f"{one.difference:.1e}",
        )
    show_table(table, markdown)


def show(rows: Sequence[Row], engine: str, markdown: bool) -> None:
    """Print the tables of one box and of two."""
    one = Table(
        "model",
        "bare CPU",
        f"bare {engine}",
        "agent, CPU",
        "agent, auto",
        "auto computes with",
        "auto / better bare",
        "difference",
    )
    two = Table(
        "model",
        "both CPU",
        "another like it",
        "as fast",
        f"one with {engine}",
        "as fast",
        "predicted",
        "computed by",
        "difference",
    )
    for table in (one, two):
        for column in table.columns[1:]:
            column.justify = "right"
    for row in rows:
        better_s = min(filter(None, (row.cpu_s, row.engine_s)))
        auto = row.one["auto"]
        one.add_row(
            row.model,
            format_seconds(row.cpu_s),
            format_seconds(row.engine_s) if row.engine_s else "not whole",
            format_seconds(row.one["cpu"].took_s),
            format_seconds(auto.took_s),
            ", ".join(auto.engines),
            f"{auto.took_s / better_s:.2f}x",
            f"{auto.difference:.1e}",
        )
        plain, again, mixed = (row.two[name] for name in ("cpu", AGAIN, "auto"))
        two.add_row(
            row.model,
            format_seconds(plain.took_s),
            format_seconds(again.took_s),
            f"{plain.took_s / again.took_s:.2f}x",
            format_seconds(mixed.took_s),
            f"{plain.took_s / mixed.took_s:.2f}x",
            format_seconds(mixed.predicted_s),
            ", ".join(f"{name} ({count})" for name, count in mixed.engines.items()),
            f"{mixed.difference:.1e}",
        )
    show_table(one, markdown)
    print()
    show_table(two, markdown)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--engine", default=ENGINE)
    parser.add_argument("--slow", type=float, default=SLOW)
    parser.add_argument("--four")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    if given.four:
        show_four(given.four, measure_four(given.four, given.slow, given.rounds), given.markdown)
        return 0
    rows = [measure(name, given.engine, given.slow, given.rounds) for name in given.models]
    print(sentence())
    print()
    show(rows, given.engine, given.markdown)
    if given.json:
        document = {"machine": describe(), "rows": [asdict(row) for row in rows]}
        given.json.write_text(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
