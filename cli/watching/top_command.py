"""`edgepart top`: the cluster in a terminal, live. Door: it follows an agent's feed, has a clock, and draws."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated

import typer

from edgepart.cli.options import Agent, Json, State
from edgepart.cli.output import console, note
from edgepart.cli.watching.top_screen import LiveView, screen
from edgepart.client.target import AgentTarget, target_of

REDRAWN_S = 1.0
"""Seconds after which times that pass are drawn anew, though nothing was told."""
COLLECTED_S = 0.3
"""Seconds for which --once waits for more once it knows the cluster."""

ENDED = "q was pressed"
"""The message with which the view is cancelled when its reader ends it."""

Once = Annotated[bool, typer.Option("--once", help="Print it once, and end.")]


def top(once: Once = False, state: State = None, agent: Agent = None, as_json: Json = False) -> None:
    """Show devices, links, deployments and events, live. q or Ctrl-C ends it; --json prints the present state once."""
    target = target_of(agent, state)
    if once or as_json or not console().is_terminal:
        view = asyncio.run(_look(target))
        if as_json:
            print(json.dumps({key: value for key, value in asdict(view).items() if key != "fault"}))
        else:
            out = console(soft_wrap=False)
            out.print(screen(view, time.time(), out.width))
        return
    asyncio.run(_watch(target))


async def _look(target: AgentTarget) -> LiveView:
    """What the feed tells at its beginning."""
    from edgepart.cli.watching.follow import follow

    view, events = LiveView(), follow(target, "/api/live", note)
    waiting = asyncio.ensure_future(anext(events))
    try:
        while True:
            # All that is known comes at once; then the feed is silent until something changes.
            done, _ = await asyncio.wait([waiting], timeout=COLLECTED_S if view.is_whole else None)
            if not done:
                return view
            event = waiting.result()
            view.take(event.kind, event.document)
            waiting = asyncio.ensure_future(anext(events))
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await events.aclose()


async def _watch(target: AgentTarget) -> None:
    """Show the cluster until q is pressed."""
    from edgepart.cli.watching.keyboard import listening

    watching = asyncio.ensure_future(_follow(target))

    def pressed(key: str) -> None:
        if key in "qQ":
            watching.cancel(ENDED)

    with listening(pressed):
        try:
            await watching
        except asyncio.CancelledError as cancelled:
            if ENDED not in cancelled.args:
                raise


async def _follow(target: AgentTarget) -> None:
    from rich.live import Live

    from edgepart.cli.watching.follow import follow

    view = LiveView()
    shown = console(soft_wrap=False)

    def lost(why: str) -> None:
        view.fault = why

    with Live(console=shown, screen=True, auto_refresh=False) as live:

        def draw() -> None:
            live.update(screen(view, time.time(), shown.width), refresh=True)

        async def redraw() -> None:
            while True:
                draw()
                await asyncio.sleep(REDRAWN_S)

        drawing = asyncio.create_task(redraw())
        try:
            async with aclosing(follow(target, "/api/live", lost, more=view.urls)) as events:
                async for event in events:
                    view.take(event.kind, event.document)
                    draw()
        finally:
            drawing.cancel()
            await asyncio.gather(drawing, return_exceptions=True)
