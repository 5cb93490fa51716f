"""`python -m tests.fuzz`: runs cases for every target, in two processes, and prints a table of the results.

Cases that break the law are written to --found, and the run then ends with status 1. `--only` takes parts of
targets' names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.running import Tally
from tests.fuzz.working import all_of, jobs

HEAD = f"{'door':<22} {'cases':>9} {'taken':>9} {'places':>6} {'CPU s':>7} {'slowest ms':>10} {'grown MB':>8} {'found':>5}"


def row(tally: Tally) -> str:
    return (
        f"{tally.name:<22} {tally.cases:>9} {tally.accepted:>9} {tally.kept:>6} {tally.cpu_s:>7.1f} "
        f"{tally.slowest_s * 1e3:>10.1f} {tally.grown_bytes / 1e6:>8.1f} {len(tally.findings):>5}"
    )


def document(tallies: Sequence[Tally], seed: int, wall_s: float) -> dict[str, Any]:
    """Return the results for scripts."""
    return {
        "seed": seed,
        "cases": sum(tally.cases for tally in tallies),
        "wall_s": round(wall_s, 1),
        "cpu_s": round(sum(tally.cpu_s for tally in tallies), 1),
        "findings": sum(len(tally.findings) for tally in tallies),
        "doors": [
            {
                "door": t.name,
                "cases": t.cases,
                "taken": t.accepted,
                "places": t.kept,
                "cpu_s": round(t.cpu_s, 2),
                "slowest_s": round(t.slowest_s, 4),
                "grown_bytes": t.grown_bytes,
                "findings": [finding.error for finding in t.findings.values()],
            }
            for t in tallies
        ],
    }


def keep(tallies: Sequence[Tally], folder: Path) -> None:
    """Write each finding's case to a file, and print its error."""
    for tally in tallies:
        for finding in tally.findings.values():
            name = (
                f"{re.sub('[^A-Za-z0-9.]+', '-', tally.name)}-{hashlib.sha256(finding.case).hexdigest()[:8]}"
            )
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(finding.case)
            print(f"\n{folder / name}:\n{finding.error}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--cases", type=int, default=10_000, help="for each door (slow ones get a part of it)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="PART", help="doors with one of these in their names"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--found", type=Path, default=Path("results/fuzz"), help="where cases go that break the law"
    )
    parser.add_argument("--json", type=Path, help="write what came of it here, too")
    given = parser.parse_args()
    began_s = time.monotonic()
    print(HEAD, file=sys.stderr)
    tallies = []
    for tally in all_of(jobs(given.only, given.cases, given.seed), given.processes):
        print(row(tally), file=sys.stderr, flush=True)
        tallies.append(tally)
    tallies.sort(key=lambda tally: tally.name)
    wall_s = time.monotonic() - began_s
    report = document(tallies, given.seed, wall_s)
    print(HEAD, *map(row, tallies), sep="\n")
    print(
        f"{report['cases']} cases, {report['findings']} findings, {wall_s:.0f} s, {report['cpu_s']:.0f} CPU s"
    )
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(report, indent=1) + "\n")
    keep(tallies, given.found)
    sys.exit(1 if report["findings"] else 0)


if __name__ == "__main__":
    main()
