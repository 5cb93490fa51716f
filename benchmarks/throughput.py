"""Answers per second of several hosts, and the latency of each answer, in the laboratory (as root).

    python -m benchmarks.throughput [--models resnet50] [--hosts 4] [--slow 8] [--at-once 4,8,16] [--markdown] [--json FILE]

Models are deployed with `--objective throughput`; a client on the first host keeps so many requests in
flight. Then it sends them evenly, as many in a second as are 80 % of the most that were answered. The gain is over
a bare ONNX Runtime session on one such host, which answers one request after the other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from rich.table import Table

from benchmarks.emulated import Case, Row, each, hosts
from benchmarks.latency import arguments, factors, numbers, write
from benchmarks.machine import sentence, show_table
from edgepart.cli.output import note
from edgepart.planner.figures import format_seconds

COUNT = 120
"""Requests of a row, enough for the slowest hundredth."""
SHARE = 0.8
"""The share of the most answers per second that is asked for evenly."""
EVEN_AIM = 1.2
"""The most that the slowest hundredth may take, in times the median, where requests come evenly."""


def table(rows: Sequence[Row]) -> Table:
    found = Table("model", "hosts", "at once", "answers/s", "gain", "of the ideal")
    for head in ("p50", "p99", "p99 / p50", "aim", "bare session", "by"):
        found.add_column(head)
    for column in found.columns[1:-1]:
        column.justify = "right"
    for row in rows:
        p50, p99 = np.quantile(row.seconds, [0.5, 0.99])
        found.add_row(
            row.case.model,
            str(row.case.hosts),
            f"{SHARE:.0%} of the most" if row.case.every_s else str(row.case.at_once),
            f"{row.answers_per_s:.2f}",
            f"{row.gain:.2f}x",
            f"{row.gain / row.ideal:.0%}",
            format_seconds(float(p50)),
            format_seconds(float(p99)),
            f"{p99 / p50:.2f}x",
            f"{EVEN_AIM:.2f}x" if row.case.every_s else "-",
            format_seconds(row.bare_s),
            row.strategy,
        )
    return found


def evenly(rows: Sequence[Row]) -> list[Case]:
    """Return a case for each model and number of hosts that were measured, in which requests come evenly."""
    best: dict[tuple[str, int], Row] = {}
    for row in rows:
        key = row.case.model, row.case.hosts
        if key not in best or row.answers_per_s > best[key].answers_per_s:
            best[key] = row
    return [replace(row.case, every_s=1 / (SHARE * row.answers_per_s)) for row in best.values()]


def main(given: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.set_defaults(models=("resnet50",), hosts=(4,))
    parser.add_argument("--at-once", type=numbers, default=(4, 8, 16))
    parser.add_argument("--count", type=int, default=COUNT)
    options = parser.parse_args(given)
    load = os.getloadavg()
    rows: list[Row] = []
    cases = [
        Case(model, count, "auto", "throughput", options.count, at_once)
        for model in options.models
        for count in options.hosts
        for at_once in options.at_once
    ]
    each_slow = factors(options.slow, max(options.hosts))
    for rate in options.rate:
        with hosts(each_slow, rate, note) as made:
            found = list(each(made, cases))
            found += each(made, evenly(found))
        rows.extend(found)
        write(options.json, rows, load)
    print(sentence())
    show_table(table(rows), options.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
