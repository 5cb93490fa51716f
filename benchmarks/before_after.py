"""Figures of an earlier revision beside those of this one, both measured on this machine.

    python -m benchmarks.before_after BEFORE NOW [--markdown]

BEFORE and NOW are the `results` folders of two checkouts, in which `make latency`, `make replan`, `make chaos`,
`make truth` and `make messages` left their JSON files. A figure that one of them lacks is left empty. Nothing here
passes or fails.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.chaos_figures import AIMS as CHAOS_AIMS
from benchmarks.chaos_figures import SILENT_AIM
from benchmarks.latency import AIMS as LATENCY_AIMS
from benchmarks.machine import sentence, show_table
from benchmarks.replan import EXCESS_AIM_S, JOIN_AIM_S
from benchmarks.truth import AIM as TRUTH_AIM
from edgepart.cli.output import say

MESSAGE_BYTES = 2304
"""The message whose time is shown: what two devices exchange for each sum of a small language model."""


@dataclass(frozen=True)
class Figure:
    """One figure of one revision."""

    name: str
    shown: str
    aim: str = ""


def latency(document: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield the speed-ups."""
    for row in document["rows"]:
        model, hosts = row["case"]["model"], row["case"]["hosts"]
        aim = LATENCY_AIMS.get((model, hosts))
        gain = row["bare_s"] / row["latency_s"]
        yield Figure(f"{model} on {hosts} hosts", f"{gain:.2f}x", f"{aim:.2f}x" if aim else "")


def replan(document: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield how long requests wait for each event, and how long a host takes to serve that joins."""
    kinds = dict.fromkeys((row["event"], row["concurrency"]) for row in document["rows"])
    for event, at_once in kinds:
        some = [r for r in document["rows"] if (r["event"], r["concurrency"]) == (event, at_once)]
        name = f"{event}, {at_once} at once"
        yield Figure(
            f"{name}: a request waits longer by",
            _ms(median(row["excess_s"] for row in some)),
            _ms(EXCESS_AIM_S),
        )
        if event == "join":
            yield Figure(
                f"{name}: a plan on the host serves after",
                _ms(median(row["settled_s"] for row in some)),
                _ms(JOIN_AIM_S),
            )
    yield Figure("lost or wrong in joins and losses", str(_harmed(document["rows"])), "0")


def chaos(document: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield what chaos does to requests."""
    runs = document.get("runs", [document])  # Earlier releases had one seed.
    yield Figure("requests in chaos", str(sum(run["sent"] for run in runs)))
    yield Figure("lost or wrong in chaos", str(_harmed(runs)), "0")
    rows = [row for run in runs for row in run["rows"]]
    silent = [_silence_s(row) for row in rows if CHAOS_AIMS.get(row["kind"]) == SILENT_AIM]
    if silent:
        yield Figure("silent hosts, no answer: median", f"{median(silent):.2f} s", "2 s")
        yield Figure("silent hosts, no answer: longest", f"{max(silent):.2f} s", "3 s")
    for kind in dict.fromkeys(row["kind"] for row in rows):
        if CHAOS_AIMS.get(kind) != SILENT_AIM:
            longest = max(_silence_s(row) for row in rows if row["kind"] == kind)
            yield Figure(f"{kind}, no answer: longest", f"{longest:.2f} s", CHAOS_AIMS.get(kind, ""))


def truth(document: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield the errors of predictions."""
    found = document["summary"]
    yield Figure("error of predictions, median", f"{found['median_error']:.1%}", f"{TRUTH_AIM:.0%}")
    if "worst_error" in found:
        yield Figure("error of predictions, worst", f"{found['worst_error']:.1%}", "25%")


def messages(document: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield what a small message takes."""
    for one in document["messages"]:
        if (one["way"], one["nbytes"]) == ("edgepart", MESSAGE_BYTES):
            yield Figure("2.3 kB one way", f"{one['one_way_s'] * 1e6:.0f} us")
            yield Figure("2.3 kB one way, of bare TLS", f"{one['one_way_share']:.1f}x", "1.5x")
            yield Figure("2.3 kB, processor time, of bare TLS", f"{one['cpu_share']:.1f}x", "1.5x")


FIGURES: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Figure]]] = {
    "latency": latency,
    "messages": messages,
    "replan": replan,
    "chaos": chaos,
    "truth": truth,
}


def figures_in(results: Path) -> dict[tuple[str, str], Figure]:
    """Return the figures of a checkout, by target and name."""
    found: dict[tuple[str, str], Figure] = {}
    for target, read in FIGURES.items():
        if (path := results / f"{target}.json").exists():
            found.update({(target, one.name): one for one in read(json.loads(path.read_text()))})
    return found


def compared(before: Path, now: Path) -> Table:
    """Return a table with a line for each figure that one of both has."""
    earlier, here = figures_in(before), figures_in(now)
    shown = Table("target", "figure", "before", "now", "aim")
    for key in here | earlier:
        one, other = earlier.get(key), here.get(key)
        aim = next((figure.aim for figure in (other, one) if figure is not None), "")
        shown.add_row(f"make {key[0]}", key[1], one.shown if one else "", other.shown if other else "", aim)
    return shown


def _harmed(rows: Any) -> int:
    return sum(row["lost"] + row["wrong"] for row in rows)


def _silence_s(row: Mapping[str, Any]) -> float:
    seconds = row["silence_s"]
    return float("inf") if seconds is None else float(seconds)  # JSON knows no infinity.


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("now", type=Path)
    parser.add_argument("--markdown", action="store_true", help="print the table as documents have it")
    given = parser.parse_args()
    for folder in (given.before, given.now):
        if not any((folder / f"{target}.json").exists() for target in FIGURES):
            parser.error(f"{folder} has no results: run make latency, replan, chaos, truth or messages there")
    say(f"On {sentence()}.\n")
    show_table(compared(given.before, given.now), given.markdown)


if __name__ == "__main__":
    main()
