"""Withdrawal: when an agent that was told to stop may go. Rules, without I/O.

Told to stop, it says so and goes on serving. The leader has the others take over; then nothing new is started on plans that
need this device, and what was started ends. Nobody waits because it goes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_S = 8.0
"""The time after which it leaves anyway: some plans cannot do without it. A longer one loses less, and whoever stops
the agent waits for so long."""
QUIET_S = 0.3
"""The time for which nothing may have been asked of it: a gateway may hear of the other plan later than it did."""


@dataclass
class Withdrawal:
    """The withdrawal of one agent."""

    began_at: float
    _asked_at: float | None = field(default=None)
    """When it was last seen to be of use."""

    def may_go(self, now: float, *, needed: bool, busy: bool) -> bool:
        """`needed`: whether a plan that serves uses it; `busy`: whether it computes for anybody.

        >>> Withdrawal(5.0).may_go(5.0, needed=False, busy=False)
        True
        """
        if needed or busy:
            self._asked_at = now
        quiet = self._asked_at is None or now >= self._asked_at + QUIET_S
        return quiet or self.in_vain(now)

    def in_vain(self, now: float) -> bool:
        """Whether it has waited long enough."""
        return now >= self.began_at + MOST_S
