"""RPC client: sends a question to a peer and returns the answer, or an error within a time limit. Door: the event loop; the
wire is given.

All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from edgepart.agent.wire.frames import Buffer
from edgepart.agent.wire.queries import Answer, Question
from edgepart.planner.errors import Unavailable

SendQuestion = Callable[[str, Question, Sequence[Buffer]], None]
"""(node, question, payload). Raises Unavailable if there is no link."""


class RpcClient:
    """The questions that wait for an answer, by ticket."""

    def __init__(self, send: SendQuestion) -> None:
        self._send = send
        self._tickets = itertools.count(1)
        self._waiting: dict[int, tuple[str, asyncio.Future[tuple[Any, memoryview]]]] = {}

    async def ask(
        self, node: str, question: Question, payload: Sequence[Buffer] = (), timeout_s: float = 20.0
    ) -> tuple[Any, memoryview]:
        """Return the answer and its payload. Raises Unavailable if the link is down or no answer comes within
        `timeout_s`."""
        ticket = next(self._tickets)
        future: asyncio.Future[tuple[Any, memoryview]] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = (node, future)
        try:
            self._send(node, replace(question, ticket=ticket), payload)
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            what = type(question).__name__
            raise Unavailable(f"{node} did not answer {what} within {timeout_s:.0f} s") from None
        finally:
            del self._waiting[ticket]

    def answered(self, node: str, answer: Answer, payload: memoryview) -> None:
        """Deliver an answer that arrived. An answer that nobody waits for, or that another node sent, is dropped."""
        asked, future = self._waiting.get(answer.ticket, ("", None))
        if future is not None and asked == node and not future.done():
            future.set_result((answer, payload))

    def lost(self, node: str) -> None:
        """Fail all questions to `node` at once, because the link to it is down."""
        for asked, future in self._waiting.values():
            if asked == node and not future.done():
                future.set_exception(Unavailable(f"the link to {node} went down"))
