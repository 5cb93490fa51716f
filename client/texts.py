"""Texts: asks a language model through the routes of OpenAI's API, and reads its answer as it grows. Door: it is made of
the HTTP door.

An answer of which nothing has come is asked for again at another member when its agent is lost. Later a stream ends with an
error instead: another answer need not begin with the same words.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from edgepart.client.event_stream import read_events
from edgepart.client.failures import describe_loss, error_from
from edgepart.client.http_door import LOST, HttpDoor
from edgepart.client.members import RequestTries
from edgepart.planner.errors import Unavailable

BEGIN_S = 60.0
"""How long members are asked until one of them begins to answer."""


class Broken(Unavailable):
    """The agent was lost in the middle of an answer."""


async def chat_documents(door: HttpDoor, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """Yields the documents of a chat's answer as they come. Raises the error that the agent reports, Broken if the agent is
    lost in the middle of the answer, and Unavailable if nobody can be reached."""
    tries = RequestTries(door.members, time.monotonic() + BEGIN_S)
    begun = False
    while True:
        url = tries.url
        try:
            async with door.post(url, "/v1/chat/completions", {**body, "stream": True}) as response:
                async for document in read_events(response.content):
                    if "error" in document:
                        raise error_from(document, response.status)
                    begun = True
                    yield document
            door.members.answered(url)
            return
        except LOST as error:
            pause_s = tries.lost(url, time.monotonic())
            text = describe_loss(url, error)
            if begun:
                raise Broken(f"{text}; the answer is not complete") from error
            if pause_s is None:
                raise Unavailable(text) from error
        await asyncio.sleep(pause_s)
