"""Speed-ups of the README: how much sooner an answer comes from several hosts than from one, in the laboratory (as root).

    python -m benchmarks.latency [--models A,B] [--hosts 2,4] [--slow 8 | --slow 4,8,8,16] [--rate 1gbit] [--strategy auto]
                                 [--agents="--compiled 0"] [--markdown] [--json FILE]

A speed-up is the time of a bare ONNX Runtime session on the fastest host alone, over the time that a client on the first
host waits for the cluster's answer. Nothing here passes or fails. The machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.emulated import Case, Row, each, hosts
from benchmarks.machine import describe, sentence, show_table
from edgepart.cli.output import note
from edgepart.planner.figures import format_bytes, format_seconds

MODELS = ("vgg19", "resnet50", "inception_v1", "yolo_640")
COUNTS = (2, 4)
SLOW = 8.0
RATE = "1gbit"
AIMS = {
    ("vgg19", 2): 1.93,
    ("resnet50", 2): 1.85,
    ("inception_v1", 2): 1.75,
    ("yolo_640", 2): 1.9,
    ("vgg19", 4): 3.7,
    ("resnet50", 4): 3.4,
    ("inception_v1", 4): 2.8,
    ("yolo_640", 4): 3.6,
}
"""The speed-up that a model should gain on so many equal hosts."""
UNEQUAL_AIMS = {"vgg19": 0.85, "resnet50": 0.75}
"""The share of unequal hosts' summed speed that a model should reach."""


def factors(text: str, most: int) -> tuple[float, ...]:
    """Return a factor for each host: those in `text`, or if there is only one, that one `most` times.

    >>> factors("8", 2), factors("4,8,16", 2)
    ((8.0, 8.0), (4.0, 8.0, 16.0))
    """
    given = tuple(float(one) for one in text.split(","))
    return given * most if len(given) == 1 else given


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


def names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def aim(row: Row) -> str:
    """Return the speed-up that this row should reach; "" if nothing was said of it."""
    model = row.case.model
    wanted = AIMS.get((model, len(row.slow)))
    if len(set(row.slow)) > 1:
        wanted = row.ideal * UNEQUAL_AIMS[model] if model in UNEQUAL_AIMS else None
    return f"{wanted:.2f}x" if wanted else ""


def latencies(rows: Sequence[Row]) -> Table:
    columns = ("model", "hosts", "speed-up", "aim", "of the ideal", "latency", "bare session")
    found = Table(*columns, "predicted", "busiest computes", "rest", "exchanges", "moved", "difference")
    for column in found.columns[1:]:
        column.justify = "right"
    for row in rows:
        busiest_s = max(row.compute_s.values(), default=0.0)
        found.add_row(
            row.case.model,
            " ".join(f"{slow:g}" for slow in row.slow) if len(set(row.slow)) > 1 else str(len(row.slow)),
            f"{row.speedup:.2f}x",
            aim(row),
            f"{row.speedup / row.ideal:.0%}",
            format_seconds(row.latency_s),
            format_seconds(row.bare_s),
            format_seconds(row.predicted_s),
            format_seconds(busiest_s),
            format_seconds(row.latency_s - busiest_s),
            str(row.syncs),
            format_bytes(row.moved_bytes),
            f"{row.largest_difference:.0e}",
        )
    return found


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments that the laboratory's benchmarks share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=names, default=MODELS)
    parser.add_argument("--hosts", type=numbers, default=COUNTS, help="how many to use, in turn (2,4)")
    parser.add_argument(
        "--slow", default=f"{SLOW:g}", help="times as slow as this machine; or for each: 4,8,8,16"
    )
    parser.add_argument(
        "--slow-python", type=float, help="times as slow for Python, TLS and the network; without it, as fast"
    )
    parser.add_argument("--rate", type=names, default=(RATE,), help="what hosts send at, in turn (1gbit)")
    parser.add_argument("--markdown", action="store_true", help="print tables as documents have them")
    parser.add_argument("--json", type=Path, help="write every number there")
    return parser


def measured(
    slow: str,
    rate: str,
    cases: Sequence[Case],
    options: Sequence[str] = (),
    slow_python: float | None = None,
) -> Iterator[Row]:
    each_slow = factors(slow, max(case.hosts for case in cases))
    with hosts(each_slow, rate, note, options=options, slow_python=slow_python) as made:
        yield from each(made, cases)


def write(path: Path | None, rows: Sequence[Any], load: Sequence[float]) -> None:
    """Write all numbers, with the machine and its load before and after."""
    if path is not None:
        document = {"machine": describe(), "load_before": load, "load_after": os.getloadavg()}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**document, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


def main(given: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--agents", default="", help="further options of every agent")
    options = parser.parse_args(given)
    load = os.getloadavg()
    rows: list[Row] = []
    cases = [Case(model, count, options.strategy) for model in options.models for count in options.hosts]
    for rate in options.rate:
        agents = shlex.split(options.agents)
        rows.extend(measured(options.slow, rate, cases, agents, options.slow_python))
        write(options.json, rows, load)
    print(sentence())
    for rate in options.rate:
        python = f", Python {options.slow_python:g} times" if options.slow_python else ""
        print(f"\nHosts {options.slow} times as slow{python}, {rate}:\n")
        show_table(latencies([row for row in rows if row.rate == rate]), options.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
