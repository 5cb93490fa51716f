"""`edgepart plan --add --remove --sweep`: predicts the effect of other devices and links. Door: it prints, has a clock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgepart.cli.output import console, say, table
from edgepart.cli.planning.refused import in_short, refused_row
from edgepart.planner.errors import Infeasible
from edgepart.planner.figures import format_figure, format_seconds

if TYPE_CHECKING:
    from edgepart.planner.devices.what_if import ClusterVariant
    from edgepart.planner.layout.strategy import Problem


def print_variants(
    problem: Problem,
    strategy: str,
    add: Sequence[str],
    remove: Sequence[str],
    sweep: str | None,
    as_json: bool,
) -> None:
    """Prints the prediction for each variant of the cluster. Raises UsageError for an option that describes no variant."""
    from edgepart.planner.devices.what_if import cluster_variants, parse_addition, parse_rates

    added = []
    cluster = problem.cluster
    for text in add:
        added.append(parse_addition(text, cluster))
        cluster = _add_named(cluster, added[-1].name)
    swept = parse_rates(sweep) if sweep else ()
    wanted = list(cluster_variants(problem.cluster, added, remove, swept, problem.gateway))
    rows = [_row(problem, variant, strategy) for variant in wanted]
    kinds = _sources({one.kind for one in added}, {device.kind for device in problem.cluster.devices})
    document = {"model": problem.graph.name, "strategy": strategy, "variants": rows, "kinds": kinds}
    if as_json:
        print(json.dumps(document))
    else:
        _print_table(document)


def _add_named(cluster: Any, name: str) -> Any:
    """The cluster with one more device of that name, so that later additions get other names."""
    return replace(cluster, devices=(*cluster.devices, replace(cluster.devices[0], name=name)))


def _row(problem: Problem, variant: ClusterVariant, strategy: str) -> dict[str, Any]:
    """The row of a variant: its best plan for one request, and its best plan for many."""
    names = {device.name for device in variant.cluster.devices}
    limits = {name: limit for name, limit in problem.memory_limit_bytes.items() if name in names}
    row: dict[str, Any] = {
        "variant": variant.what,
        "links_bits_per_s": variant.bits_per_s,
        "devices": sorted(names),
        "feasible": True,
    }
    for objective in ("latency", "throughput"):
        asked = replace(problem, cluster=variant.cluster, memory_limit_bytes=limits, objective=objective)
        try:
            row |= _best(asked, strategy)
        except Infeasible as error:
            return row | refused_row(error)
    return row


def _best(problem: Problem, strategy: str) -> dict[str, Any]:
    from edgepart.planner.planner import best_strategy
    from edgepart.planner.search.study import Study

    study = Study(problem)
    best = best_strategy(problem, strategy, study)
    used = sorted(study.scorer.forecast(best).compute_s)
    if problem.objective == "latency":
        found = study.scorer.forecast(best).latency_s
        return {"predicted_latency_s": found, "latency_devices": used, "latency_why": best.why}
    rate = study.scorer.forecast_stream(best).throughput_per_s
    return {"predicted_throughput_per_s": rate, "throughput_devices": used, "throughput_why": best.why}


def _sources(kinds: set[str], here: set[str]) -> dict[str, str]:
    """The source of the figures of each kind of device."""
    from edgepart.planner.devices.boards import KINDS

    return {
        kind: "as measured in this cluster" if kind in here else KINDS[kind].source for kind in sorted(kinds)
    }


def _print_table(document: dict[str, Any]) -> None:
    first = document["variants"][0]
    rows = []
    for row in document["variants"]:
        rate = row["links_bits_per_s"]
        links = "" if rate is None else f"{format_figure(rate / 1e6, 6)} Mbit/s"
        if not row["feasible"]:
            rows.append((row["variant"], links, in_short(row), "", "", "", "", ""))
            continue
        rows.append(
            (
                row["variant"],
                links,
                format_seconds(row["predicted_latency_s"]),
                _times(first, row, "predicted_latency_s", inverse=True),
                str(len(row["latency_devices"])),
                f"{format_figure(row['predicted_throughput_per_s'], 4)}",
                _times(first, row, "predicted_throughput_per_s"),
                str(len(row["throughput_devices"])),
            )
        )
    columns = ("cluster", "links", "latency", "faster", "devices", "requests/s", "more", "devices")
    say(f"{document['model']} · {document['strategy']}, predicted")
    console().print(table(columns, rows, columns[2:]))
    for kind, source in document["kinds"].items():
        say(f"{kind}: {source}", prose=True)


def _times(first: dict[str, Any], row: dict[str, Any], key: str, *, inverse: bool = False) -> str:
    """The ratio to the cluster as it is; "" in its own row."""
    if row is first or not first["feasible"]:
        return ""
    ratio = row[key] / first[key]
    return f"{1 / ratio if inverse else ratio:.2f}x"
