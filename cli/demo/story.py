"""Story: prints what happens in the demo, as texts and tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgepart.cli.demo.quickest import TIMED
from edgepart.cli.output import console, table
from edgepart.planner.figures import format_bytes, format_seconds
from edgepart.planner.report.sentences import headline


@dataclass(frozen=True)
class Speed:
    """How fast some of the boxes answer a request."""

    boxes: int
    """The number of boxes that the plan may use."""
    devices: tuple[str, ...]
    """Those that it uses."""
    measured_s: float
    predicted_s: float


class Story:
    """Prints the texts of the demo. They go to stderr if stdout is for the document."""

    def __init__(self, as_json: bool) -> None:
        self._console = console(stderr=as_json)
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Print lines; on a terminal they are wrapped between words."""
        self._console.print(text, markup=False, soft_wrap=not self._console.is_terminal)

    def part(self, text: str) -> None:
        """Print a piece of a line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True, end="")

    def chapter(self, text: str) -> None:
        from rich.text import Text

        self._console.print()
        title = Text.assemble((text, "bold"), f" ({time.monotonic() - self._began:.0f} s)")
        if title.cell_len + 2 < self._console.width:
            self._console.rule(title, align="left")
        else:  # A rule would cut the command off.
            self._console.print(title, soft_wrap=False)

    def members(self, status: dict[str, Any]) -> None:
        rows = [
            (m["name"], m["node"], m["address"] or "", "leader" if m["leader"] else m["state"])
            for m in status["members"]
        ]
        self._console.print(table(("device", "node id", "address", ""), rows))

    def speeds(self, speeds: Sequence[Speed]) -> None:
        """Print how much sooner more boxes answer than the first one alone."""
        rows = [
            (
                str(speed.boxes),
                ", ".join(speed.devices),
                format_seconds(speed.measured_s),
                format_seconds(speed.predicted_s),
                f"{speeds[0].measured_s / speed.measured_s:.2f}x",
            )
            for speed in speeds
        ]
        columns = ("boxes", "computed by", "one answer takes", "predicted", "times as fast")
        self._console.print(table(columns, rows, right=(columns[0], *columns[2:])))
        self.say(
            f"One answer takes: the median of {TIMED} in a row, the quickest that came one after the other."
        )

    def plan(self, plan: dict[str, Any]) -> None:
        """Print what each device computes and which data it sends and receives, and the first sentence about the plan."""
        total = sum(device["flops"] for device in plan["devices"].values()) or 1.0
        shared: dict[str, str] = next(
            (parts for parts in plan["shares"].values() if len(parts) == len(plan["devices"])), {}
        )
        rows = [
            (
                name,
                f"{device['flops'] / total:.0%}",
                shared.get(name, "-"),
                str(device["segments"]),
                format_bytes(device["from_gateway_bytes"]),
                format_bytes(device["received_bytes"]),
                format_bytes(device["to_gateway_bytes"]),
            )
            for name, device in plan["devices"].items()
        ]
        columns = (
            "device",
            "work",
            "rows of the first shared layer",
            "segments",
            "input",
            "halos in",
            "output",
        )
        self._console.print(table(columns, rows, right=columns[1:2] + columns[3:]))
        self.say(headline(plan["why"]))
