"""Who leads: the rules, without I/O and without votes.

A leader stays leader while it is in, so a joiner changes nothing. Where nobody leads, the member with the
smallest node id takes over: every member can tell who that is from its view. Each leadership has a **term**,
larger than any seen anywhere and persisted before its first message; where two leaders meet (a split heals)
the larger term wins. Plans are soft state, so no majority is needed: both sides of a split may have a leader,
each with its own term.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from hashlib import sha256

from edgepart.agent.control import Heartbeat
from edgepart.agent.events import Effect, LeaderChanged, PersistTerm
from edgepart.agent.messages import NODE_BITS

MAX_TERM = 2**53
"""What JSON readers take as an exact integer; a larger one is not believed."""


@dataclass(frozen=True, slots=True)
class ElectionTiming:
    """Longer waits avoid needless leaderships, shorter ones serve sooner."""

    start_s: float = 1.5
    """After its start a device waits so long for others to be found, before it leads alone."""
    hold_s: float = 0.3
    """After somebody came in, views may differ for a moment: so long nobody takes over."""


def next_term(seen: int, who: str) -> int:
    """A term larger than `seen` that only `who` (in hex) can make.

    >>> next_term(0, "00000000000000ff") == (1 << NODE_BITS) + 0xFF
    True
    >>> next_term(next_term(0, "ff"), "0a") > next_term(0, "ff")
    True
    """
    return ((seen >> NODE_BITS) + 1 << NODE_BITS) + int(who, 16) % (1 << NODE_BITS)


EARLIEST_S = 1.6e9
"""In 2020: a clock that shows less was never set."""


def term_beyond_any(now: float) -> int:
    """A term larger than all that were ever used, for a device that lost its own. `now`: seconds since 1970.

    Rounds count leaderships, and there are fewer of them than minutes. ValueError where the clock was not set.

    >>> term_round(term_beyond_any(1.8e9))
    30000000
    """
    if not EARLIEST_S < now < 60 * (MAX_TERM >> NODE_BITS):
        raise ValueError(f"this device's clock shows {now:.0f} s since 1970")
    return int(now // 60) << NODE_BITS


def term_round(term: int) -> int:
    """A term as people want to read it."""
    return term >> NODE_BITS


class Election:
    """One device's part in it. `leader` and `term` are whom it follows, itself included; "" and 0 while
    nobody."""

    def __init__(
        self, node: str, term: int, now: float, timing: ElectionTiming | None = None, boot: str = ""
    ) -> None:
        """`boot`: of this start; two starts make different terms."""
        self.node = node
        self._who = sha256(f"{node} {boot}".encode()).hexdigest()[:16] if boot else node
        self.seen_term = term
        """Largest term seen anywhere, persisted."""
        self.leader = ""
        self.term = 0
        self._timing = timing or ElectionTiming()
        self._alive: frozenset[str] = frozenset()
        self._first = True
        """Whether no other member has a smaller node id."""
        self._claims: dict[str, Heartbeat] = {}
        """All their terms are known to `seen_term` once it was decided."""
        self._best: tuple[int, str] | None = (0, "")
        """Term and node of the one with the largest term that claims to lead; None: to be looked up."""
        self._not_before = now + self._timing.start_s
        self._decided_at = now
        self._undecided = True
        """Whether anything but time has changed since."""

    @property
    def leading(self) -> bool:
        return self.leader == self.node

    def wake_at(self) -> float:
        """When time alone may change who leads."""
        return self._not_before if not self.leader and self._not_before > self._decided_at else math.inf

    def members_changed(self, alive: Collection[str], now: float) -> list[Effect]:
        """`alive`: the other members, suspects included."""
        before = self._alive
        self._alive = frozenset(alive)
        self._first = not self._alive or self.node < min(self._alive)
        if not before <= self._alive:
            self._claims = {node: claim for node, claim in self._claims.items() if node in self._alive}
            self._best = None
        if self._alive - before:
            self._not_before = now + self._timing.hold_s
        return list(self._decide(now))

    def heard(self, node: str, beat: Heartbeat, now: float) -> list[Effect]:
        """A member's heartbeat says whom it follows."""
        if node not in self._alive or not 0 <= max(beat.term, beat.seen_term) < MAX_TERM:
            return []
        known = self._claims.get(node)
        if known == beat:
            return []
        self._claims[node] = beat
        if beat.leader == node or (known is not None and known.leader == node):
            self._best = None
        return list(self._decide(now, max(beat.term, beat.seen_term)))

    def claim(self, node: str) -> Heartbeat | None:
        """The last heartbeat of a member."""
        return self._claims.get(node)

    def restarted(self, node: str) -> None:
        """That member is another process now: what the old one claimed is void."""
        self._claims.pop(node, None)
        self._undecided, self._best = True, None

    def wake(self, now: float) -> list[Effect]:
        return list(self._decide(now)) if self._undecided or now >= self.wake_at() else []

    def _claimed(self) -> tuple[int, str]:
        if self._best is None:
            claims = self._claims.items()
            self._best = max(((c.term, node) for node, c in claims if c.leader == node), default=(0, ""))
        return self._best

    def _decide(self, now: float, told_term: int = 0) -> Iterator[Effect]:
        """`told_term`: the largest that the newest heartbeat knows."""
        self._decided_at, self._undecided = now, False
        seen, best = max(self.seen_term, told_term), self._claimed()
        if self.leading and best < (self.term, self.node):
            if seen > self.term:  # a term that we did not know was used before: ours must be larger
                yield from self._lead(seen)
            return
        if seen > self.seen_term:
            self.seen_term = seen
            yield PersistTerm(seen)
        if best[1]:
            yield from self._follow(best[1], best[0])
        elif self._may_lead(now):
            yield from self._lead(seen)
        else:
            yield from self._follow("", 0)

    def _may_lead(self, now: float) -> bool:
        """It is our turn if we are first, unless a member still hears a leader whom we do not hear."""
        if now < self._not_before or not self._first:
            return False
        return all(claim.leader in ("", self.node) for claim in self._claims.values())

    def _lead(self, seen: int) -> Iterator[Effect]:
        self.seen_term = next_term(seen, self._who)
        yield PersistTerm(self.seen_term)
        yield from self._follow(self.node, self.seen_term)

    def _follow(self, leader: str, term: int) -> Iterator[Effect]:
        if (leader, term) != (self.leader, self.term):
            self.leader, self.term = leader, term
            yield LeaderChanged(leader, term)
