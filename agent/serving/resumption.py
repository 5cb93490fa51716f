"""Resumptions: asks devices to get the states of a sequence from those that have them, before the gateway would read all of
it again. Door: the event loop and its clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from edgepart.agent.wire.inference import Epoch, ResumeSequence, SequenceResumed
from edgepart.planner.errors import ClusterError

log = logging.getLogger(__name__)

RESUMED_WITHIN_S = 10.0
"""The longest time, in seconds, that devices may take. It is enough for a gigabyte at 1 Gbit/s; with more, a text pauses
longer when a device that was asked says nothing."""

Resumes = Callable[[str, str], tuple[str, Epoch, Collection[str]] | None]
"""Requester.resumes(deployment, sequence)."""


@dataclass(eq=False)
class _UnderWay:
    """A sequence that devices are asked to go on with."""

    deployment: str
    epoch: Epoch
    missing: set[str]
    position: int
    done: asyncio.Future[None]


class Resumptions:
    """The sequences of this gateway that are about to go on by another plan. For the event loop's thread, except where a
    method says otherwise."""

    def __init__(
        self,
        send: Callable[[str, ResumeSequence, tuple[()]], None],
        resumes: Resumes,
        nodes: Callable[[str], Collection[str]],
    ) -> None:
        """`nodes(deployment)` are the nodes that may have states by any of its plans."""
        self._send = send
        self._resumes = resumes
        self._nodes = nodes
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[str, _UnderWay] = {}

    async def resume(self, deployment: str, sequence: str, revision: int, position: int, since: int) -> int:
        """Let the devices that make the next step have the states of the sequence, which has come to `position` here; up to
        `since` it is what it was one revision before. Returns the position up to which all of them have them; 0 if the
        sequence has to be made again."""
        found = self._resumes(deployment, sequence)
        if found is None or not position or not revision:
            return 0
        program, epoch, nodes = found
        sources = tuple(sorted(self._nodes(deployment)))
        asked = ResumeSequence(program, epoch, sequence, revision, position, sources, since)
        one = _UnderWay(program, epoch, set(nodes), position, self._loop.create_future())
        self._under_way[sequence] = one
        began_s = self._loop.time()
        try:
            for node in sorted(nodes):
                self._send(node, asked, ())
            async with asyncio.timeout(RESUMED_WITHIN_S):
                await one.done
        except ClusterError as error:
            log.info("sequence %s is made again: %s", sequence, error)
            return 0
        except TimeoutError:
            log.info(
                "sequence %s is made again: %s did not say what they have", sequence, sorted(one.missing)
            )
            return 0
        finally:
            del self._under_way[sequence]
        took_s = self._loop.time() - began_s
        log.info(
            "devices have sequence %s up to %d of %d after %.2f s", sequence, one.position, position, took_s
        )
        return one.position

    def deliver(self, message: SequenceResumed, source: str) -> None:
        """Take a device's answer. For any thread."""
        self._loop.call_soon_threadsafe(self._take, message, source)

    def lost(self, node: str) -> None:
        """Handle a broken connection with a node, which answers nothing. For any thread."""
        self._loop.call_soon_threadsafe(self._lose, node)

    def _lose(self, node: str) -> None:
        for one in [one for one in self._under_way.values() if node in one.missing]:
            self._note(one, node, 0)

    def _take(self, message: SequenceResumed, source: str) -> None:
        one = self._under_way.get(message.sequence)
        same = one is not None and (one.deployment, one.epoch) == (message.deployment, message.epoch)
        if one is not None and same and source in one.missing:
            self._note(one, source, message.position)

    def _note(self, one: _UnderWay, node: str, position: int) -> None:
        one.missing.discard(node)
        one.position = min(one.position, position)
        if not one.done.done() and (not one.missing or not one.position):
            one.done.set_result(None)
