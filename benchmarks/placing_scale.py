"""Placing more than 50,000 operators on eight devices: makespan, search time and memory of every placer.

    python -m benchmarks.placing_scale [--placers moirai m-etf] [--json FILE]

Two graphs are placed, operator by operator, on twice the servers of Moirai's first setting. moirai has to find a schedule
no longer than that of m-etf, within 120 seconds and 4 GiB of address space, the graph included; any other placer may take
60 CPU seconds and 2 GB. Exits with 1 if a requirement is not met. With --json every result is written as soon as it is
there, and not measured again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import sentence, show_table
from benchmarks.placing import PLACERS, collect, jobs, ordered, read
from benchmarks.placing_report import Cells
from benchmarks.placing_trial import Case, Cell
from edgepart.cli.output import say, table

MODELS = ("gpt-deep", "evoformer-deep")
SETTING = "two inter-server"

BUDGET_S = 90.0
"""Search budget of the placers: they have to answer within 120 s."""
MOST_S, MEMORY_BYTES = 120.0, 4 << 30
QUICK_CPU_S, QUICK_BYTES = 60.0, 2e9
"""Bounds for all placers but moirai."""


def faults(cells: Cells) -> list[str]:
    """Return a sentence for each requirement that is not met."""
    found = []
    for cell in cells.values():
        said = f"{cell.model}, {cell.placer}"
        if cell.failed or cell.makespan_s is None:
            found.append(f"{said}: {cell.why}")
        elif cell.violations:
            found.append(f"{said} breaks a rule: {cell.violations[0]}")
        elif _too_dear(cell):
            found.append(
                f"{said} takes {cell.search_s:.0f} s, {cell.search_cpu_s:.0f} CPU s and {cell.peak_bytes / 1e9:.1f} GB"
            )
    for model in dict.fromkeys(cell.model for cell in cells.values()):
        ours, theirs = (cells.get((model, SETTING, "original", name)) for name in ("moirai", "m-etf"))
        if ours and theirs and ours.makespan_s and theirs.makespan_s and ours.makespan_s > theirs.makespan_s:
            found.append(f"{model}: m-etf's schedule is shorter than moirai's")
    return found


def _too_dear(cell: Cell) -> bool:
    if cell.placer == "moirai":
        return cell.search_s > MOST_S or cell.peak_bytes > MEMORY_BYTES
    return cell.search_cpu_s > QUICK_CPU_S or cell.peak_bytes > QUICK_BYTES


def show(cells: Cells, markdown: bool) -> None:
    rows = [
        (
            cell.model,
            f"{cell.tasks:,}",
            cell.placer,
            "none" if cell.makespan_s is None else f"{cell.makespan_s:.3f}",
            str(cell.devices),
            f"{cell.search_s:.1f}",
            f"{cell.search_cpu_s:.1f}",
            f"{cell.peak_bytes / 2**20:.0f}",
            cell.why,
        )
        for cell in cells.values()
    ]
    columns = ("model", "operators", "placer", "makespan s", "devices", "search s", "CPU s", "MiB", "")
    show_table(table(columns, rows, right=("operators", *columns[3:8])), markdown)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.placing_scale", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--placers", nargs="+", choices=PLACERS, default=PLACERS)
    parser.add_argument(
        "--budget", type=float, default=BUDGET_S, help="seconds of search that placers are told"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as documents have it")
    parser.add_argument("--json", type=Path, help="every number is kept there")
    options = parser.parse_args(arguments)
    wanted = [Case(model, SETTING, "original") for model in options.models]
    told = options.budget, options.budget
    todo = jobs(wanted, options.placers, read(options.json), *told, MEMORY_BYTES)
    found = ordered(collect(todo, read(options.json), 1, options.json))
    shown = {
        key: cell for key, cell in found.items() if key[0] in options.models and key[3] in options.placers
    }
    say(f"On {sentence()}.")
    show(shown, options.markdown)
    wrong = faults(shown)
    for one in wrong:
        say(one)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
