"""Follows the server-sent events of an agent, and goes on where it was when the connection is lost. Door: aiohttp."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import aiohttp

from edgepart.cli.output import note
from edgepart.client.addresses import reachable
from edgepart.client.event_stream import split_events
from edgepart.client.failures import error_from
from edgepart.client.members import KnownMembers
from edgepart.client.target import AgentTarget
from edgepart.planner.errors import Unavailable

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


async def follow(
    target: AgentTarget,
    path: str,
    lost: Callable[[str], None],
    place: str = "",
    more: Callable[[], Iterable[str]] = tuple,
) -> AsyncGenerator[FollowedEvent, None]:
    """The events at `path` after `place`, for ever. `lost` is told why, whenever an agent does not answer; the events go on
    once it does, or once another agent of the target does, or one at the URLs that `more` returns: that one tells from its
    beginning. Raises Unavailable if no agent answers the first time, and what an agent refuses."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=SILENT_S)
    members, failed, told = KnownMembers(target.urls), 0, ""
    """`failed` agents did not answer one after the other; `told` is the one whose log `place` is of."""
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=LONGEST_LINE_BYTES) as session:
        while True:
            url, why = members.current, "it has ended the connection"
            try:
                headers = _headers(target, url, place if url == told or not told else "")
                async with session.get(f"{url}{path}", headers=headers) as response:
                    await _check(response)
                    members.answered(url)
                    failed, told = 0, url
                    async for event in split_events(response.content):
                        place = event.identity or place
                        yield FollowedEvent(event.kind, event.document(), event.identity)
            except (aiohttp.ClientError, TimeoutError) as error:
                why = str(error) or type(error).__name__
            except Unavailable as error:  # It is there, and has no room for this now.
                if not members.met and len(members.urls) == 1:
                    raise
                why = str(error)
            members.add(reachable(more(), url))
            members.failed(url, 0.0)
            failed += 1
            all_failed = failed >= len(members.urls)
            if all_failed and not members.met:
                raise Unavailable(f"no answer from {url}: {why}. Is an agent running there?")
            lost(
                f"no answer from {url} ({why}); trying {members.current if members.current != url else 'again'}"
            )
            if all_failed:
                failed = 0
                await asyncio.sleep(AGAIN_S)


def _headers(target: AgentTarget, url: str, place: str) -> dict[str, str]:
    credential = target.credential_for(url)
    shown = {"Authorization": f"Bearer {credential}"} if credential else {}
    return shown | ({"Last-Event-ID": place} if place else {})


async def show_followed(
    target: AgentTarget, path: str, place: str, kind: str, show: Callable[[Any], None]
) -> None:
    """Show the documents of the events of this kind at `path` after `place`, for ever, and say how many were forgotten in
    between. Only the target's first agent is asked: each has a log of its own. Raises what `follow` raises."""
    async for event in follow(target.alone, path, note, place):
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
