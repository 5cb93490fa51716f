"""Members: which agents a client knows, which one it asks next, and when it gives up. Rules: no door; times are arguments,
in seconds of any clock that only grows.

A request goes to the member that answered last. Where that one fails, each other member is asked once, without a pause;
that is a round. Rounds go on, with pauses that grow, until the request's time is up. Only if no member has answered this
client yet, three rounds without anybody are enough: then it is the address that is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

AGAIN_S = 0.1
"""The pause after the first round in seconds; it grows by as much with each round."""
LONGEST_PAUSE_S = 1.0
"""The longest pause, also if an agent asks for a longer one: other members may be ready sooner."""
STRANGE_ROUNDS = 3
"""The number of rounds after which a client gives up that no member has ever answered."""
MOST_PATIENCE = 5
"""The most that `RequestTries.patience` grows to."""
LEARN_S = 10.0
"""How long a client trusts what it knows about the members. With more, it asks less often; with less, it knows members
that came sooner."""


class KnownMembers:
    """The members that a client knows, in the order in which it asks them."""

    def __init__(self, given: Iterable[str]) -> None:
        """`given` are URLs that the user named; they are never forgotten."""
        self._given = tuple(dict.fromkeys(given))
        self.urls: tuple[str, ...] = self._given
        """All URLs; the first is that of the member in use."""
        self.met = False
        """Whether any member has answered."""
        self._learn_at_s = math.inf

    @property
    def current(self) -> str:
        return self.urls[0]

    def learn(self, found: Iterable[str], now: float) -> None:
        """Takes over who the members are. Members that are no more are forgotten; the order of the others stays."""
        there = dict.fromkeys((*self._given, *found))
        self.urls = (*(url for url in self.urls if url in there), *(u for u in there if u not in self.urls))
        self._learn_at_s = now + LEARN_S

    def add(self, found: Iterable[str]) -> None:
        """Adds members that may be there. They are kept until the members are learned the next time."""
        self.urls = tuple(dict.fromkeys((*self.urls, *found)))

    def answered(self, url: str) -> None:
        self.met = True

    def failed(self, url: str, now: float) -> None:
        """Asks this member last from now on, unless another request has already seen to that."""
        if self.current == url:
            self.urls = (*self.urls[1:], url)
        if self._learn_at_s < math.inf:
            self._learn_at_s = min(self._learn_at_s, now)

    def must_learn(self, now: float) -> bool:
        """Whether it is time to learn who the members are. The caller does so, and then it is not time again for a while.
        A client that has never learned them does not begin by itself."""
        due = now >= self._learn_at_s
        if due:
            self._learn_at_s = now + LEARN_S
        return due


@dataclass
class RequestTries:
    """The tries of one request. After each failure it says how long to wait before `url` is asked, in seconds, or None if
    the request is over."""

    members: KnownMembers
    until_s: float
    """When the request's time is up."""
    failures: int = 0
    """Number of tries that failed."""
    _asked: set[str] = field(default_factory=set)
    """The members that were asked in this round."""
    _rounds: int = 0
    """Number of rounds that ended."""
    _pause_s: float = 0.0
    """The pause for which a member asked in this round."""
    _reached: bool = False
    """Whether a member was reached in this round, and had no time."""

    @property
    def url(self) -> str:
        """The member to ask now."""
        return next((url for url in self.members.urls if url not in self._asked), self.members.current)

    @property
    def patience(self) -> int:
        """How often the usual time a member may take for a sign of life: it grows with each round, for slow networks."""
        return min(self._rounds + 1, MOST_PATIENCE)

    def lost(self, url: str, now: float) -> float | None:
        """The member cannot be reached, or was lost before its answer came."""
        self._fail(url, now)
        return self._go_on(now)

    def busy(self, url: str, retry_after_s: float, now: float) -> float | None:
        """The member cannot serve the request now."""
        self.members.answered(url)
        self._reached = True
        self._pause_s = max(self._pause_s, retry_after_s)
        self._fail(url, now)
        return self._go_on(now)

    def refused(self, url: str, now: float) -> float | None:
        """The member refuses what another may grant: it does not know the deployment, or the credential. That is final if
        nothing has failed before. A member that takes over may just have started, so others are asked as well."""
        self.members.answered(url)
        if not self.failures:
            return None
        self._fail(url, now)
        return None if self._nobody_is_left and not self._reached else self._go_on(now)

    @property
    def _nobody_is_left(self) -> bool:
        return self._asked >= set(self.members.urls)

    def _fail(self, url: str, now: float) -> None:
        self.failures += 1
        self._asked.add(url)
        self.members.failed(url, now)

    def _go_on(self, now: float) -> float | None:
        if not self._nobody_is_left:
            return 0.0 if now < self.until_s else None
        self._rounds += 1
        if not self.members.met and self._rounds >= STRANGE_ROUNDS:
            return None
        pause_s = min(max(self._pause_s, AGAIN_S * self._rounds), LONGEST_PAUSE_S)
        self._asked.clear()
        self._pause_s, self._reached = 0.0, False
        return pause_s if now + pause_s < self.until_s else None
