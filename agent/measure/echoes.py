"""Echoes: measures round trips to other agents on the path of tensors. A door: threads and the clock.

At both ends an echo is packed, written, read, unpacked and handed from thread to thread as a large transfer of a request:
the planner needs to know how long such a transfer takes, not what the cable could do. A small transfer may be quicker, as a
compute thread reads it itself.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from edgepart.agent.wire.queries import Echo, Echoed
from edgepart.planner.errors import Unavailable

log = logging.getLogger(__name__)

SendValues = Callable[[str, Echo | Echoed, Sequence[Any]], None]
"""send(node, message, values) packs the values and queues them. Raises Unavailable if there is no link."""


class Echoes:
    """RpcClient for echoes and answers them. Thread-safe; `stop` must be called at the end."""

    def __init__(self, send: SendValues) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._tickets = itertools.count(1)
        self._awaited: dict[int, str] = {}
        """The nodes of echoes that are not back yet, by ticket."""
        self._lost: set[int] = set()
        """Tickets of echoes that will not come back."""
        self._stopped = False
        self._asked: SimpleQueue[tuple[str, Echo, Sequence[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._answer, name="echoes", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wake all threads that wait for an echo, and answer no more echoes."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._asked.put(None)
        self._thread.join(5.0)

    def came(self, node: str, message: Echo | Echoed, values: Sequence[Any]) -> None:
        """Take an echo from another agent, or one of ours that is back. Called in a reader's thread."""
        if isinstance(message, Echo):
            self._asked.put((node, message, values))
            return
        with self._changed:
            if self._awaited.get(message.ticket) == node:
                del self._awaited[message.ticket]
                self._changed.notify_all()

    def lost(self, node: str) -> None:
        """Fail the echoes that wait for `node`, as the link to it is down."""
        with self._changed:
            self._lost.update(ticket for ticket, other in self._awaited.items() if other == node)
            self._changed.notify_all()

    def trip_s(
        self, node: str, nbytes: int, count: int, timeout_s: float, back_bytes: int | None = None
    ) -> float:
        """Seconds until `count` echoes of `nbytes` each, sent together, are all back. Each brings back what it took along,
        or `back_bytes` instead, if that is given. Blocks. Raises Unavailable if the link is down, this agent stops, or
        the echoes are not back within `timeout_s`."""
        values = _payload(nbytes)
        with self._changed:
            tickets = {next(self._tickets) for _ in range(count)}
            self._awaited.update(dict.fromkeys(tickets, node))
        try:
            began_s = time.perf_counter()
            for ticket in sorted(tickets):
                self._send(node, Echo(ticket, back_bytes=back_bytes), values)
            self._wait(node, tickets, timeout_s)
            return time.perf_counter() - began_s
        finally:
            with self._changed:
                self._lost -= tickets
                for ticket in tickets:
                    self._awaited.pop(ticket, None)

    def _wait(self, node: str, tickets: set[int], timeout_s: float) -> None:
        def is_settled() -> bool:
            return self._stopped or not tickets.isdisjoint(self._lost) or tickets.isdisjoint(self._awaited)

        with self._changed:
            if not self._changed.wait_for(is_settled, timeout_s):
                raise Unavailable(f"{node} did not send an echo back within {timeout_s:.0f} s")
            if self._stopped:
                raise Unavailable("this agent stops")
            if not tickets.isdisjoint(self._lost):
                raise Unavailable(f"the link to {node} went down")

    def _answer(self) -> None:
        while (job := self._asked.get()) is not None:
            node, echo, values = job
            back = values if echo.back_bytes is None else _payload(echo.back_bytes)
            try:
                self._send(node, Echoed(echo.ticket), back)
            except Unavailable as error:
                log.info("no echo to %s: %s", node, error)


def _payload(nbytes: int) -> list[Any]:
    return [np.zeros(nbytes, np.uint8)] if nbytes else []
