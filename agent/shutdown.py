"""Withdrawal: when an agent that was told to stop may end. Rules, without I/O.

The agent announces that it leaves, and goes on serving. The leader has the other devices take over; then no
request starts on a plan that needs this device, and the requests that have started end. So no request waits
because the agent stops.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_S = 8.0
"""The time after which the agent ends anyway, because some plans cannot do without it. With a longer time
fewer requests are lost, but stopping the agent takes longer."""
QUIET_S = 0.3
"""How long the device must have been neither needed nor busy, because a gateway may hear of the new plan
later than this device did."""


@dataclass
class Withdrawal:
    """The withdrawal of one agent."""

    began_at: float
    _asked_at: float | None = field(default=None)
    """The time when the agent was last seen to be needed or busy; None if it never was."""

    def may_go(self, now: float, *, needed: bool, busy: bool) -> bool:
        """Whether the agent may end. `needed`: whether a serving plan uses this device; `busy`: whether it
        computes for any request.

        >>> Withdrawal(5.0).may_go(5.0, needed=False, busy=False)
        True
        """
        if needed or busy:
            self._asked_at = now
        quiet = self._asked_at is None or now >= self._asked_at + QUIET_S
        return quiet or self.in_vain(now)

    def in_vain(self, now: float) -> bool:
        """Whether the agent has waited for MOST_S."""
        return now >= self.began_at + MOST_S
