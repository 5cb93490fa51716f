"""Speed-ups over slow links: `auto` beside every other strategy at several rates, in the laboratory (as root).

    python -m benchmarks.links [--models A,B] [--hosts 4] [--rate 100mbit,20mbit] [--strategies A,B] [--markdown]
                               [--json FILE]

`auto` should be the fastest, and never slower than the best single host (1.0x).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.table import Table

from benchmarks.emulated import Case, Row
from benchmarks.latency import arguments, measured, names, write
from benchmarks.machine import sentence, show_table
from edgepart.planner.strategies.registry import MODULES

AUTO = "auto"
OTHERS = tuple(name for name in MODULES if name != AUTO)


def table(rows: Sequence[Row], strategies: Sequence[str]) -> Table:
    """Return a table of speed-ups with a row for each rate, model and number of hosts."""
    found = Table("rate", "model", "hosts", *strategies)
    for column in found.columns[2:]:
        column.justify = "right"
    for key in dict.fromkeys((row.rate, row.case.model, row.case.hosts) for row in rows):
        mine = {row.case.strategy: row for row in rows if (row.rate, row.case.model, row.case.hosts) == key}
        cells = (f"{mine[name].speedup:.2f}x" if name in mine else "" for name in strategies)
        found.add_row(key[0], key[1], str(key[2]), *cells)
    return found


def main(given: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.set_defaults(rate=("100mbit", "20mbit"))
    parser.add_argument("--strategies", type=names, default=OTHERS, help=f"beside auto: {', '.join(OTHERS)}")
    options = parser.parse_args(given)
    load = os.getloadavg()
    rows: list[Row] = []
    strategies = (AUTO, *options.strategies)
    cases = [
        Case(model, count, strategy)
        for model in options.models
        for count in options.hosts
        for strategy in strategies
    ]
    for rate in options.rate:
        for row in measured(options.slow, rate, cases):
            rows.append(row)
            write(options.json, rows, load)
    print(sentence())
    show_table(table(rows, strategies), options.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
