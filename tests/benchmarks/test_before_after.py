"""Figures of two checkouts side by side, from the files that their benchmarks leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.before_after import compared


def leave(folder: Path, **documents: Any) -> Path:
    folder.mkdir()
    for target, document in documents.items():
        (folder / f"{target}.json").write_text(json.dumps(document))
    return folder


def lines(before: Path, now: Path) -> dict[str, tuple[str, ...]]:
    table = compared(before, now)
    rows = zip(*(column.cells for column in table.columns), strict=True)
    return {str(row[1]): tuple(map(str, row[2:])) for row in rows}


def event(name: str, excess_s: float, settled_s: float = 1.0, lost: int = 0) -> dict[str, Any]:
    return {
        "event": name,
        "concurrency": 1,
        "excess_s": excess_s,
        "settled_s": settled_s,
        "lost": lost,
        "wrong": 0,
    }


def incident(kind: str, silence_s: float | None) -> dict[str, Any]:
    return {"kind": kind, "silence_s": silence_s}


def test_each_figure_has_a_line_with_what_both_found(tmp_path: Path) -> None:
    case = {"model": "vgg19", "hosts": 2}
    row = {"case": case, "bare_s": 1.2, "slow": [8.0, 8.0], "latency_s": 0.8}
    before = leave(
        tmp_path / "before",
        latency={"rows": [row]},
        replan={"rows": [event("join", 0.4, 20.0), event("join", 0.6, 30.0), event("join", 0.9, 25.0, 1)]},
        chaos={"sent": 5, "lost": 0, "wrong": 2, "rows": [incident("freeze", None)]},
    )
    now = leave(
        tmp_path / "now",
        latency={"rows": [row | {"latency_s": 0.6}]},
        truth={"summary": {"median_error": 0.081, "worst_error": 0.2}},
        messages={
            "messages": [
                {"way": way, "nbytes": 2304, "one_way_s": 7e-5, "one_way_share": 6.0, "cpu_share": 5.0}
                for way in ("edgepart", "bare TLS")
            ]
        },
        chaos={
            "runs": [
                {"sent": 9, "lost": 0, "wrong": 0, "rows": [incident("freeze", 1.5)]},
                {"sent": 7, "lost": 0, "wrong": 0, "rows": [incident("power cut of all", 8.0)]},
            ]
        },
    )
    assert lines(before, now) == {
        "vgg19 on 2 hosts": ("1.50x", "2.00x", "1.93x"),
        "2.3 kB one way": ("", "70 us", ""),
        "2.3 kB one way, of bare TLS": ("", "6.0x", "1.5x"),
        "2.3 kB, processor time, of bare TLS": ("", "5.0x", "1.5x"),
        "join, 1 at once: a request waits longer by": ("600 ms", "", "250 ms"),
        "join, 1 at once: a plan on the host serves after": ("25000 ms", "", "5000 ms"),
        "lost or wrong in joins and losses": ("1", "", "0"),
        "requests in chaos": ("5", "16", ""),
        "lost or wrong in chaos": ("2", "0", "0"),
        "silent hosts, no answer: median": ("inf s", "1.50 s", "2 s"),
        "silent hosts, no answer: longest": ("inf s", "1.50 s", "3 s"),
        "power cut of all, no answer: longest": ("", "8.00 s", "10 s"),
        "error of predictions, median": ("", "8.1%", "10%"),
        "error of predictions, worst": ("", "20.0%", "25%"),
    }
