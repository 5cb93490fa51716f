"""Accuracy of predictions: real agents on loopback, each slowed down from outside (cli/emulation/sitecustomize.py).

    python -m benchmarks.truth --models squeezenet --counts 1 2 [--slow-python 8]

For each model, number of devices and strategy it prints the prediction, the measurement, and the prediction once segments
have been timed: one row for each model and strategy, one column for each number of devices.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe, sentence, show_table
from benchmarks.models import named_model
from benchmarks.serving import ask, client_of, deploy, settle
from benchmarks.slowed import slow_environment
from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.local import LocalCluster
from edgepart.cli.verification import await_report, off, percent
from edgepart.client.async_client import AsyncClient
from edgepart.planner.errors import EdgepartError, InternalError

CLUSTERS: Mapping[str, tuple[float, ...]] = {"equal": (8, 8, 8, 8), "unequal": (8, 4, 16, 8)}
"""How many times as slow as this machine each device is; the first one is the gateway."""

MODELS = ("resnet50", "vgg19", "inception_v1", "squeezenet", "minilm_l6_int8")
COUNTS = (1, 2, 4)
STRATEGIES = ("auto", "bbgrap", "modnn", "optcnn", "heft")
"""Besides our own search: divisions of each kind (all layers alike, by a hub, layer by layer), and a placer of whole
operators."""
ALONE = "single"
"""The strategy on one device, whatever was asked for."""

WARM_UP, REQUESTS = 2, 7
AIM = 0.10
"""Bound on the median of the errors."""


@dataclass(frozen=True)
class Truth:
    """One plan, predicted and measured."""

    cluster: str
    model: str
    devices: int
    strategy: str
    used: tuple[str, ...]
    predicted_s: float
    """Predicted from the devices' calibration."""
    profiled_s: float
    """Predicted from the same plan's segments, timed while it served."""
    measured_s: float
    """Median of requests one after the other, at the gateway."""
    client_s: float
    """The same at the client, HTTP included."""
    compute: Mapping[str, tuple[float, float | None]]
    """Maps each device to its predicted and measured seconds of computing."""
    syncs: int

    @property
    def error(self) -> float:
        return off(self.predicted_s, self.measured_s) or 0.0

    @property
    def profiled_error(self) -> float:
        return off(self.profiled_s, self.measured_s) or 0.0

    @property
    def compute_errors(self) -> list[float]:
        """Errors of the devices' computing time, of those that were measured."""
        return [off(mine, took) or 0.0 for mine, took in self.compute.values() if took]


@dataclass(frozen=True)
class Case:
    """A plan to measure."""

    model: str
    devices: int
    strategy: str


def cases(models: Sequence[str], counts: Sequence[int], strategies: Sequence[str]) -> Iterator[Case]:
    """Yield all cases. For one device, one strategy is enough."""
    for model in models:
        for count in counts:
            for strategy in strategies if count > 1 else (ALONE,):
                yield Case(model, count, strategy)


def measure(
    cluster: str, wanted: Sequence[Case], say: Any, slow_python: float | None = None
) -> Iterator[Truth]:
    """Yield rows as they are measured; cases that cannot be planned are reported and left out."""
    factors = CLUSTERS[cluster][: max(case.devices for case in wanted)]
    names = tuple("abcdefgh"[: len(factors)])
    environments = {
        name: slow_environment(factor, slow_python) for name, factor in zip(names, factors, strict=True)
    }
    with (
        tempfile.TemporaryDirectory(prefix="edgepart-truth-") as folder,
        LocalCluster(
            names,
            options=("--threads", "1", "--no-mdns"),
            env=environments,
            folder=Path(folder),
            listen="127.0.0.1:0",
        ) as running,
    ):
        for case in wanted:
            try:
                yield asyncio.run(_one(running, cluster, case, names[: case.devices]))
            except EdgepartError as error:
                say(f"{case}: {error}")


async def _one(running: LocalCluster, cluster: str, case: Case, names: tuple[str, ...]) -> Truth:
    model = named_model(case.model)
    path, inputs = model.path, model.inputs(0)
    options = DeployOptions(strategy=case.strategy, devices=names, shapes=dict(model.shapes))
    name = f"{case.model}-{case.strategy}-{case.devices}"
    async with client_of(running.first) as client:
        first = await deploy(client, path, name, options)
        report, client_s = await _measured(client, name, inputs)
        await client.undeploy(name)
        again = await deploy(client, path, f"{name}-again", options)
        await client.undeploy(f"{name}-again")
    seconds = report["measured"]["latency_s"]
    if seconds is None:
        raise InternalError(f"{name}: no request ran alone")
    same = list(first["devices"]) == list(again["devices"])
    return Truth(
        cluster=cluster,
        model=case.model,
        devices=case.devices,
        strategy=case.strategy,
        used=tuple(report["devices"]),
        predicted_s=report["predicted_latency_s"],
        profiled_s=again["predicted_latency_s"] if same else report["predicted_latency_s"],
        measured_s=seconds,
        client_s=client_s,
        compute={
            device: (one["predicted_compute_s"], one["measured_compute_s"])
            for device, one in report["measured"]["devices"].items()
        },
        syncs=report["syncs"],
    )


async def _measured(
    client: AsyncClient, name: str, inputs: Mapping[str, Any]
) -> tuple[dict[str, Any], float]:
    await settle(client, name)
    answers = await ask(client, name, inputs, warm_up=WARM_UP, count=REQUESTS)
    return await await_report(client, name), median(answers.seconds)


def tables(rows: Sequence[Truth]) -> Iterator[Table]:
    """Yield a table for each cluster: a row for each model and strategy; prediction, measurement and error by
    number of devices."""
    for cluster in dict.fromkeys(row.cluster for row in rows):
        mine = [row for row in rows if row.cluster == cluster]
        counts = sorted({row.devices for row in mine})
        found = Table("model", "strategy", title=f"{cluster}: seconds predicted / measured, and error")
        for count in counts:
            found.add_column(f"{count} device{'s' if count > 1 else ''}", justify="right")
        for model, strategy in dict.fromkeys((row.model, row.strategy) for row in mine):
            cells = {
                row.devices: _cell(row) for row in mine if (row.model, row.strategy) == (model, strategy)
            }
            found.add_row(model, strategy, *(cells.get(count, "") for count in counts))
        yield found


def _cell(row: Truth) -> str:
    return (
        f"{row.predicted_s:.3f} / {row.measured_s:.3f}  {percent(row.error)}"
        f" (timed: {percent(row.profiled_error)})"
    )


def summary(rows: Sequence[Truth]) -> dict[str, Any]:
    """Return medians of the errors' absolute values, with the worst one."""
    return {
        "median_error": median(abs(row.error) for row in rows),
        "worst_error": max(abs(row.error) for row in rows),
        "median_error_once_timed": median(abs(row.profiled_error) for row in rows),
        "median_error_by_strategy": {
            name: median(abs(row.error) for row in rows if row.strategy == name)
            for name in dict.fromkeys(row.strategy for row in rows)
        },
        "median_compute_error": median(abs(error) for row in rows for error in row.compute_errors),
        "aim": AIM,
        "rows": len(rows),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables and write the JSON; return 1 if the median error exceeds the bound."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--counts", nargs="+", type=int, default=list(COUNTS))
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--clusters", nargs="+", choices=list(CLUSTERS), default=list(CLUSTERS))
    parser.add_argument(
        "--slow-python", type=float, help="times as slow for Python, TLS and the network; without it, as fast"
    )
    parser.add_argument("--markdown", action="store_true", help="print tables as documents have them")
    parser.add_argument("--json", type=Path, default=Path("results/truth.json"))
    options = parser.parse_args(arguments)
    say = Console(stderr=True, highlight=False).print
    rows: list[Truth] = []
    for cluster in options.clusters:
        wanted = list(cases(options.models, options.counts, options.strategies))
        for row in measure(cluster, wanted, say, options.slow_python):
            say(f"{cluster} {row.model} {row.strategy} on {row.devices}: {_cell(row)}")
            rows.append(row)
    if not rows:
        return 1
    found = summary(rows)
    print(sentence())
    for table in tables(rows):
        show_table(table, options.markdown)
    print(
        f"median error {found['median_error']:.1%} (aim {AIM:.0%}), once timed "
        f"{found['median_error_once_timed']:.1%}; of computing alone {found['median_compute_error']:.1%}; "
        f"the worst {found['worst_error']:.1%}"
    )
    each = (f"{name} {error:.1%}" for name, error in found["median_error_by_strategy"].items())
    print(f"median error by strategy: {', '.join(each)}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": describe(), "summary": found, "rows": [asdict(row) for row in rows]}
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    return int(found["median_error"] > AIM)


if __name__ == "__main__":
    raise SystemExit(main())
