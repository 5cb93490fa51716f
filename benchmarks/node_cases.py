"""The ONNX project's own node cases, each divided over devices along every axis that its operators declare.

    python -m benchmarks.node_cases [--devices 2,3] [--filter REGEX] [--json FILE]

A case counts if one ONNX Runtime session gives the answer that the case expects. It passes if every division gives it
as well, and is really split if along every axis of an extent over 1 more than one device computed a part. Exits with 1
if a case that one session passes does not pass divided, or was not split without a stated reason.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from benchmarks.case_trial import CONSTANT, SHARES, Trial, Try, all_cases, trial
from benchmarks.machine import describe, sentence, show_table
from edgepart.cli.output import note, progress, say, table

WORKERS = 2
CHUNK = 12
"""Cases that a worker is given at a time. If the worker dies, only these have to be run again."""


def trials(names: Sequence[str], devices: Sequence[int]) -> Iterator[Trial]:
    """Yield the trial of every case, run in two processes. A case that kills its process fails, and the
    others continue."""
    chunks = [tuple(names[n : n + CHUNK]) for n in range(0, len(names), CHUNK)]
    broken: list[str] = []
    with _pool(WORKERS) as pool:
        found = {chunk: pool.submit(_some, chunk, devices) for chunk in chunks}
        for chunk, future in found.items():
            try:
                yield from future.result()
            except BrokenProcessPool:
                broken += chunk
    for name in broken:
        with _pool(1) as pool:
            try:
                yield from pool.submit(_some, (name,), devices).result()
            except BrokenProcessPool:
                yield Trial(name, (), tries=tuple(Try("", n, None, "the process died") for n in devices))


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


def _some(names: Sequence[str], devices: Sequence[int]) -> list[Trial]:
    return [trial(name, devices) for name in names]


def counts(found: Sequence[Trial], devices: Sequence[int]) -> dict[str, int]:
    """Return the figures at the head of the report."""
    passed = [one for one in found if not one.alone]
    splittable = [one for one in passed if one.wanted]
    return {
        "cases": len(found),
        "passed in one session": len(passed),
        "of these with a lowered stamp": sum(one.restamped for one in passed),
        **{f"passed on {n} devices": sum(one.right_on(n) for one in passed) for n in devices},
        "with an axis of an extent over 1": len(splittable),
        "really split along every such axis": sum(not one.unsplit and not one.faults for one in splittable),
        "of these only with constants": sum(all(f == CONSTANT for f, _ in one.wanted) for one in splittable),
        "opaque": sum(not one.wanted and bool(one.opaque) for one in passed),
        "nothing to split (extents of 1, or constant)": sum(
            not one.wanted and not one.opaque for one in passed
        ),
        "right within two steps of float16": sum(any(t.rough for t in one.tries) for one in passed),
        "divisions run": sum(not t.note for one in found for t in one.tries),
    }


def exceptions(found: Sequence[Trial]) -> tuple[list[str], list[str]]:
    """Return lines on divisions that fail although one session passes, and on cases that were not really split."""
    passed = [one for one in found if not one.alone]
    wrong = [line for one in passed for line in _together(one.name, [(t, t.fault) for t in one.faults])]
    unsplit = [line for one in passed for line in _together(one.name, [(t, t.note) for t in one.unsplit])]
    return wrong, unsplit


def _together(name: str, told: Sequence[tuple[Try, str]]) -> Iterator[str]:
    """Yield one line for all divisions of a case that have the same text."""
    ways: dict[str, list[Try]] = {}
    for one, text in told:
        ways.setdefault(_short(text), []).append(one)
    for text, tries in ways.items():
        axes, devices, forms = (
            ", ".join(dict.fromkeys(found))
            for found in zip(*((t.axis or "whole", str(t.devices), t.form) for t in tries), strict=True)
        )
        yield f"{name} ({axes}; on {devices} devices; {forms})" + (f": {text}" if text else "")


def show(found: Sequence[Trial], devices: Sequence[int], seconds: float) -> None:
    say(f"ONNX node cases, divided; {sentence()}; {seconds:.0f} s")
    rows = [(name, str(count)) for name, count in counts(found, devices).items()]
    show_table(table(["", "cases"], rows, right=["cases"]))
    wrong, unsplit = exceptions(found)
    _list("Passed in one session and wrong divided", wrong)
    _list("An axis of an extent over 1 that was not really split", unsplit)
    _show_opaque([one for one in found if not one.alone and not one.wanted and one.opaque])
    reasons = Counter(_short(one.alone) for one in found if one.alone)
    _list("Not passed in one session", [f"{count} x {reason}" for reason, count in reasons.most_common()])


def _list(title: str, lines: Sequence[str]) -> None:
    say(f"\n{title}: {len(lines) or 'none'}")
    for line in lines:
        say(f"  {line[:400]}")


def _show_opaque(found: Sequence[Trial]) -> None:
    """Print the opaque cases by operator and reason."""
    names: dict[tuple[str, str], list[str]] = {}
    for one in found:
        for op_type, why in one.opaque.items():
            names.setdefault((op_type, re.sub("'.*'", "a value", why)), []).append(one.name)
    _list(
        "Opaque, and why",
        [f"{op_type}: {why}: {', '.join(cases)}" for (op_type, why), cases in sorted(names.items())],
    )


def _short(fault: str) -> str:
    """Return a reason without names of nodes and files, so that equal reasons can be counted."""
    text = re.sub(r"/\S+|\[ONNXRuntimeError\] : \d+ : |\b[0-9a-f]{8} |node \S+|Name:'[^']*'", "", fault)
    return " ".join(text.split())[:240]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", default="2,3", help=f"of {', '.join(map(str, SHARES))}")
    parser.add_argument("--filter", default="", metavar="REGEX", help="only cases whose name it is found in")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here")
    chosen = parser.parse_args(arguments)
    devices = [int(text) for text in chosen.devices.split(",")]
    if unknown := [count for count in devices if count not in SHARES]:
        parser.error(f"--devices {unknown[0]}: choose of {', '.join(map(str, SHARES))}")
    names = [name for name in all_cases() if re.search(chosen.filter, name)]
    if not names:
        parser.error(f"--filter {chosen.filter!r}: no case has such a name")
    began, found = time.monotonic(), list[Trial]()
    with progress({}) as bar:
        for one in trials(names, devices):
            found.append(one)
            bar("cases", len(found), len(names))
    seconds = time.monotonic() - began
    show(found, devices, seconds)
    wrong, unsplit = exceptions(found)
    if chosen.json:
        document = {"machine": describe(), "seconds": seconds, "counts": counts(found, devices)}
        document |= {"wrong": wrong, "unsplit": unsplit, "trials": [asdict(one) for one in found]}
        chosen.json.write_text(json.dumps(document, indent=1))
        note(f"written: {chosen.json}")
    quiet = any(not one.note for trial in found if not trial.alone for one in trial.unsplit)
    return 1 if wrong or quiet else 0


if __name__ == "__main__":
    sys.exit(main())
