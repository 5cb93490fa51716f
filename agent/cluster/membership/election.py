"""Election: who leads. Rules, without I/O and without votes.

A leader stays leader while it is a member, so a newcomer changes nothing. If nobody leads, the member with
the smallest node id takes over: every member can tell from its view who that is. Each leadership has a
**term**, larger than any seen anywhere and on disk before its first message. If two leaders meet, because a
split heals, the larger term wins. Plans are soft state, so no majority is needed: both sides of a split may
have a leader, each with its own term.

A disk may be slow. So a device that is to lead asks for its term to be written and goes on as before. It
leads when `kept` says that the term is on disk, if it is still its turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from hashlib import sha256

from edgepart.agent.cluster.state.events import Effect, LeaderChanged, MemberDistrusted, PersistTerm
from edgepart.agent.wire.control import Heartbeat
from edgepart.agent.wire.inference import NODE_BITS, Epoch

MAX_TERM = 2**53
"""The largest integer that JSON readers take exactly; a larger term is not believed."""
FREE_ROUNDS = 1 << 26
"""No honest round is larger before 2097, as a round stands for a minute at least (`term_beyond_any`). Up to
here any term is believed, since a device that was off for years, or that lost its own term, has to learn it
at once."""
MAX_LEAP_ROUNDS = 1 << 20
"""Above FREE_ROUNDS, terms may rise by this many rounds at once, and by one more round each second: using up
all rounds would take an attacker fifteen years."""


@dataclass(frozen=True, slots=True)
class ElectionTiming:
    """The waits before a device leads: longer ones avoid needless leaderships, shorter ones serve sooner."""

    start_s: float = 1.5
    """The time that a device looks for others after its start before it leads alone. In the simulation 1,000 agents
    find each other in 0.6 s."""
    meeting_s: float = 4.0
    """The same while a device that it knows of has neither been reached nor found unreachable. A busy box takes seconds for
    its first link, and by then it would lead with a term that the leader of all others has to give way to, and know nothing
    of their plans. With a longer time, one whose neighbours stay silent serves later after a power cut."""
    hold_s: float = 0.3
    """The time after a device came in during which nobody takes over, because the members' views may differ for a
    moment."""


def next_term(seen: int, who: str) -> int:
    """A term larger than `seen` that only the device `who` (in hex) can make.

    >>> next_term(0, "00000000000000ff") == (1 << NODE_BITS) + 0xFF
    True
    >>> next_term(next_term(0, "ff"), "0a") > next_term(0, "ff")
    True
    """
    return ((seen >> NODE_BITS) + 1 << NODE_BITS) + int(who, 16) % (1 << NODE_BITS)


MIN_CLOCK_S = 1.6e9
"""A time in 2020, in seconds since 1970. A clock that shows less was never set."""


def term_beyond_any(now: float) -> int:
    """A term larger than all that were ever used, for a device that lost its own. `now`: seconds since 1970.

    The round of such a term is the number of minutes since 1970: rounds count leaderships, and there were
    fewer of them than minutes. Raises ValueError if the clock was not set.

    >>> term_round(term_beyond_any(1.8e9))
    30000000
    """
    if not MIN_CLOCK_S < now < 60 * (MAX_TERM >> NODE_BITS):
        raise ValueError(f"this device's clock shows {now:.0f} s since 1970")
    return int(now // 60) << NODE_BITS


class TermLimiter:
    """Limits how fast the largest term may grow by what members say."""

    def __init__(self, now: float) -> None:
        self._left = float(MAX_LEAP_ROUNDS)
        self._at = now

    def allows(self, term: int, seen: int, now: float) -> bool:
        """Whether `term` is believed if `seen` is the largest so far; if so, it counts as seen from now
        on."""
        rounds = term_round(term) - max(term_round(seen), FREE_ROUNDS)
        if not 0 <= term < MAX_TERM:
            return False
        self._left = min(self._left + max(0.0, now - self._at), float(MAX_LEAP_ROUNDS))
        self._at = now
        if rounds > self._left:
            return False
        self._left -= max(0, rounds)
        return True


def term_round(term: int) -> int:
    """The round of a term, which is the number that people see."""
    return term >> NODE_BITS


def readable_epoch(epoch: Epoch) -> Epoch:
    """The epoch as people see it, without the low digits of its term, which say who made the term."""
    return Epoch(term_round(epoch.term), epoch.number)


class Election:
    """One device's part in the election. `leader` and `term` are those that it follows, its own if it leads;
    "" and 0 while nobody leads."""

    def __init__(
        self,
        node: str,
        term: int,
        now: float,
        timing: ElectionTiming | None = None,
        boot: str = "",
        meeting: Callable[[], bool] = lambda: False,
    ) -> None:
        """`boot`: the id of this start; two starts make different terms. `meeting` returns whether this device may be about
        to meet others that it knows of."""
        self.node = node
        self._who = sha256(f"{node} {boot}".encode()).hexdigest()[:16] if boot else node
        self.seen_term = term
        """The largest term that any device has used, as far as this device knows."""
        self._asked_term = self._kept_term = term
        """The largest term that was handed out to be written, and the largest term on disk."""
        self._own_term = 0
        """The term to lead in next; nobody hears of it before it is on disk."""
        self.leader = ""
        self.term = 0
        self._timing = timing or ElectionTiming()
        self._alive: frozenset[str] = frozenset()
        self._has_smallest_id = True
        """Whether no other member has a smaller node id."""
        self._leaps = TermLimiter(now)
        self._unreported_doubts: list[MemberDistrusted] = []
        """Doubts that `wake` has to report."""
        self._refused: dict[str, Heartbeat] = {}
        """The last heartbeat of each member whose term is not believed."""
        self._claims: dict[str, Heartbeat] = {}
        """The last believed heartbeat of each member. `seen_term` covers all their terms after each
        decision."""
        self._best_claim: tuple[int, str] | None = (0, "")
        """Term and node of the member with the largest term among those that claim to lead; (0, "") if none
        does, None if it has to be looked up."""
        self._not_before = now + self._timing.start_s
        self._meeting = meeting
        self._met_by = now + self._timing.meeting_s
        """The time from which on it leads alone, whoever may still answer."""
        self._decided_at = now
        self._undecided = True
        """Whether anything but time has changed since the last decision."""

    @property
    def leading(self) -> bool:
        return self.leader == self.node

    def wake_at(self) -> float:
        """The time from which on the passing of time alone may change who leads; inf if it cannot."""
        due = (at for at in (self._not_before, self._met_by) if at > self._decided_at)
        return math.inf if self.leader else min(due, default=math.inf)

    def members_changed(self, alive: Collection[str], now: float) -> list[Effect]:
        """Take the members as they are now. `alive`: the other members, suspects included."""
        before = self._alive
        self._alive = frozenset(alive)
        self._has_smallest_id = not self._alive or self.node < min(self._alive)
        if not before <= self._alive:
            self._refused = {node: beat for node, beat in self._refused.items() if node in self._alive}
            self._claims = {node: claim for node, claim in self._claims.items() if node in self._alive}
            self._best_claim = None
        if self._alive - before:
            self._not_before = now + self._timing.hold_s
        return list(self._decide(now))

    def heard(self, node: str, beat: Heartbeat, now: float) -> list[Effect]:
        """Take a member's heartbeat, which says whom the member follows. If its term is not believed, `wake`
        reports that."""
        known, told = self._claims.get(node), max(beat.term, beat.seen_term)
        if node not in self._alive or known == beat or self._refused.get(node) == beat:
            return []
        if min(beat.term, beat.seen_term) < 0 or not self._leaps.allows(told, self.seen_term, now):
            self._refused[node] = beat
            why = f"it reports term {told}, which is too far beyond {self.seen_term}, the largest known here"
            self._unreported_doubts.append(MemberDistrusted(node, why))
            return []
        self._refused.pop(node, None)
        self._claims[node] = beat
        if beat.leader == node or (known is not None and known.leader == node):
            self._best_claim = None
        return list(self._decide(now, told))

    def claim(self, node: str) -> Heartbeat | None:
        """The last believed heartbeat of a member."""
        return self._claims.get(node)

    def restarted(self, node: str) -> None:
        """Drop a member's claim: the member is another process now, so the old one's claim is void."""
        self._claims.pop(node, None)
        self._undecided, self._best_claim = True, None

    def kept(self, term: int, now: float) -> list[Effect]:
        """Note that this term or a larger one is on disk."""
        self._kept_term = max(self._kept_term, term)
        return list(self._decide(now))

    def wake(self, now: float) -> list[Effect]:
        doubts, self._unreported_doubts = self._unreported_doubts, []
        due = self._undecided or now >= self.wake_at() or self._waits_to_meet(self._decided_at)
        return [*doubts, *self._decide(now)] if due else [*doubts]

    def _read_claim(self) -> tuple[int, str]:
        if self._best_claim is None:
            claims = self._claims.items()
            self._best_claim = max(
                ((c.term, node) for node, c in claims if c.leader == node), default=(0, "")
            )
        return self._best_claim

    def _decide(self, now: float, told_term: int = 0) -> Iterator[Effect]:
        """Decide whom to follow. `told_term`: the largest term that the newest heartbeat knows."""
        self._decided_at, self._undecided = now, False
        seen, best = max(self.seen_term, told_term), self._read_claim()
        if self.leading and best < (self.term, self.node):
            if seen > self.term:  # A larger term is in use: ours must be larger still.
                yield from self._lead(seen)
            return
        self.seen_term = seen
        yield from self._persist(seen)
        if best[1]:
            yield from self._follow(best[1], best[0])
        elif self._may_lead(now):
            yield from self._lead(seen)
        else:
            yield from self._follow("", 0)

    def _may_lead(self, now: float) -> bool:
        """Whether this device may take over: it has the smallest node id, and no member still hears a leader
        whom this device does not hear."""
        if (
            now < self._not_before
            or not self._has_smallest_id
            or (self._waits_to_meet(now) and self._meeting())
        ):
            return False
        return all(claim.leader in ("", self.node) for claim in self._claims.values())

    def _waits_to_meet(self, now: float) -> bool:
        """Whether it is alone, and leads only if nobody may be about to answer."""
        return not self.leader and not self._alive and now < self._met_by

    def _lead(self, seen: int) -> Iterator[Effect]:
        self.seen_term = seen
        if self._own_term <= seen:
            self._own_term = next_term(seen, self._who)
        yield from self._persist(self._own_term)
        if self._own_term <= self._kept_term:
            self.seen_term = self._own_term
            yield from self._follow(self.node, self._own_term)
        elif not self.leading:
            yield from self._follow("", 0)

    def _persist(self, term: int) -> Iterator[Effect]:
        if term > self._asked_term:
            self._asked_term = term
            yield PersistTerm(term)

    def _follow(self, leader: str, term: int) -> Iterator[Effect]:
        if (leader, term) != (self.leader, self.term):
            self.leader, self.term = leader, term
            yield LeaderChanged(leader, term)
