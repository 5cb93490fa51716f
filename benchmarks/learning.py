"""What learned placers gain, in simulation: the tables of docs/learning.md, one set for each system.

    python -m benchmarks.learning [--minutes 25] [--seeds 3] [--docs docs/learning.md]

Each system has a benchmark of its own, which can be run alone. Here each has a process, as a network is trained on one
core; how many updates it gets depends on --minutes, and not on what else the machine does.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
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

MINUTES = 25.0


def written(page: str, name: str, command: str, printed: str) -> str:
    """Return the page with these tables between the marks of that name."""
    source = f"*`{command}`, commit {commit()}, {date.today()}, {sentence()}.*"
    return replaced(page, f"<!-- learned {name} -->", "<!-- end -->", f"{source}\n\n{printed.strip()}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="roughly, for each system and seed on a slow core"
    )
    parser.add_argument("--seeds", type=int, default=3, help="how often everything is done")
    parser.add_argument("--docs", type=Path, help="the page whose tables are written")
    options = parser.parse_args()
    note(f"{', '.join(REPORTS)}, side by side: about {options.seeds * options.minutes:.0f} minutes")
    # A process of its own has its own torch and its own compiled code, none of which survives a fork.
    with ProcessPoolExecutor(len(REPORTS), multiprocessing.get_context("spawn")) as pool:
        reports = {
            pool.submit(report, options.minutes, options.seeds): name for name, report in REPORTS.items()
        }
        for done in as_completed(reports):
            printed = done.result()
            say(printed)
            if options.docs is not None:
                page = written(options.docs.read_text(), reports[done], "make learning", printed)
                options.docs.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
