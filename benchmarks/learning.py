"""What learned placers gain, in simulation: the tables of docs/learning.md, one set for each system.

    python -m benchmarks.learning [--minutes 50] [--seeds 1] [--docs docs/learning.md]

Each system has a benchmark of its own, which can be run alone; --minutes are shared between them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path

from benchmarks import learning_gdp, learning_placeto
from benchmarks.machine import commit, sentence
from benchmarks.page import replaced
from edgepart.cli.output import note, say

REPORTS: Mapping[str, Callable[[float, int], str]] = {
    "placeto": learning_placeto.report,
    "gdp": learning_gdp.report,
}
"""What writes the tables of each system, by minutes and seeds. To add one, add its line here, and its marks to the page."""

MINUTES = 50.0


def written(page: str, name: str, command: str, printed: str) -> str:
    """Return the page with these tables between the marks of that name."""
    source = f"*`{command}`, commit {commit()}, {date.today()}, {sentence()}.*"
    return replaced(page, f"<!-- learned {name} -->", "<!-- end -->", f"{source}\n\n{printed.strip()}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="roughly, for each seed on a slow core"
    )
    parser.add_argument("--seeds", type=int, default=1, help="how often everything is done")
    parser.add_argument("--docs", type=Path, help="the page whose tables are written")
    options = parser.parse_args()
    for name, report in REPORTS.items():
        note(f"{name}: about {options.seeds * options.minutes / len(REPORTS):.0f} minutes")
        printed = report(options.minutes / len(REPORTS), options.seeds)
        say(printed)
        if options.docs is not None:
            page = written(options.docs.read_text(), name, "make learning", printed)
            options.docs.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
