"""A plan for people: a table of its devices, and one sentence about it. Rules over rich's tables; no door."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgepart.cli.output import say, table
from edgepart.planner.figures import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

SIZES = ("sent_bytes", "received_bytes", "weight_bytes", "peak_memory_bytes")


def device_table(devices: Mapping[str, Mapping[str, Any]]) -> Table:
    """A table of the work of each device for one request. `devices` maps names to rows of a plan's document or of an
    agent's report."""
    columns = ("device", "computes", "sends", "receives", "weights", "peak memory", "segments")
    rows = [
        (
            name,
            format_seconds(row["compute_s"], 4),
            *(format_bytes(row[size]) for size in SIZES),
            str(row["segments"]),
        )
        for name, row in devices.items()
    ]
    return table(columns, rows, right=columns[1:])


def say_reasons(why: str) -> None:
    """Prints all of a plan's reasons, each as a paragraph of its own."""
    for line in why.splitlines():
        say(line, prose=True)
