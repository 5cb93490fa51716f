"""What `edgepart plan MODEL` prints of one plan. Door: stdout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgepart.cli.output import console, say
from edgepart.cli.plan_text import device_table, say_reasons
from edgepart.cli.verification import show
from edgepart.planner.figures import format_figure, format_seconds
from edgepart.planner.report.sentences import headline


@dataclass(frozen=True)
class PlanPrinting:
    """The options that say what to print of the plan."""

    compare: bool
    verify: bool
    reasons: bool
    as_json: bool


def print_plan(document: Mapping[str, Any], printing: PlanPrinting) -> None:
    """Prints the figures, a table of the devices, and one sentence; with --why, every reason."""
    from rich.text import Text

    if printing.as_json:
        print(json.dumps(document))
        return
    out, rate = console(soft_wrap=False), document["predicted_throughput_per_s"]
    many = f", {format_figure(rate, 4)} requests/s with many in flight" if rate else ""
    latency = format_seconds(document["predicted_latency_s"], 4)
    out.print(
        Text.assemble(
            (document["model"], "bold"),
            f" · {document['strategy']}: ",
            (latency, "bold"),
            f" a request{many}",
        )
    )
    if single := document["baselines"]["single"]:
        out.print(
            f"best single device: {format_seconds(single['predicted_latency_s'], 4)} on {single['device']}"
        )
    out.print()
    out.print(device_table(document["devices"]))
    out.print()
    if printing.reasons:
        say_reasons(document["why"])
    else:
        say(f"{headline(document['why'])} (--why gives all reasons.)", prose=True)
    if printing.verify:
        show(document["verified"])


def print_verified(document: Mapping[str, Any], as_json: bool) -> None:
    """Prints how a deployment's predictions compare with what was measured."""
    if as_json:
        print(json.dumps(document))
    else:
        show(document)
