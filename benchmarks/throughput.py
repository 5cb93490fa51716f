"""Answers per second of several hosts, and the latency of each answer, in the laboratory (as root).

    python -m benchmarks.throughput [--models resnet50] [--hosts 4] [--slow 8] [--at-once 4,8,16] [--markdown] [--json FILE]

Models are deployed with `--objective throughput`; a client on the first host keeps so many requests in
flight. The gain is over a bare ONNX Runtime session on one such host, which answers one request after the
other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import numpy as np
from rich.table import Table

from benchmarks.emulated import Case, Row
from benchmarks.latency import arguments, measured, numbers, write
from benchmarks.machine import sentence, show_table
from edgepart.planner.figures import format_seconds

COUNT = 120
"""Requests of a row, enough for the slowest hundredth."""


def table(rows: Sequence[Row]) -> Table:
    found = Table(
        "model", "hosts", "at once", "answers/s", "gain", "of the ideal", "p50", "p99", "bare session", "by"
    )
    for column in found.columns[1:-1]:
        column.justify = "right"
    for row in rows:
        p50, p99 = np.quantile(row.seconds, [0.5, 0.99])
        found.add_row(
            row.case.model,
            str(row.case.hosts),
            str(row.case.at_once),
            f"{row.answers_per_s:.2f}",
            f"{row.gain:.2f}x",
            f"{row.gain / row.ideal:.0%}",
            format_seconds(float(p50)),
            format_seconds(float(p99)),
            format_seconds(row.bare_s),
            row.strategy,
        )
    return found


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
    for rate in options.rate:
        rows.extend(measured(options.slow, rate, cases))
        write(options.json, rows, load)
    print(sentence())
    show_table(table(rows), options.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
