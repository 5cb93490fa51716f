"""Measuring: keeps this device's card true. Door: probes (agent/probe.py) and echoes over the links.

The device is probed at the start; a link is measured by whoever comes new, one link at a time so that two measurements
do not share a wire.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from edgepart.agent.asks import Asks
from edgepart.agent.cards import Measured, differs, write
from edgepart.agent.events import CardReady
from edgepart.agent.exchange import Echo
from edgepart.agent.memory import give_back
from edgepart.agent.probe import BURST, ECHO_BYTES, LinkProbe, echo_sizes
from edgepart.planner.cluster import Device, Link
from edgepart.planner.errors import Unavailable

log = logging.getLogger(__name__)

FIRST_S = 2.0
"""How long a device that sees nobody waits before it tells its card."""
NEWCOMER_S = 30.0
"""For so long after its start a device measures all its links itself; afterwards newcomers do it for it."""
LATER_S = 10.0
"""A link that neither end has measured is tried again after this, by the end with the larger node id."""
ECHO_S = 18.0
"""How long an echo may take: three of 1 MiB there and back at 2 Mbit/s, sent together."""
BURSTS = 4
TOGETHER = 3
"""Large echoes under way at once: devices that exchange borders load both directions, and both ends' processors."""


class Measuring:
    """This device's card and the links on it."""

    def __init__(
        self,
        node: str,
        device: Device,
        asks: Asks,
        ready: Callable[[CardReady], None],
        theirs: Callable[[str], Measured | None],
    ) -> None:
        """`theirs` gives what another member measured, as far as it has told."""
        self._node = node
        self._measured = Measured(device)
        self._asks = asks
        self._ready = ready
        self._theirs = theirs
        self._told: Measured | None = None
        self._present: set[str] = set()
        self._changed = asyncio.Event()

    def members(self, nodes: Iterable[str]) -> None:
        """Who is in now, besides this device."""
        self._present = set(nodes)
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled. The first card waits for the links that a newcomer measures, so that nobody plans with
        guessed ones."""
        newcomer_until = time.monotonic() + NEWCOMER_S
        await self._change(FIRST_S)
        while True:
            self._changed.clear()
            await self._measure_all(time.monotonic() < newcomer_until)
            give_back()  # what the large echoes took
            self._tell()
            await self._change(LATER_S if self._missing() else None)

    async def _change(self, timeout_s: float | None) -> None:
        """Until the members change, or the time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _missing(self) -> set[str]:
        """Members to whom neither end has measured the link."""
        unknown = self._present - self._measured.links.keys()
        known = {node for node in unknown if self._node in getattr(self._theirs(node), "links", ())}
        return unknown - known

    async def _measure_all(self, newcomer: bool) -> None:
        links = {node: link for node, link in self._measured.links.items() if node in self._present}
        self._measured = replace(self._measured, links=links)
        for node in sorted(self._missing()):
            if not newcomer and node > self._node:
                continue
            try:
                link = await self.measure(node)
            except Unavailable as error:
                log.info("link to %s not measured: %s", node, error)
                continue
            log.info("link to %s: %s", node, link)
            self._measured = replace(self._measured, links={**self._measured.links, node: link})

    def _tell(self) -> None:
        if self._told is None or differs(self._told, self._measured):
            self._told = self._measured
            self._ready(CardReady(write(self._measured)))

    async def measure(self, node: str) -> Link:
        """Echoes without payload one at a time and in bursts, middle ones one at a time, large ones `TOGETHER`.
        Unavailable where the other end does not answer."""
        probe = LinkProbe()
        await self._echo(node, 0)  # the first one meets cold caches
        for _ in range(BURSTS):
            probe.add_burst(BURST, await self._echoes(node, 0, BURST))
        for size in echo_sizes():
            if size == ECHO_BYTES:
                # The first is there before its echo begins: the last one's way back makes one more than they are.
                probe.add(size * (TOGETHER + 1) // 2, await self._echoes(node, size, TOGETHER))
            else:
                probe.add(size, await self._echo(node, size))
        return probe.link()

    async def _echoes(self, node: str, nbytes: int, count: int) -> float:
        """Seconds until all are back."""
        began = time.perf_counter()
        await asyncio.gather(*(self._echo(node, nbytes) for _ in range(count)))
        return time.perf_counter() - began

    async def _echo(self, node: str, nbytes: int) -> float:
        began = time.perf_counter()
        await self._asks.ask(node, Echo(0), [bytes(nbytes)] if nbytes else [], timeout_s=ECHO_S)
        return time.perf_counter() - began
