"""`edgepart logs`: the last lines of an agent's log. Door: it asks an agent, and prints."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer

from edgepart.cli.options import Agent, Json, State
from edgepart.cli.output import print_json, say
from edgepart.cli.query import fetch
from edgepart.client.target import target_of

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
    from edgepart.cli.watching.follow import show_followed

    target = target_of(agent, state)
    document = fetch(target, f"/api/logs?most={number}")
    if as_json and not follow:
        print_json(document)
        return
    for line in document["lines"]:
        _print(line, as_json)
    if follow:
        place = document["lines"][-1]["id"] if document["lines"] else ""
        asyncio.run(
            show_followed(target, "/api/logs/stream", place, "line", partial(_print, as_json=as_json))
        )


def _print(line: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(line, ensure_ascii=False), flush=True)
        return
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line["at_s"]))
    say(f"{when} {line['level']} {line['source']}: {line['text']}")
