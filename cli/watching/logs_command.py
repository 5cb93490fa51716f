"""`edgepart logs`: the last lines of an agent's log. Door: it asks an agent, and prints."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from edgepart.cli.options import Agent, Json, State
from edgepart.cli.output import note, print_json, say
from edgepart.cli.query import fetch
from edgepart.client.target import AgentTarget, target_of

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines, until Ctrl-C.")]
Number = Annotated[int, typer.Option("-n", "--number", min=0, help="The most past lines to print.")]


def logs(
    number: Number = 100,
    follow: Follow = False,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Show the last lines of an agent's log, which it keeps in memory. With --follow, --json prints lines."""
    target = target_of(agent, state)
    document = fetch(target, f"/api/logs?most={number}")
    if as_json and not follow:
        print_json(document)
        return
    for line in document["lines"]:
        _print(line, as_json)
    if follow:
        place = document["lines"][-1]["id"] if document["lines"] else ""
        asyncio.run(_follow(target, place, as_json))


async def _follow(target: AgentTarget, place: str, as_json: bool) -> None:
    from edgepart.cli.watching.follow import follow

    async for event in follow(target, "/api/logs/stream", note, place):
        if event.kind == "line":
            _print(event.document, as_json)
        elif event.kind == "gap":
            note(f"{event.document['forgotten']} lines in between are forgotten")


def _print(line: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(line, ensure_ascii=False), flush=True)
        return
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line["at_s"]))
    say(f"{when} {line['level']} {line['source']}: {line['text']}")
