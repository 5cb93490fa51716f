"""Card: measures this device's links for its card, and keeps the card up to date. Door: the clock; probe.py measures the
device, echoes.py makes round trips to other devices.

The device is probed at the start. A new member measures its links, one at a time so that two measurements do not share a
wire, and members that were there before leave it in peace meanwhile. When that is done, the member with the largest node id
measures how much all devices can send at once: if they share a wireless channel, a hub or a processor, that is less than
their links can carry one by one.

A link that is measured while one of its ends is starved of the CPU (starvation.py) appears slower than it is. The result is
told all the same, because no plan can be made without one, and the link is measured again when both ends have the CPU.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Protocol

from edgepart.agent.cluster.state.cards import (
    CrowdMeasurement,
    MeasuredDevice,
    is_clearly_different,
    with_verdicts,
    write_card,
)
from edgepart.agent.cluster.state.events import CardReady
from edgepart.agent.engines.verdicts import VerdictBook
from edgepart.agent.host.process_memory import give_back_all
from edgepart.agent.measure.probe import BORDER_BYTES, BURST, ECHO_BYTES, LinkProbe, echo_sizes
from edgepart.agent.wire.queries import EchoedTogether, EchoTogether
from edgepart.planner.devices.cluster import Device, Link
from edgepart.planner.errors import Unavailable

log = logging.getLogger(__name__)

FIRST_S = 2.0
"""Seconds that a device without other members waits before it tells its card."""
NEWCOMER_S = 30.0
"""Seconds after its start in which a device measures all its links itself; afterwards newcomers measure theirs to it."""
RETRY_S = 10.0
"""Seconds that a member has to measure its links; then a link that neither end has measured is measured by the end with the
larger node id, and tried again as often."""
QUIET_S = 1.0
"""Seconds without a change of members before all members echo together: by then the links are measured."""
ECHO_S = 18.0
"""Seconds that an echo may take: enough for three of 1 MiB there and back at 2 Mbit/s, sent together."""
PAUSE_S = 0.003
"""Seconds before an echo that goes alone. Between two exchanges of a plan, devices compute, so threads sleep and caches
hold other data; the pause makes the echo meet the same conditions."""
BURSTS = 5
"""Number of bursts of echoes without payload that measure a link; the median counts."""
LARGE_ECHOES_AT_ONCE = 3
"""Large echoes under way at once: devices that exchange borders load both directions, and both ends' processors."""
LINK_S = 0.5
"""Seconds after which only LEAST_ECHOES of each size are sent: on a slow link each takes so long that it is exact enough,
and a device that joins has a link with each member to measure."""
LEAST_ECHOES = 2
"""The least number of echoes of a size, and of each direction alone, of which the median counts."""
ONE_WAY_ECHOES = 5
"""Number of middle echoes in each direction alone; the medians count."""
LEAST_RING = 3
"""The least number of devices that echo together: for two, the measurement of their link is enough."""
RING_ROUND_S = 0.2
"""The approximate seconds that a round of echoing together takes if the links do not disturb each other."""
MOST_RING_ECHOES = 32
"""The most echoes that one device sends for a question of echoing together."""
NEIGHBOURS, SMALL_TIMES = 2, 16
"""Echoes without payload that a device has under way when all echo together (a device that shares a layer has two
neighbours), and how often it sends them."""
ROUNDS = 3
"""Number of rounds of echoing together; the median counts."""


class RoundTrips(Protocol):
    """The interface of agent/measure/echoes.py."""

    def trip_s(
        self, node: str, nbytes: int, count: int, timeout_s: float, back_bytes: int | None = None
    ) -> float: ...


class Questions(Protocol):
    """The interface of agent/net/rpc_client.py."""

    def ask(
        self, node: str, question: EchoTogether, *, timeout_s: float
    ) -> Awaitable[tuple[Any, memoryview]]: ...


class CardMeasurement:
    """Measures this device's links, and tells its card when it has changed."""

    def __init__(
        self,
        node: str,
        device: Device,
        echoes: RoundTrips,
        asks: Questions,
        ready: Callable[[CardReady], None],
        theirs: Callable[[str], MeasuredDevice | None],
        starved: Callable[[], Collection[str]] = tuple,
        one_way: Callable[[str], bool] = lambda node: False,
        kept: MeasuredDevice | None = None,
    ) -> None:
        """`theirs(node)` returns another member's measurements; None if that member has not told them yet. `starved`
        returns the members, which may include this device, on which measurements do not count now. `one_way(node)` says
        whether a member answers echoes whose payload goes one way only; with others, both directions count as equal.
        `kept` is what an earlier start measured: its links count until they are measured again, after NEWCOMER_S."""
        self._node = node
        self._measured = MeasuredDevice(device)
        self._echoes = echoes
        self._asks = asks
        self._ready = ready
        self._theirs = theirs
        self._starved = starved
        self._one_way = one_way
        self._hasty: set[str] = set()
        """Members whose links were measured while measurements did not count."""
        self._kept = {} if kept is None else {node: _both(kept, node) for node in kept.links}
        self._recalled: set[str] = set()
        """Members whose links are those that an earlier start measured."""
        self._told: MeasuredDevice | None = None
        self._present: set[str] = set()
        self._came_at: dict[str, float] = {}
        """The time since when each member has been present."""
        self._left_to_them: set[str] = set()
        """Members that came lately, whose links this device did not measure as they do so themselves."""
        self._changed = asyncio.Event()

    def members(self, nodes: Iterable[str]) -> None:
        """Take the node ids of the current members, without this device."""
        self._present, now = set(nodes), time.monotonic()
        self._came_at = {node: self._came_at.get(node, now) for node in self._present}
        self._changed.set()

    def device_measured(self, device: Device) -> None:
        """Take what the device was found to do now, and tell it if that is clearly different. Its memory and its engines
        stay as they were. Call it in the event loop's thread."""
        known = self._measured.device
        found = replace(device, memory_bytes=known.memory_bytes, engines=known.engines)
        self._measured = replace(self._measured, device=found)
        if self._told is not None:
            self._tell()

    def engines_judged(self, left_out: Mapping[str, str] | None, verdicts: VerdictBook) -> None:
        """Take what is known of engines: why some are left out (None: as before), and what trials have shown. It is told
        with the next card, or at once if a card was told already. Call it in the event loop's thread."""
        kept = self._measured.left_out if left_out is None else left_out
        measured = replace(self._measured, left_out=dict(kept))
        self._measured = with_verdicts(measured, verdicts.refusals(), verdicts.drifts())
        if self._told is not None:
            self._tell()

    async def run(self) -> None:
        """Measure until cancelled. The first card waits for the links that a newcomer measures, so that no plan is made
        with guessed ones; links that an earlier start measured are told at once."""
        newcomer_until = time.monotonic() + NEWCOMER_S
        await self._change(FIRST_S)
        while True:
            self._changed.clear()
            await self._measure_all(time.monotonic() < newcomer_until)
            await asyncio.to_thread(give_back_all)  # The large echoes took much memory.
            self._tell()
            if await self._all_have_measured():
                await self._measure_together()
                await asyncio.to_thread(give_back_all)
                self._tell()
            waiting = self._unmeasured_members() or self._hasty or self._recalled or self._is_to_crowd()
            await self._change(RETRY_S if waiting else None)

    async def _change(self, timeout_s: float | None) -> bool:
        """Wait until the members change or the time is up. Returns whether they changed."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._changed.wait()
        except TimeoutError:
            return self._changed.is_set()  # Both may happen at once.

    async def _all_have_measured(self) -> bool:
        """Wait for the members that came lately to measure their links. Returns whether this device lets all echo together
        now; not if the members change, or there are links to measure first, as some did not do so in time."""
        while self._is_to_crowd():
            if await self._change(QUIET_S):
                return False
            if late := (self._left_to_them - self._awaited()) & self._unmeasured_members():
                log.info("%s measured no links in time; this device measures them", ", ".join(sorted(late)))
                self._changed.set()
                return False
            if not self._awaited():
                return True
        return False

    def _unmeasured_members(self) -> set[str]:
        """Members whose link with this device was measured by neither end."""
        unknown = self._present - self._measured.links.keys()
        known = {node for node in unknown if self._node in getattr(self._theirs(node), "links", ())}
        return unknown - known

    def _awaited(self) -> set[str]:
        """Members that came lately and have not told yet what they measured."""
        began = time.monotonic() - RETRY_S
        return {node for node in self._unmeasured_members() if self._came_at[node] > began}

    def _is_disturbed(self, node: str) -> bool:
        """Whether measurements between that member and this device do not count now."""
        return not {node, self._node}.isdisjoint(self._starved())

    def _is_to_crowd(self) -> bool:
        """Whether this device has to measure how much all can send at once, and has not done so with all members."""
        everybody = self._present | {self._node}
        known = self._measured.together
        return (
            len(everybody) >= LEAST_RING
            and self._node == max(everybody)
            and (known is None or not everybody <= known.nodes)
        )

    async def _measure_all(self, newcomer: bool) -> None:
        links = {node: link for node, link in self._measured.links.items() if node in self._present}
        rates = {
            node: rate for node, rate in self._measured.back_bytes_per_s.items() if node in self._present
        }
        self._measured = replace(self._measured, links=links, back_bytes_per_s=rates)
        self._hasty &= links.keys()
        self._recalled &= links.keys()
        again = {node for node in self._hasty if not self._is_disturbed(node)}
        again |= set() if newcomer else self._recalled
        self._recall()
        # Who has told a card was there before, unless it is new itself.
        theirs = self._awaited() if self._told is not None and not newcomer else set()
        self._left_to_them = theirs
        for node in sorted(self._unmeasured_members() - theirs | again):
            if not newcomer and node > self._node and node not in again:
                continue
            try:
                link, back = await self.measure(node)
            except Unavailable as error:
                log.info("link to %s not measured: %s", node, error)
                continue
            log.info("link to %s: %s, from it: %s", node, link, back if back != link else "the same")
            self._hasty.discard(node)
            self._recalled.discard(node)
            if self._is_disturbed(node):
                self._hasty.add(node)
            self._measured = self._measured.with_link(node, link, back)

    def _recall(self) -> None:
        """Take over what was kept of links to members that were not measured since the start."""
        for node in self._present & self._kept.keys():
            link, back = self._kept.pop(node)
            if node not in self._measured.links:
                self._measured = self._measured.with_link(node, link, back)
                self._recalled.add(node)

    def _tell(self) -> None:
        if self._told is None or is_clearly_different(self._told, self._measured):
            self._told = self._measured
            self._ready(CardReady(write_card(self._measured)))

    async def measure(self, node: str) -> tuple[Link, Link]:
        """Measure the link to another end and the link from it: echoes without payload go one at a time and in bursts,
        middle ones one at a time, large ones LARGE_ECHOES_AT_ONCE together, and middle ones of one way last. After LINK_S
        there are fewer. Raises Unavailable if the other end does not answer."""
        probe, sent, until = LinkProbe(), Counter[int](), time.monotonic() + LINK_S
        await self._trip_s(node, 0)  # The first echo meets cold caches, and does not count.
        for _ in range(BURSTS):
            probe.add_burst(BURST, await self._trip_s(node, 0, BURST))
        for size in echo_sizes():
            if sent[size] >= LEAST_ECHOES and time.monotonic() >= until:
                continue
            sent[size] += 1
            await asyncio.sleep(PAUSE_S)
            if size == ECHO_BYTES:
                # An echo starts back when all of it has arrived: n together take as long as n + 1 in one direction.
                probe.add(
                    size * (LARGE_ECHOES_AT_ONCE + 1) // 2,
                    await self._trip_s(node, size, LARGE_ECHOES_AT_ONCE),
                )
            else:
                probe.add(size, await self._trip_s(node, size))
        for number in range(ONE_WAY_ECHOES if self._one_way(node) else 0):
            if number >= LEAST_ECHOES and time.monotonic() >= until:
                break
            await asyncio.sleep(PAUSE_S)
            probe.there_s.append(await self._trip_s(node, BORDER_BYTES, back_bytes=0))
            await asyncio.sleep(PAUSE_S)
            probe.back_s.append(await self._trip_s(node, 0, back_bytes=BORDER_BYTES))
        return probe.both()

    async def _trip_s(
        self, node: str, nbytes: int, count: int = 1, *, back_bytes: int | None = None
    ) -> float:
        """Seconds of a round trip. A thread measures it, because compute threads wait for transfers in the same way."""
        return await asyncio.to_thread(self._echoes.trip_s, node, nbytes, count, ECHO_S, back_bytes)

    # All at once

    async def _measure_together(self) -> None:
        """Let every member send echoes to the next one in a ring, all at the same time."""
        ring = sorted(self._present | {self._node})
        cards = [self._measured, *filter(None, map(self._theirs, self._present))]
        rates = [rate for card in cards for node in card.links for rate in card.rates(node)]
        count = int(RING_ROUND_S * min(rates, default=0.0) / (4 * BORDER_BYTES))
        count = max(2, min(MOST_RING_ECHOES, count))
        try:
            large = [await self._round_s(ring, BORDER_BYTES, count, 1) for _ in range(ROUNDS)]
            small = [await self._round_s(ring, 0, NEIGHBOURS, SMALL_TIMES) for _ in range(ROUNDS)]
        except Unavailable as error:
            log.info("what all can send at once is not measured: %s", error)
            return
        nbytes = 2 * BORDER_BYTES * count * len(ring)
        together = CrowdMeasurement(
            frozenset(ring), nbytes / median(large), median(small) / (2 * SMALL_TIMES)
        )
        log.info("%d devices at once: %s", len(ring), together)
        self._measured = replace(self._measured, together=together)

    async def _round_s(self, ring: Sequence[str], nbytes: int, count: int, times: int) -> float:
        """Seconds that the slowest member took. Raises Unavailable if one does not answer."""
        after = {node: ring[(place + 1) % len(ring)] for place, node in enumerate(ring)}

        async def one(node: str) -> EchoedTogether:
            question = EchoTogether(0, after[node], nbytes, count, times)
            if node == self._node:
                return await self.answer(question)
            answer, _ = await self._asks.ask(node, question, timeout_s=ECHO_S + 2)
            if not isinstance(answer, EchoedTogether):
                raise Unavailable(f"{node} answers something else than it was asked")
            return answer

        answers = await asyncio.gather(*map(one, ring))
        for node, answer in zip(ring, answers, strict=True):
            if answer.error or not answer.seconds > 0:
                raise Unavailable(f"{node}: {answer.error or 'took no time'}")
        return max(answer.seconds for answer in answers)

    async def answer(self, question: EchoTogether) -> EchoedTogether:
        """Send the echoes that another member, or this one, asks for, and answer how long they took."""
        nbytes, count, times = question.nbytes, question.count, question.times
        if not 0 <= nbytes <= ECHO_BYTES or min(count, times) < 1 or count * times > MOST_RING_ECHOES:
            why = f"{times} times {count} echoes of {nbytes} bytes are not what an agent sends to measure"
            return EchoedTogether(question.ticket, 0.0, why)
        seconds = 0.0
        try:
            for _ in range(times):
                seconds += await self._trip_s(question.node, nbytes, count)
        except Unavailable as error:
            return EchoedTogether(question.ticket, 0.0, str(error))
        return EchoedTogether(question.ticket, seconds)


def _both(measured: MeasuredDevice, node: str) -> tuple[Link, Link]:
    """The link to another end, and the link from it."""
    link, (_, back_bytes_per_s) = measured.links[node], measured.rates(node)
    return link, replace(link, bytes_per_s=back_bytes_per_s)
