"""Moirai's comparison: the time of a sample as each placer places it, and the time of the placer's search.

    python -m benchmarks.placing [--quick] [--models gpt-330M ...] [--placers moirai m-sct] [--budget 60] [--json FILE]

Graphs like those of the paper's table IV (benchmarks/models/sketches) are placed on the two settings of its table III,
operator by operator and with operators that the runtime fuses as one task. Makespans are predicted; the checker tests
every schedule against the rules. With --json every cell is written as soon as it is measured, and cells that are
already in the file are not measured again. Exits with 1 if a placer fails, if a schedule breaks a rule, or if another
placer's schedule is better than moirai's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Container, Iterator, Sequence
from dataclasses import asdict
from itertools import product
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

from benchmarks.machine import describe, sentence, show_table
from benchmarks.models.sketches import OTHERS, SIZES, TABLE
from benchmarks.placing_clusters import SETTINGS
from benchmarks.placing_report import Cells, Key, better, page, rewritten, sentences, tables
from benchmarks.placing_trial import GRAPHS, Case, Cell, Limits, run
from edgepart.cli.output import note, say
from edgepart.planner.errors import InternalError, UsageError

QUICK_PLACERS = ("single", "expert", "pipeline", "metis", "heft", "m-etf", "getf", "m-sct")
"""Placers that use one thread each, so that two are measured at once."""
PLACERS = (*QUICK_PLACERS, "moirai")

BUDGET_S = 60.0
MOIRAI_S = 55.0
"""moirai's own budget within `BUDGET_S`: the step that is running when the time is over takes some seconds more."""
QUICK_BUDGET_S = 2.0
QUICK_MODELS = ("gpt-tiny", "swin-tiny", "evoformer-tiny")
"""Models for a test."""

LATE = 4.0
"""A placer is killed after this multiple of its budget plus a minute."""
MEMORY_BYTES = 8 << 30


Job = tuple[Case, tuple[str, ...], Limits]


def limits(budget_s: float, memory_bytes: int = MEMORY_BYTES) -> Limits:
    return Limits(budget_s, LATE * budget_s + 60, memory_bytes)


def jobs(
    wanted: Sequence[Case],
    placers: Sequence[str],
    known: Cells,
    budget_s: float,
    moirai_s: float,
    memory_bytes: int = MEMORY_BYTES,
) -> list[Job]:
    """Return the jobs for missing cells. Those of one case are one job, but moirai, which takes all cores,
    has jobs of its own at the end."""
    found: list[Job] = []
    kept = {key for key, cell in known.items() if not cell.failed}
    quick = tuple(name for name in placers if name != "moirai")
    for case in wanted:
        if missing := _missing(case, quick, kept):
            found.append((case, missing, limits(budget_s, memory_bytes)))
    for case in wanted if "moirai" in placers else ():
        if missing := _missing(case, ("moirai",), kept):
            found.append((case, missing, limits(moirai_s, memory_bytes)))
    return found


def _missing(case: Case, placers: Sequence[str], kept: Container[Key]) -> tuple[str, ...]:
    return tuple(name for name in placers if (case.model, case.setting, case.graph, name) not in kept)


def measured(todo: Sequence[Job], processes: int) -> Iterator[Cell]:
    """Yield cells as they are measured."""
    yield from _together([job for job in todo if "moirai" not in job[1]], processes)
    yield from _together([job for job in todo if "moirai" in job[1]], 1)


def _together(todo: Sequence[Job], most: int) -> Iterator[Cell]:
    """Run a process for each job, `most` at a time, so that no job inherits another one's memory. Raises
    InternalError if one crashes."""
    context, waiting = get_context("spawn"), list(reversed(todo))
    running: dict[Any, BaseProcess] = {}
    try:
        while waiting or running:
            while waiting and len(running) < most:
                ours, theirs = context.Pipe(duplex=False)
                running[ours] = context.Process(target=run, args=(theirs, *waiting.pop()))
                running[ours].start()
                theirs.close()
            for answers in wait(list(running)):
                try:
                    yield cast("Connection", answers).recv()
                except EOFError:
                    _ended(running.pop(answers))
    finally:
        for process in running.values():
            process.terminate()


def _ended(process: BaseProcess) -> None:
    process.join()
    if process.exitcode:
        raise InternalError(
            f"a process that measures ended with {process.exitcode}; what is written down stays"
        )


def read(path: Path | None) -> Cells:
    """Return the cells in a file, by model, setting, graph and placer; {} if there is no file."""
    if path is None or not path.exists():
        return {}
    cells = [
        Cell(**{**one, "violations": tuple(one["violations"])})
        for one in json.loads(path.read_text())["cells"]
    ]
    return {cell.key: cell for cell in cells}


def write(path: Path, cells: Cells) -> None:
    """Write all cells atomically, because the program may be stopped at any time."""
    document = {"machine": describe(), "cells": [asdict(cell) for cell in cells.values()]}
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(document, indent=1))
    beside.replace(path)


def collect(todo: Sequence[Job], known: Cells, processes: int, kept: Path | None) -> Cells:
    """Measure the jobs and return their cells with the known ones."""
    found = dict(known)
    for cell in measured(todo, processes):
        found[cell.key] = cell
        note(_line(cell))
        if kept is not None:
            write(kept, found)
    return found


def _line(cell: Cell) -> str:
    took = f"{cell.search_s:.1f} s, {cell.search_cpu_s:.1f} CPU s, {cell.peak_bytes / 2**20:.0f} MiB"
    value = cell.why if cell.makespan_s is None else f"{cell.makespan_s * 1e3:.2f} ms"
    broken = f"; breaks {len(cell.violations)} rules: {cell.violations[0]}" if cell.violations else ""
    return f"{', '.join(cell.key)}: {value} ({took}){broken}"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.docs is not None and options.json is None:
        raise UsageError("--docs writes what is in a file: name it with --json")
    known = read(options.json)
    todo = jobs(_cases(options), options.placers, known, *_budgets(options))
    found = ordered(collect(todo, known, options.processes, options.json))
    shown = {key: found[key] for key in _keys(options)}
    say(f"On {sentence()}.")
    for one in tables(shown):
        show_table(one, options.markdown)
    for line in sentences(shown):
        say(line)
    if options.docs is not None:
        options.docs.write_text(rewritten(options.docs.read_text(), page(found, sentence())))
    faults = [f"{', '.join(cell.key)}: {_fault(cell)}" for cell in shown.values() if _fault(cell)]
    faults += better(shown)
    for fault in faults:
        say(fault)
    return int(bool(faults))


def _fault(cell: Cell) -> str:
    """Return what is wrong with a cell; "" if it is sound. A placer that finds nothing that fits is no fault."""
    if cell.failed:
        return cell.why
    return f"breaks a rule: {cell.violations[0]}" if cell.violations else ""


def _cases(options: argparse.Namespace) -> list[Case]:
    models = QUICK_MODELS if options.quick else options.models
    return [Case(*where) for where in product(models, options.settings, options.graphs)]


def _keys(options: argparse.Namespace) -> Iterator[Key]:
    return ((c.model, c.setting, c.graph, name) for c in _cases(options) for name in options.placers)


def _budgets(options: argparse.Namespace) -> tuple[float, float]:
    """Return the budgets of any other placer, and of moirai."""
    if options.budget is not None:
        return options.budget, options.budget
    return (QUICK_BUDGET_S, QUICK_BUDGET_S) if options.quick else (BUDGET_S, MOIRAI_S)


def ordered(cells: Cells) -> Cells:
    """Return the cells in the order of the papers' tables, whatever the order in which they were measured."""
    orders = ([*TABLE, *OTHERS], [*SETTINGS, *(f"two {name}" for name in SETTINGS)], GRAPHS, PLACERS)
    return dict(
        sorted(
            cells.items(),
            key=lambda one: [known.index(name) for known, name in zip(orders, one[0], strict=True)],
        )
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placing", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="three tiny models, two seconds for each search")
    parser.add_argument("--models", nargs="+", choices=tuple(TABLE), default=SIZES)
    parser.add_argument("--settings", nargs="+", choices=tuple(SETTINGS), default=tuple(SETTINGS))
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=GRAPHS)
    parser.add_argument("--placers", nargs="+", choices=PLACERS, default=PLACERS)
    parser.add_argument("--budget", type=float, help="seconds of search, for every placer and graph")
    parser.add_argument("--processes", type=int, default=2, help="cases at once, but for moirai's")
    parser.add_argument("--markdown", action="store_true", help="print tables as documents have them")
    parser.add_argument("--json", type=Path, help="every number is kept there")
    parser.add_argument("--docs", type=Path, help="a document whose tables are written anew")
    return parser


if __name__ == "__main__":
    sys.exit(main())
