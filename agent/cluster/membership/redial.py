"""Whom to dial when: a rule without I/O. Hints come in (mDNS, --peer, the saved list, what other members
see), Connect effects go out, with growing waits. Who is in is membership's business, not this module's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from edgepart.agent.cluster.state.events import Connect

MAX_TARGETS = 1024
"""Hints are untrusted: more targets than this are not kept."""
MAX_ADDRESSES = 16
"""Per target; the newest stay."""


@dataclass(frozen=True, slots=True)
class DialTiming:
    """How eagerly to dial: sooner finds a device sooner, later spares a box that is switched off."""

    first_s: float = 0.2
    most_s: float = 1.5
    """Waits double from `first_s` to this; after a cut is mended the link is back this late at most."""
    answer_s: float = 5.0
    """With no answer to a Connect for so long, another one is sent."""
    turn_s: float = 0.3
    """The device with the larger id waits so long for the other one to dial, which spares double links."""
    keep_s: float = 600.0
    """A target that nobody mentioned for so long is forgotten."""


@dataclass(slots=True)
class RedialTarget:
    node: str
    addresses: tuple[str, ...]
    lasting: bool
    mentioned_at: float
    due_at: float
    """Inf while its link is up."""
    failures: int = 0
    reached: str = ""
    """Of a static peer: the node that answered there."""


class Dialing:
    """Targets by node id, or by address for static peers whose id is not known."""

    def __init__(self, node: str, timing: DialTiming) -> None:
        self._node = node
        self._timing = timing
        self._targets: dict[str, RedialTarget] = {}
        self._unnamed: dict[str, RedialTarget] = {}
        """Those of them that are known by an address alone."""
        self._not_before: dict[str, float] = {}
        """By node that was refused."""
        self._soonest = math.inf
        """No target is due before this."""

    def put_off(self, node: str, until: float, now: float) -> None:
        """Calling it is of no use before then."""
        self._not_before = {n: at for n, at in self._not_before.items() if at > now}
        if len(self._not_before) < MAX_TARGETS:
            self._not_before[node] = until

    def hint(self, node: str, addresses: Iterable[str], now: float, *, lasting: bool = False) -> None:
        """Someone says that a device is there."""
        if node == self._node:
            return
        for key, known in [(node, tuple(addresses))] if node else [(a, (a,)) for a in addresses]:
            target = self._targets.get(key)
            if target is None:
                if not known or (len(self._targets) >= MAX_TARGETS and not lasting):
                    continue
                due_at = now if node > self._node or not node else now + self._timing.turn_s
                self._targets[key] = RedialTarget(node, known[:MAX_ADDRESSES], lasting, now, due_at)
                self._soonest = min(self._soonest, due_at)
                if not node:
                    self._unnamed[key] = self._targets[key]
                continue
            target.mentioned_at = now
            target.lasting |= lasting
            news = not set(known) <= set(target.addresses)
            target.addresses = tuple(dict.fromkeys(known + target.addresses))[:MAX_ADDRESSES]
            if news and target.due_at != math.inf:
                self._due(target, min(target.due_at, now))

    def moved(self, node: str, addresses: tuple[str, ...], now: float) -> None:
        """It says itself, over a link, where it is reached: what was known before is over."""
        self.hint(node, addresses, now)
        if addresses and (target := self._targets.get(node)) is not None:
            target.addresses = addresses[:MAX_ADDRESSES]

    def _due(self, target: RedialTarget, at: float) -> None:
        target.due_at = at
        self._soonest = min(self._soonest, at)

    def dial_soon(self, node: str, now: float) -> None:
        """There is a fresh reason to try (its link broke, another member sees it)."""
        if target := self._targets.get(node):
            target.failures = 0
            target.mentioned_at = now
            turn = 0.0 if node > self._node else self._timing.turn_s
            self._due(target, min(target.due_at, now + turn))

    def knows(self, node: str) -> bool:
        return node in self._targets

    def linked(self, node: str, via: str) -> None:
        if target := self._targets.get(node):
            target.due_at, target.failures = math.inf, 0
        if static := self._targets.get(via):
            static.due_at, static.failures, static.reached = math.inf, 0, node
        if node == self._node:  # somebody gave us our own address as a peer
            self._drop(via)

    def unlinked(self, node: str, now: float) -> None:
        for target in [self._targets.get(node), *self._unnamed.values()]:
            if target is not None and node in (target.node, target.reached):
                self._due(target, min(target.due_at, now + self._timing.first_s))
        self.dial_soon(node, now)

    def failed(self, node: str, addresses: tuple[str, ...], now: float) -> None:
        for key in (node,) if node else addresses:
            if (target := self._targets.get(key)) and target.due_at != math.inf:
                wait = self._timing.first_s * 2 ** min(target.failures, 16)
                target.failures += 1
                self._due(target, now + min(wait, self._timing.most_s))

    def forget(self, node: str) -> None:
        """It left on purpose: no more dialling until someone mentions it again."""
        if (target := self._targets.get(node)) and not target.lasting:
            self._drop(node)

    def _drop(self, key: str) -> None:
        self._targets.pop(key, None)
        self._unnamed.pop(key, None)

    def wake_at(self) -> float:
        """Not later than the next one is due."""
        return self._soonest

    def wake(self, now: float) -> list[Connect]:
        if now < self._soonest:
            return []
        effects = []
        for key, target in list(self._targets.items()):
            if target.due_at > now:
                continue
            if not target.lasting and now - target.mentioned_at > self._timing.keep_s:
                self._drop(key)
                continue
            put_off_to = self._not_before.get(target.node or target.reached, now)
            if put_off_to > now:
                target.due_at = put_off_to
                continue
            target.due_at = now + self._timing.answer_s
            effects.append(Connect(target.node, target.addresses))
        self._soonest = min((target.due_at for target in self._targets.values()), default=math.inf)
        return effects
