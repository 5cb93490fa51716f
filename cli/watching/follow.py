"""Follows the server-sent events of an agent, and goes on where it was when the connection is lost. Door: aiohttp."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from edgepart.cli.output import note
from edgepart.client.failures import error_from
from edgepart.client.target import AgentTarget
from edgepart.planner.errors import FrameError, Unavailable

SILENT_S = 30.0
"""Seconds of silence after which a connection is lost: agents send a comment every ten."""
AGAIN_S = 1.0
"""Seconds between two tries to connect."""
LONGEST_LINE_BYTES = 16 << 20
"""The longest line that is read. The documents of a page have some 100 kB."""


@dataclass(frozen=True, slots=True)
class FollowedEvent:
    """An event of a stream."""

    kind: str
    document: Any
    identity: str = ""
    """The event's place in its log; "" if it has none."""


async def parse_events(lines: AsyncIterable[bytes]) -> AsyncGenerator[FollowedEvent, None]:
    """The events in these lines. Raises FrameError for data that are no JSON."""
    kind, identity, data = "message", "", b""
    async for line in lines:
        name, _, value = line.rstrip(b"\r\n").partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            kind = value.decode(errors="replace")
        elif name == b"id":
            identity = value.decode(errors="replace")
        elif name == b"data":
            data += value
        elif not line.strip():
            if data:
                yield FollowedEvent(kind, _document(data), identity)
            kind, identity, data = "message", "", b""


def _document(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise FrameError(f"the agent sent an event that is no JSON: {data[:100]!r}") from error


async def follow(
    target: AgentTarget, path: str, lost: Callable[[str], None], place: str = ""
) -> AsyncGenerator[FollowedEvent, None]:
    """The events at `path` after `place`, for ever. `lost` is told why, whenever the agent does not answer; the events go
    on once it does. Raises Unavailable if the agent does not answer the first time, and what the agent refuses."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=SILENT_S)
    headers = {} if target.is_local else {"Authorization": f"Bearer {target.credential()}"}
    connected = False
    async with aiohttp.ClientSession(
        timeout=timeout, headers=headers, read_bufsize=LONGEST_LINE_BYTES
    ) as session:
        while True:
            try:
                more = {"Last-Event-ID": place} if place else {}
                async with session.get(f"{target.url}{path}", headers=more) as response:
                    await _check(response)
                    connected = True
                    async for event in parse_events(response.content):
                        place = event.identity or place
                        yield event
                why = "it has ended the connection"
            except (aiohttp.ClientError, TimeoutError) as error:
                why = str(error) or type(error).__name__
            except Unavailable as error:  # It is there, and has no room for this now.
                if not connected:
                    raise
                why = str(error)
            if not connected:
                raise Unavailable(f"no answer from {target.url}: {why}. Is an agent running there?")
            lost(f"no answer from {target.url} ({why}); trying again")
            await asyncio.sleep(AGAIN_S)


async def show_followed(
    target: AgentTarget, path: str, place: str, kind: str, show: Callable[[Any], None]
) -> None:
    """Show the documents of the events of this kind at `path` after `place`, for ever, and say how many were forgotten in
    between. Raises what `follow` raises."""
    async for event in follow(target, path, note, place):
        if event.kind == kind:
            show(event.document)
        elif event.kind == "gap":
            note(f"{event.document['forgotten']} {kind}s in between are forgotten")


async def _check(response: aiohttp.ClientResponse) -> None:
    """Raise the error that the agent answered with, if it is one that trying again does not help."""
    if response.status == 200:
        return
    text = (await response.read())[:2000].decode(errors="replace")
    try:
        document = json.loads(text)
    except ValueError:
        document = {"error": text, "kind": ""}
    if response.status == 404:
        raise Unavailable(
            f"the agent does not tell this: it runs an older edgepart ({document.get('error')})"
        )
    raise error_from(document, response.status)
