"""Events of the cluster for people: what happened, when, and why. Facts, and the log that keeps the last ones."""

from __future__ import annotations

from dataclasses import dataclass

from edgepart.agent.chronicle.numbered_log import NumberedLog

MOST_EVENTS = 500
"""The most events that an agent keeps, of about 1 kB each at most. With more, who comes late sees more of the past."""
MOST_LETTERS = 600
"""The longest text and the longest reason. Both may hold what other members said."""

JOINED, RETURNED, SUSPECTED, LOST, LEFT = "joined", "returned", "suspected", "lost", "left"
LEADER = "leader"
DEPLOYED, UNDEPLOYED, SET_ASIDE, STANDING, FAILED = (
    "deployed",
    "undeployed",
    "set aside",
    "standing",
    "failed",
)
PLAN = "plan"
"""Another plan serves a deployment."""
REFUSED_PLAN = "plan refused"

CANDIDATE = "candidate"
"""A candidate was made, has another share, cannot answer, or is gone."""

KINDS = (
    JOINED,
    RETURNED,
    SUSPECTED,
    LOST,
    LEFT,
    LEADER,
    DEPLOYED,
    UNDEPLOYED,
    SET_ASIDE,
    STANDING,
    FAILED,
    PLAN,
    REFUSED_PLAN,
    CANDIDATE,
)


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """One event, as this agent saw it. Other agents may have seen it a moment earlier or later."""

    at_s: float
    """When, in seconds since 1970 by this device's clock."""
    kind: str
    """One of KINDS."""
    subject: str
    """The name of the device or the deployment that it is about."""
    text: str
    """What happened, as a sentence without its full stop."""
    why: str = ""
    """The reason, as far as this agent knows it; "" if it does not."""


class EventLog(NumberedLog[ClusterEvent]):
    """The last events of one agent."""

    def __init__(self) -> None:
        super().__init__(MOST_EVENTS)

    def tell(self, at_s: float, kind: str, subject: str, text: str, why: str = "") -> None:
        self.add(ClusterEvent(at_s, kind, subject, _shorten(text), _shorten(why)))


def _shorten(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"
