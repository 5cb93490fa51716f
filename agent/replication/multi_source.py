"""Gathering: one blob from several sources at once. Door: the event loop; who asks them is given.

Each source has a few parts under way; what arrives out of order waits in memory until it is its turn on the disk, and
nobody goes far ahead. A source that fails hands its parts to the others; what is on disk is not asked for again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from edgepart.agent.storage.store import Partial
from edgepart.planner.errors import PeerError, Unavailable

AT_ONCE = 2
"""Parts that one source has under way: while one is written, the next one travels."""
AHEAD = 8
"""Parts between what is on disk and the last one asked for. More rides out slow sources, at the cost of memory."""

Ask = Callable[[str, int, int], Awaitable[memoryview]]
"""(node, offset, length): the bytes there, or fewer. Unavailable."""


class Gathering:
    """The state of fetching one blob, for the event loop's thread."""

    def __init__(self, partial: Partial, ask: Ask, part_bytes: int) -> None:
        self.refusals: dict[str, str] = {}
        """By source, why it is not asked any more."""
        self._partial = partial
        self._ask = ask
        self._part_bytes = part_bytes
        self._next = partial.arrived
        """Nothing from there on was asked for yet."""
        self._written = partial.arrived
        self._again: deque[tuple[int, int]] = deque()
        """Offsets and lengths that a source owes."""
        self._early: dict[int, memoryview] = {}
        self._writing = asyncio.Lock()
        self._moved = asyncio.Event()
        self._whole = False

    async def run(self, nodes: Sequence[str]) -> bool:
        """Until it is whole, or no source is left; whether it is. PeerError: it was whole, and has another digest.
        OSError: it cannot be written."""
        work = [asyncio.ensure_future(self._work(node)) for _ in range(AT_ONCE) for node in nodes]
        try:
            while work and not self._whole:
                done, rest = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
                work = list(rest)
                for one in done:
                    one.result()
        finally:
            for one in work:
                one.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        return self._whole

    async def _work(self, node: str) -> None:
        while node not in self.refusals and (part := await self._take(node)) is not None:
            offset, length = part
            try:
                data = await self._ask(node, offset, length)
                self._check(data, offset, length)
            except (Unavailable, PeerError) as error:
                self.refusals[node] = str(error)
                self._owe(offset, length)
                return
            if data.nbytes < length:
                self._owe(offset + data.nbytes, length - data.nbytes)
            self._early[offset] = data
            await self._write()

    async def _take(self, node: str) -> tuple[int, int] | None:
        """What to ask for next; None where there is nothing to come any more, or the source has failed."""
        while not self._whole and node not in self.refusals:
            if self._again:
                return self._again.popleft()
            if self._next < min(self._partial.nbytes, self._written + AHEAD * self._part_bytes):
                length = min(self._part_bytes, self._partial.nbytes - self._next)
                self._next += length
                return self._next - length, length
            self._moved.clear()
            await self._moved.wait()
        return None

    def _owe(self, offset: int, length: int) -> None:
        """The first of them first: others wait for it."""
        self._again = deque(sorted([*self._again, (offset, length)]))
        self._moved.set()

    def _check(self, data: memoryview, offset: int, length: int) -> None:
        if not data.nbytes:
            raise PeerError(f"an empty part at {offset} of {self._partial.nbytes}")
        if data.nbytes > length:
            raise PeerError(f"{data.nbytes} bytes do not go on from {offset}: {length} were asked for")

    async def _write(self) -> None:
        """What is next on disk, as far as it is there."""
        async with self._writing:
            while (data := self._early.pop(self._written, None)) is not None:
                self._whole = await asyncio.to_thread(self._partial.append, self._written, data)
                self._written += data.nbytes
        self._moved.set()
