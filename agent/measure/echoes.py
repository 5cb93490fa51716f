"""Echoes: round trips to other agents on the way that tensors go. A door: threads and the clock.

An echo is packed, written, read, unpacked and handed from thread to thread as a transfer of a request is, at both ends: the
planner wants to know what such a transfer takes, not what the cable could do.
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
"""(node, message, values): packs the values and queues them. Raises Unavailable where there is no link."""


class Echoes:
    """Asks for echoes and answers them. Thread-safe; `stop` is due."""

    def __init__(self, send: SendValues) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._tickets = itertools.count(1)
        self._awaited: dict[int, str] = {}
        """Node by ticket, of echoes that are not back."""
        self._lost: set[int] = set()
        """Tickets of those that will not come back."""
        self._stopped = False
        self._asked: SimpleQueue[tuple[str, int, Sequence[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._answer, name="echoes", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Whoever waits is told; nothing is answered any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._asked.put(None)
        self._thread.join(5.0)

    def came(self, node: str, message: Echo | Echoed, values: Sequence[Any]) -> None:
        """An echo from another agent, or one of ours that is back; in a reader's thread."""
        if isinstance(message, Echo):
            self._asked.put((node, message.ticket, values))
            return
        with self._changed:
            if self._awaited.get(message.ticket) == node:
                del self._awaited[message.ticket]
                self._changed.notify_all()

    def lost(self, node: str) -> None:
        """The link to `node` is down."""
        with self._changed:
            self._lost.update(ticket for ticket, other in self._awaited.items() if other == node)
            self._changed.notify_all()

    def trip_s(self, node: str, nbytes: int, count: int, timeout_s: float) -> float:
        """Seconds until `count` echoes of `nbytes` each, sent together, are all back. Blocks. Unavailable where the link is
        down, this agent stops, or they are not back within `timeout_s`."""
        values = [np.zeros(nbytes, np.uint8)] if nbytes else []
        with self._changed:
            tickets = {next(self._tickets) for _ in range(count)}
            self._awaited.update(dict.fromkeys(tickets, node))
        try:
            began_s = time.perf_counter()
            for ticket in sorted(tickets):
                self._send(node, Echo(ticket), values)
            self._wait(node, tickets, timeout_s)
            return time.perf_counter() - began_s
        finally:
            with self._changed:
                self._lost -= tickets
                for ticket in tickets:
                    self._awaited.pop(ticket, None)

    def _wait(self, node: str, tickets: set[int], timeout_s: float) -> None:
        def settled() -> bool:
            return self._stopped or not tickets.isdisjoint(self._lost) or tickets.isdisjoint(self._awaited)

        with self._changed:
            if not self._changed.wait_for(settled, timeout_s):
                raise Unavailable(f"{node} did not send an echo back within {timeout_s:.0f} s")
            if self._stopped:
                raise Unavailable("this agent stops")
            if not tickets.isdisjoint(self._lost):
                raise Unavailable(f"the link to {node} went down")

    def _answer(self) -> None:
        while (job := self._asked.get()) is not None:
            node, ticket, values = job
            try:
                self._send(node, Echoed(ticket), values)
            except Unavailable as error:
                log.info("no echo to %s: %s", node, error)
