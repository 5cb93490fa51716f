"""Dialling: which device to dial when. Rules, without I/O. Hints come in (from mDNS, --peer, the saved list
and members' views), and Connect effects go out, with growing waits. membership.py decides who is a member.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from edgepart.agent.cluster.state.events import Connect

MAX_TARGETS = 1024
"""The most targets that are kept, because hints are untrusted."""
MAX_ADDRESSES = 16
"""The most addresses that are kept for one target; the newest stay."""


@dataclass(frozen=True, slots=True)
class DialTiming:
    """How eagerly to dial: shorter waits find a device sooner, longer ones spare a box that is switched
    off."""

    first_s: float = 0.2
    most_s: float = 1.5
    """Waits double from `first_s` up to this, so a link is back at most this long after a cut is mended."""
    answer_s: float = 5.0
    """If a Connect gets no answer for this long, another one is sent."""
    turn_s: float = 0.3
    """The device with the larger id waits this long for the other one to dial, which avoids double links."""
    keep_s: float = 600.0
    """A target that nobody mentioned for this long is forgotten; devices that died are forgotten after the
    same time (`DetectorTiming.forget_s`)."""


@dataclass(slots=True)
class RedialTarget:
    node: str
    addresses: tuple[str, ...]
    lasting: bool
    mentioned_at: float
    due_at: float
    """The time to dial next; inf while the link is up."""
    failures: int = 0
    reached: str = ""
    """The node that answered at a static peer's address."""


class Redialer:
    """The devices to dial, by node id, or by address for static peers whose id is not known."""

    def __init__(self, node: str, timing: DialTiming) -> None:
        self._node = node
        self._timing = timing
        self._targets: dict[str, RedialTarget] = {}
        self._unnamed: dict[str, RedialTarget] = {}
        """The targets that are known by an address alone."""
        self._not_before: dict[str, float] = {}
        """The time before which each refused node is not dialled."""
        self._next_due_at = math.inf
        """No target is due before this."""

    def put_off(self, node: str, until: float, now: float) -> None:
        """Do not dial the node before `until`."""
        self._not_before = {n: at for n, at in self._not_before.items() if at > now}
        if len(self._not_before) < MAX_TARGETS:
            self._not_before[node] = until

    def hint(self, node: str, addresses: Iterable[str], now: float, *, lasting: bool = False) -> None:
        """Take a hint that a device is at these addresses."""
        if node == self._node:
            return
        for key, known in [(node, tuple(addresses))] if node else [(a, (a,)) for a in addresses]:
            target = self._targets.get(key)
            if target is None:
                if not known or (len(self._targets) >= MAX_TARGETS and not lasting):
                    continue
                due_at = now if node > self._node or not node else now + self._timing.turn_s
                self._targets[key] = RedialTarget(node, known[:MAX_ADDRESSES], lasting, now, due_at)
                self._next_due_at = min(self._next_due_at, due_at)
                if not node:
                    self._unnamed[key] = self._targets[key]
                continue
            target.mentioned_at = now
            target.lasting |= lasting
            news = not set(known) <= set(target.addresses)
            target.addresses = tuple(dict.fromkeys(known + target.addresses))[:MAX_ADDRESSES]
            if news and target.due_at != math.inf:
                self._set_due(target, min(target.due_at, now))

    def moved(self, node: str, addresses: tuple[str, ...], now: float) -> None:
        """Take the addresses that a device sent over a link, and drop those known before."""
        self.hint(node, addresses, now)
        if addresses and (target := self._targets.get(node)) is not None:
            target.addresses = addresses[:MAX_ADDRESSES]

    def _set_due(self, target: RedialTarget, at: float) -> None:
        target.due_at = at
        self._next_due_at = min(self._next_due_at, at)

    def dial_soon(self, node: str, now: float) -> None:
        """Dial soon, for a fresh reason: the link broke, or another member sees the device."""
        if target := self._targets.get(node):
            target.failures = 0
            target.mentioned_at = now
            turn = 0.0 if node > self._node else self._timing.turn_s
            self._set_due(target, min(target.due_at, now + turn))

    def knows(self, node: str) -> bool:
        return node in self._targets

    def is_trying(self) -> bool:
        """Whether a device is being dialled of which no answer and no failure is known yet."""
        return any(target.failures == 0 and target.due_at != math.inf for target in self._targets.values())

    def linked(self, node: str, via: str) -> None:
        if target := self._targets.get(node):
            target.due_at, target.failures = math.inf, 0
        if static := self._targets.get(via):
            static.due_at, static.failures, static.reached = math.inf, 0, node
        if node == self._node:  # Our own address was given as a peer.
            self._drop(via)

    def unlinked(self, node: str, now: float) -> None:
        for target in [self._targets.get(node), *self._unnamed.values()]:
            if target is not None and node in (target.node, target.reached):
                self._set_due(target, min(target.due_at, now + self._timing.first_s))
        self.dial_soon(node, now)

    def failed(self, node: str, addresses: tuple[str, ...], now: float) -> None:
        for key in (node,) if node else addresses:
            if (target := self._targets.get(key)) and target.due_at != math.inf:
                wait = self._timing.first_s * 2 ** min(target.failures, 16)
                target.failures += 1
                self._set_due(target, now + min(wait, self._timing.most_s))

    def forget(self, node: str) -> None:
        """Stop dialling a device that left on purpose, until somebody mentions it again."""
        if (target := self._targets.get(node)) and not target.lasting:
            self._drop(node)

    def _drop(self, key: str) -> None:
        self._targets.pop(key, None)
        self._unnamed.pop(key, None)

    def wake_at(self) -> float:
        """The time when the next target is due, or an earlier time."""
        return self._next_due_at

    def wake(self, now: float) -> list[Connect]:
        if now < self._next_due_at:
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
        self._next_due_at = min((target.due_at for target in self._targets.values()), default=math.inf)
        return effects
