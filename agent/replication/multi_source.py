"""Gathering: fetches one blob from several sources at once. Door: the event loop; the function that asks a source is given.

A few parts are requested from each source at a time. Parts that arrive out of order wait in memory until they can be
written, and no source gets far ahead. The parts of a source that fails are requested from others; bytes on disk are never
requested again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from edgepart.agent.storage.store import Partial
from edgepart.planner.errors import PeerError, Unavailable

AT_ONCE = 2
"""The number of parts that are requested from one source at once: while one is written, the next one travels."""
AHEAD = 8
"""The most parts between the bytes on disk and the last one requested. With more, slow sources delay others less, at the
cost of memory."""

Ask = Callable[[str, int, int], Awaitable[memoryview]]
"""(node, offset, length). Returns the bytes at the offset, or fewer. Raises Unavailable."""


Wrote = Callable[[int], None]
"""Called with the number of the blob's bytes that are on disk."""


def ignore_written(nbytes: int) -> None:
    """Takes a number of bytes that nobody counts."""


class Gathering:
    """The state of fetching one blob. It belongs to the event loop's thread."""

    def __init__(self, partial: Partial, ask: Ask, part_bytes: int, wrote: Wrote = ignore_written) -> None:
        self.refusals: dict[str, str] = {}
        """Maps each source that is no longer asked to the reason."""
        self._partial = partial
        self._ask = ask
        self._part_bytes = part_bytes
        self._wrote = wrote
        self._next = partial.arrived
        """The offset from which on nothing was requested yet."""
        self._written = partial.arrived
        self._again: deque[tuple[int, int]] = deque()
        """The offsets and lengths of parts that a source did not deliver, and that have to be requested again."""
        self._early: dict[int, memoryview] = {}
        self._writing = asyncio.Lock()
        self._moved = asyncio.Event()
        self._whole = False

    async def run(self, nodes: Sequence[str]) -> bool:
        """Fetch until the blob is complete or no source is left, and return whether it is complete. Raises PeerError if
        the complete blob has a wrong digest, and OSError if it cannot be written."""
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
        """Return the offset and length to request next; None if nothing more is to be fetched, or the source has failed."""
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
        """Note a part to be requested again. Parts are sorted by offset, because later parts wait for earlier ones."""
        self._again = deque(sorted([*self._again, (offset, length)]))
        self._moved.set()

    def _check(self, data: memoryview, offset: int, length: int) -> None:
        if not data.nbytes:
            raise PeerError(f"an empty part at {offset} of {self._partial.nbytes}")
        if data.nbytes > length:
            raise PeerError(f"{data.nbytes} bytes do not go on from {offset}: {length} were asked for")

    async def _write(self) -> None:
        """Write the parts that are next on disk, as far as they have arrived."""
        async with self._writing:
            while (data := self._early.pop(self._written, None)) is not None:
                self._whole = await asyncio.to_thread(self._partial.append, self._written, data)
                self._written += data.nbytes
                self._wrote(self._written)
        self._moved.set()
