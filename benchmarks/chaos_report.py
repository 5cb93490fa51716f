"""The report of a chaos run that failed: schedule, acts, every answer, the ends of the agents' logs, the
command to repeat it. Does I/O: files."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.chaos_asking import Asked
from benchmarks.chaos_figures import Outcome, shifted
from benchmarks.chaos_presence import Done, Look
from benchmarks.chaos_schedule import Incident

TAIL_BYTES = 400_000
"""Size of the end that is kept of each agent's log; with --log-level debug it covers some minutes."""


def leave(
    folder: Path,
    *,
    command: Sequence[str],
    began: float,
    wall: float,
    incidents: Sequence[Incident],
    done: Sequence[Done],
    asked: Sequence[Asked],
    looks: Sequence[Look],
    logs: Iterable[tuple[str, Path]],
    found: Outcome,
) -> None:
    """Write the report to `folder`. `began` on the monotonic clock and `wall` (Unix time) are the same
    instant, so that logs can be compared."""
    folder.mkdir(parents=True, exist_ok=True)
    again = f"{shlex.join(command)}\n"
    (folder / "again.txt").write_text(again)
    document = {"command": again.strip(), "began_wall": wall, "outcome": found.document()}
    _json(folder / "outcome.json", document)
    _json(folder / "schedule.json", [asdict(one) for one in incidents])
    _json(folder / "done.json", [asdict(one) for one in shifted(done, began)])
    relative = [asdict(one) | {"began": one.began - began, "ended": one.ended - began} for one in asked]
    (folder / "answers.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in relative))
    seen = [[round(look.at - began, 2), look.viewer, sorted(look.listed)] for look in looks]
    (folder / "members.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in seen))
    for name, log in logs:
        if log.exists():
            (folder / f"{name}.log").write_bytes(_tail(log))


def _json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1, default=str))


def _tail(log: Path) -> bytes:
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        return file.read()
