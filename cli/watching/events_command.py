"""`edgepart events`: what happened in the cluster, and why. Door: it asks an agent, and prints."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepart.cli.options import Agent, Json, State
from edgepart.cli.output import console, print_json, say
from edgepart.cli.query import fetch
from edgepart.client.target import target_of

if TYPE_CHECKING:
    from rich.text import Text

TONES = {
    "lost": "red",
    "failed": "red",
    "set aside": "red",
    "plan refused": "red",
    "suspected": "yellow",
    "joined": "green",
    "returned": "green",
    "plan": "green",
}
"""The colours of events in a terminal, by their kind."""

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")]
Number = Annotated[int, typer.Option("-n", "--number", min=0, help="The most past ones to print.")]


def events(
    number: Number = 50,
    follow: Follow = False,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Show what happened: who joined or was lost, which plan serves and why. With --follow, --json prints lines."""
    from edgepart.cli.watching.follow import show_followed

    target = target_of(agent, state)
    document = fetch(target, f"/api/events?most={number}")
    entries = document["events"]
    if follow:
        for entry in entries:
            _print(entry, as_json)
        place = entries[-1]["id"] if entries else ""
        asyncio.run(
            show_followed(target, "/api/events/stream", place, "event", partial(_print, as_json=as_json))
        )
    elif as_json:
        print_json(document)
    elif entries:
        for entry in entries:
            _print(entry, as_json)
    else:
        say("Nothing has happened since this agent started.")


def _print(entry: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(entry, ensure_ascii=False), flush=True)
    else:
        console(soft_wrap=not console().is_terminal).print(event_text(entry))


def event_text(entry: Mapping[str, Any]) -> Text:
    """An event as a line: when, what and why."""
    from rich.text import Text

    when = time.strftime("%H:%M:%S", time.localtime(entry["at_s"]))
    why = f"  ({entry['why']})" if entry["why"] else ""
    return Text.assemble(
        (when, "dim"), "  ", (str(entry["text"]), TONES.get(entry["kind"], "")), (why, "dim")
    )
