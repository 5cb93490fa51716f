"""Overhead of the product on one device: the figures in the README.

    python -m benchmarks.overhead [--only idle|executor|gateway] [--models A,B] [--markdown] [--json FILE]

Prints tables; nothing here passes or fails. The machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import executor, gateway, idle
from benchmarks.machine import describe, sentence, show_table
from benchmarks.models import LIGHT
from edgepart.cli.output import note, say, table
from edgepart.planner.figures import format_bytes, format_seconds

PAIRS = 41
PARTS = ("idle", "executor", "gateway")


@dataclass(frozen=True)
class Block:
    """A table to print."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        return "\n".join([f"{self.title}:", "", *(f"| {' | '.join(line)} |" for line in lines)])


Rows = list[dict[str, Any]]


def executor_part(models: Sequence[str]) -> tuple[Block, Rows]:
    """Return the table of the executor against a bare session, with one thread and with all cores."""
    cores = len(os.sched_getaffinity(0))
    found = []
    for model in models:
        for threads in sorted({1, cores}):
            note(f"{model}, {threads} threads: executor and bare session in turn")
            found.append(executor.measure(model, threads, PAIRS))
    rows = tuple(
        (
            one.model,
            str(one.threads),
            format_seconds(one.bare_s),
            format_seconds(one.executor_s),
            percent(one.ratio - 1),
            f"{percent(one.spread[0] - 1)} to {percent(one.spread[1] - 1)}",
            percent(one.cpu_ratio - 1),
            percent(one.least_ratio - 1),
        )
        for one in found
    )
    columns = (
        "model",
        "threads",
        "bare session",
        "executor",
        "more",
        "quartiles",
        "more CPU time",
        "best of each",
    )
    return Block(f"One device, {PAIRS} pairs", columns, rows), [asdict(one) for one in found]


def gateway_part(models: Sequence[str]) -> tuple[Block, Rows]:
    """Return the table of HTTP against the executor."""
    found = []
    for model in models:
        note(f"{model}: executor and HTTP in turn")
        found.append(gateway.measure(model, 1, PAIRS))
    rows = tuple(
        (
            one.model,
            str(one.threads),
            format_seconds(one.executor_s),
            format_seconds(one.lean_s),
            f"{one.added_s * 1e3:.2f} ms",
            f"{one.outside_s * 1e3:.2f} ms",
            format_seconds(one.client_s),
            f"{one.client_added_s * 1e3:.2f} ms",
            format_bytes(one.request_bytes),
        )
        for one in found
    )
    columns = (
        "model",
        "threads",
        "executor",
        "HTTP",
        "added",
        "of it outside the agent's count",
        "edgepart's client",
        "added in all",
        "request",
    )
    return Block(f"Through HTTP, {PAIRS} turns", columns, rows), [asdict(one) for one in found]


def idle_part() -> tuple[Block, Rows]:
    """Return the table of agents with nothing to do and nothing deployed."""
    found = idle.measure(note)
    rows = tuple(
        (
            one.members,
            f"{one.core:.2%}",
            format_bytes(one.resident_bytes),
            format_bytes(one.own_share_bytes),
            str(one.threads),
            f"{one.switches_per_s:.0f}",
        )
        for one in found
    )
    columns = ("agent", "of a core", "resident", "its share", "threads", "wakeups/s")
    return Block(f"Idle for {idle.WATCHED_S:.0f} s", columns, rows), [asdict(one) for one in found]


def percent(part: float) -> str:
    """Return a part in percent, with its sign.

    >>> percent(0.0123), percent(-0.004)
    ('+1.2%', '-0.4%')
    """
    return f"{part:+.1%}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=PARTS, help="one part of it")
    parser.add_argument("--models", help=f"of {', '.join(LIGHT)}, separated by commas")
    parser.add_argument("--markdown", action="store_true", help="print tables as the README has them")
    parser.add_argument("--json", type=Path, help="write every number there")
    options = parser.parse_args(arguments)
    chosen = options.models.split(",") if options.models else None
    if unknown := set(chosen or ()) - set(LIGHT):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(LIGHT)}")
    parts: dict[str, Callable[[], tuple[Block, Rows]]] = {
        "idle": idle_part,
        "executor": lambda: executor_part(chosen or ["resnet50"]),
        "gateway": lambda: gateway_part(chosen or ["resnet50"]),
    }
    document: dict[str, Any] = {"machine": describe(), "load_before": os.getloadavg()}
    blocks = []
    for name in [options.only] if options.only else PARTS:
        block, document[name] = parts[name]()
        blocks.append(block)
    document["load_after"] = os.getloadavg()
    say(f"On {sentence()}.")
    for block in blocks:
        say("")
        if options.markdown:
            say(block.markdown())
        else:
            say(block.title)
            show_table(table(block.columns, block.rows, right=block.columns[1:]))
    if options.json:
        options.json.write_text(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
