"""Measuring: keeps this device's card true. Door: probes (agent/probe.py) and echoes over the links.

The device is probed at the start; a link is measured once it is up, by the end with the larger node id, one link at a
time so that two measurements do not share a wire.
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
from edgepart.agent.probe import LinkProbe, echo_sizes
from edgepart.planner.cluster import Device, Link
from edgepart.planner.errors import Unavailable

log = logging.getLogger(__name__)

ECHO_S = 10.0
"""How long one echo may take: 1 MiB there and back at 2 Mbit/s."""


class Measuring:
    """This device's card and the links on it."""

    def __init__(self, node: str, device: Device, asks: Asks, ready: Callable[[CardReady], None]) -> None:
        self._node = node
        self._measured = Measured(device)
        self._asks = asks
        self._ready = ready
        self._told: Measured | None = None
        self._present: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def measured(self) -> Measured:
        return self._measured

    def members(self, nodes: Iterable[str]) -> None:
        """Who is in now, besides this device."""
        self._present = set(nodes)
        links = {node: link for node, link in self._measured.links.items() if node in self._present}
        self._measured = replace(self._measured, links=links)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._measure_all(), name="measure links")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _measure_all(self) -> None:
        skipped: set[str] = set()
        while due := sorted(self._ours() - self._measured.links.keys() - skipped):
            try:
                link = await self.measure(due[0])
            except Unavailable as error:
                log.info("link to %s not measured: %s", due[0], error)
                skipped.add(due[0])
                continue
            if due[0] in self._present:
                links = {**self._measured.links, due[0]: link}
                self._measured = replace(self._measured, links=links)
        self._tell()

    def _ours(self) -> set[str]:
        return {node for node in self._present if node < self._node}

    def _tell(self) -> None:
        if self._told is None or differs(self._told, self._measured):
            self._told = self._measured
            self._ready(CardReady(write(self._measured)))

    async def measure(self, node: str) -> Link:
        """Echoes without payload, then large ones, one at a time. Unavailable where the other end does not answer."""
        probe = LinkProbe()
        await self._echo(node, 0)  # the first one meets cold caches
        for size in echo_sizes():
            probe.add(size, await self._echo(node, size))
        return probe.link()

    async def _echo(self, node: str, nbytes: int) -> float:
        began = time.perf_counter()
        await self._asks.ask(node, Echo(0), [bytes(nbytes)] if nbytes else [], timeout_s=ECHO_S)
        return time.perf_counter() - began
