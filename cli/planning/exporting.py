"""`edgepart export MODEL`: writes a plan as files that run without edgepart. Door: it reads and writes files, has a clock,
and prints."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepart.agent.host.garbage_collection import collect_rarely
from edgepart.cli.output import note, print_json, say
from edgepart.cli.planning.placement import CLIMBING, prepare_search
from edgepart.client.offline import check_folder, forecast, write_export
from edgepart.planner.errors import UsageError
from edgepart.planner.figures import format_seconds
from edgepart.planner.vocabulary import OBJECTIVES, STRATEGIES, check_word

if TYPE_CHECKING:
    from edgepart.client.offline import Forecast
    from edgepart.planner.layout.strategy import Problem

ENGINES_LEFT_OUT = "run.py computes on CPUs, so the plan is made without the engines of {devices}"


def addresses_option(texts: Sequence[str]) -> dict[str, str]:
    """The addresses by device.

    >>> addresses_option(["pi-a=192.168.1.10:7440"])
    {'pi-a': '192.168.1.10:7440'}
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, address = text.partition("=")
        if not name or not address:
            raise UsageError(f"--address {text!r}: write it as DEVICE=HOST:PORT")
        found[name] = address
    return found


def check_options(strategy: str, objective: str, out: Path) -> None:
    """Raises UsageError before anything is read or measured."""
    check_word(strategy, STRATEGIES, "--strategy")
    check_word(objective, OBJECTIVES, "--objective")
    check_folder(out)


def export_plan(
    problem: Problem, strategy: str, out: Path, addresses: Mapping[str, str], *, as_json: bool
) -> None:
    """Plan, write the folder, and print what was written. Raises as `edgepart.export` does."""
    collect_rarely()
    notes = list(problem.graph.notes)
    if engines := [device.name for device in problem.cluster.devices if device.engines]:
        notes.append(ENGINES_LEFT_OUT.format(devices=", ".join(engines)))
        problem = replace(problem, cluster=problem.cluster.without_engines())
    if strategy in CLIMBING:
        prepare_search()
    made = forecast(problem, strategy)
    for text in notes:
        print(f"note: {text}", file=sys.stderr)
    note(f"writing {out}")
    write_export(made, out, addresses)
    document = _document(made, out, notes)
    if as_json:
        print_json(document)
        return
    devices = ", ".join(document["devices"])
    say(
        f"{document['model']} · {document['strategy']}: {format_seconds(made.latency_s, 4)} a request on {devices}"
    )
    say(f"Written: {out}. {out / 'README.txt'} says how to run it.", prose=True)


def _document(made: Forecast, out: Path, notes: Sequence[str]) -> dict[str, Any]:
    return {
        "folder": str(out),
        "model": made.document["model"],
        "strategy": made.document["strategy"],
        "predicted_latency_s": made.latency_s,
        "devices": list(made.plan.programs),
        "bytes": sum(file.stat().st_size for file in out.rglob("*") if file.is_file()),
        "notes": list(notes),
    }
