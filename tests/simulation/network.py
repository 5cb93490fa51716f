"""The network between simulated boxes: virtual time, seeded delays, and links that break like real ones.

A link is up at both ends, or over. Frames of one of its channels arrive in order, and nothing is lost while
it lasts; while a cable, or one direction of it, is cut, frames wait. A killed process closes its links. A box
without power does not, and a peer that goes on sending learns of it when the box is up again. With `lossy`,
control messages vanish, come twice or overtake each other. No real connection does that, but the rules
survive it all the same.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

CONTROL, DATA = 0, 1

Deliver = Callable[[str, str, Any], None]
"""Arguments: receiver, sender, message."""


class Pipe:
    """One direction of a link."""

    __slots__ = ("arrives_at", "held", "link", "source", "target", "up")

    def __init__(self, link: Link, source: str, target: str) -> None:
        self.link, self.source, self.target = link, source, target
        self.arrives_at = [0.0, 0.0]
        """Arrival time of each channel's last frame."""
        self.held: list[tuple[int, Any]] = []
        """Frames sent while the cable was cut."""
        self.up = False
        """Whether the source was told that it can send."""


class Link:
    __slots__ = ("deaf", "ended", "ends", "over", "pipes")

    def __init__(self, a: str, b: str) -> None:
        self.ends = (a, b)
        self.pipes = {a: Pipe(self, a, b), b: Pipe(self, b, a)}
        self.ended = self.over = False
        """`over`: not even frames in transit arrive."""
        self.deaf = ""
        """The end that lost its power."""


class Target(Protocol):
    """The receiver of a message."""

    node: str
    life: int


Arrival = tuple[Link, Any, int]
"""Link, target, and the target's life at the time of sending."""
TOGETHER = 16
"""Targets that a spread message reaches at the same moment, which is faster to simulate."""


class Network:
    """Virtual time, links, and cut cables."""

    def __init__(self, seed: int, *, lossy: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.lossy = lossy
        self.messages = 0
        """Messages that were sent, on both channels."""
        self.queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._links: dict[str, dict[str, Link]] = {}
        self._cut: set[tuple[str, str]] = set()
        self._partings: list[Callable[[], None]] = []
        """Notices of ended links that wait for a cable."""

    def takes(self, seed: int, lossy: float) -> None:
        """Draw from that seed from now on."""
        self.random.seed(seed)
        self.lossy = lossy

    # Time

    def at(self, time: float, do: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self.queue, (time, self._count, do, arguments))

    def step(self) -> None:
        """Let the next event happen."""
        self.now, _, do, arguments = heapq.heappop(self.queue)
        do(*arguments)

    def run_until(self, end: float) -> None:
        queue = self.queue
        while queue and queue[0][0] <= end:
            self.now, _, do, arguments = heapq.heappop(queue)
            do(*arguments)
        self.now = max(end, self.now)

    # Cables

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Drop everything from the first to the second node of each pair from now on."""
        self._cut.update(pairs)

    def heal(self) -> None:
        """Restore all cables; frames that waited for them arrive."""
        self._cut.clear()
        partings, self._partings = self._partings, []
        for links in list(self._links.values()):
            for link in list(links.values()):
                for pipe in link.pipes.values():
                    held, pipe.held = pipe.held, []
                    for channel, arrive in held:
                        self._carry(pipe, channel, arrive)
        for tell in partings:
            self.at(self.now + self.random.uniform(0.001, 0.3), tell)

    def passes(self, a: str, b: str) -> bool:
        return (a, b) not in self._cut

    def reach_each_other(self, a: str, b: str) -> bool:
        return (a, b) not in self._cut and (b, a) not in self._cut

    @property
    def whole(self) -> bool:
        return not self._cut

    # Links

    def link(self, a: str, b: str) -> Link | None:
        return self._links.get(a, {}).get(b)

    def links(self, a: str) -> list[Link]:
        return list(self._links.get(a, {}).values())

    def make(self, a: str, b: str) -> Link:
        link = Link(a, b)
        self._links.setdefault(a, {})[b] = link
        self._links.setdefault(b, {})[a] = link
        return link

    def end(self, link: Link, tell: dict[str, Callable[[], None]], *, flushed: bool = True) -> None:
        """End a link and notify its ends; an end behind a cut cable is notified when the cable is restored.

        `flushed`: frames in transit arrive before.
        """
        if link.ended:
            return
        a, b = link.ends
        link.ended, link.over = True, not flushed
        for node, other in ((a, b), (b, a)):
            if self._links.get(node, {}).get(other) is link:
                del self._links[node][other]
        for node, told in tell.items():
            source = b if node == a else a
            pipe = link.pipes[source]
            if not self.passes(source, node):
                self._partings.append(told)
                continue
            after = max(self.now, *pipe.arrives_at) if flushed else self.now
            self.at(after + self.random.uniform(0.0002, 0.005), told)
        for pipe in link.pipes.values():
            pipe.held = []

    def send(self, a: str, b: str, channel: int, arrive: Callable[..., None], *arguments: Any) -> bool:
        """Send a message and return whether there is a link to send on."""
        link = self._links.get(a, {}).get(b)
        if link is None:
            return False
        pipe = link.pipes[a]
        if not pipe.up or link.deaf:
            return pipe.up
        self.messages += 1
        self._lose_or_send(pipe, channel, (arrive, arguments))
        return True

    def spread(
        self, a: str, targets: Sequence[Target], arrive: Callable[[list[Arrival], Any], None], what: Any
    ) -> None:
        """Send the same message to many: it reaches TOGETHER of them at a time, if the order of frames allows it."""
        links = self._links.get(a, {})
        cut, lossy = self._cut, self.lossy
        group: list[Arrival] = []
        at = 0.0
        for target in targets:
            link = links.get(target.node)
            if link is None or link.deaf or not (pipe := link.pipes[a]).up:
                continue
            self.messages += 1
            if not group:
                at = self.now + 0.0002 + 0.0048 * self.random.random()
            if lossy or pipe.arrives_at[CONTROL] > at or (cut and (a, target.node) in cut):
                self._lose_or_send(pipe, CONTROL, (arrive, ([(link, target, target.life)], what)))
                continue
            pipe.arrives_at[CONTROL] = at
            group.append((link, target, target.life))
            if len(group) == TOGETHER:
                self.at(at, arrive, group, what)
                group = []
        if group:
            self.at(at, arrive, group, what)

    def _lose_or_send(self, pipe: Pipe, channel: int, parcel: Any) -> None:
        if self.lossy and channel == CONTROL:
            if self.random.random() < self.lossy:
                return
            if self.random.random() < self.lossy:
                self._send(pipe, channel, parcel)
        self._send(pipe, channel, parcel)

    def _send(self, pipe: Pipe, channel: int, parcel: Any) -> None:
        if self._cut and (pipe.source, pipe.target) in self._cut:
            pipe.held.append((channel, parcel))
        else:
            self._carry(pipe, channel, parcel)

    def _carry(self, pipe: Pipe, channel: int, parcel: Any) -> None:
        at = self.now + 0.0002 + 0.0048 * self.random.random()
        if self.lossy and channel == CONTROL:
            if self.random.random() < self.lossy:
                at += 0.5  # so that it arrives after later ones
        elif at < pipe.arrives_at[channel]:
            at = pipe.arrives_at[channel]
        pipe.arrives_at[channel] = at
        self._count += 1
        heapq.heappush(self.queue, (at, self._count, self._arrive, (pipe.link, parcel)))

    @staticmethod
    def _arrive(link: Link, parcel: tuple[Callable[..., None], tuple[Any, ...]]) -> None:
        if not link.over:
            parcel[0](*parcel[1])
