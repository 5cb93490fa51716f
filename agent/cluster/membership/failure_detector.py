"""How failures are detected: the times, and how long one other device may be silent before it is suspect. Rules; time is
an argument.

A quiet link shows soon that a device is gone, a noisy one needs patience: the bound is twice the longest gap of late
between two frames from that device, within stated limits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edgepart.agent.cluster.membership.flapping import FlapTiming
from edgepart.agent.cluster.membership.redial import DialTiming


@dataclass(frozen=True, slots=True)
class SilenceTiming:
    """Seconds. Shorter notices earlier and errs more often."""

    least_s: float = 1.75
    """No device is suspect sooner: a stall of a second, which any small box has, together with a heartbeat's wait."""
    first_s: float = 2.0
    """The bound until gaps were seen."""
    most_s: float = 6.0
    """However noisy its link is; and the bound for a device that has said that it is starved of the CPU."""
    forget: float = 0.02
    """Seconds by which the longest gap shrinks in each second: a gap of 2 s is forgotten in a minute and a half. More
    forgets sooner."""

    def __post_init__(self) -> None:
        if not 0 < self.least_s <= self.first_s <= self.most_s:
            raise ValueError("timing: 0 < least_s <= first_s <= most_s must hold")


@dataclass(frozen=True, slots=True)
class DetectorTiming:
    """Seconds of failure detection: shorter notices earlier and errs more often."""

    heartbeat_s: float = 0.5
    hello_s: float = 2.0
    """The time for a first Hello on a new link."""
    fresh_s: float = 1.2
    """Only a device that was heard within this time is vouched for."""
    confirm_s: float = 0.3
    """With nobody to ask, or no answer, a suspect is dead after this."""
    isolated_s: float = 1.0
    """The same when all of several links broke together: the fault is likely here, so links get time to
    return."""
    ask_s: float = 0.1
    """Others are asked again about a suspect this often."""
    view_s: float = 5.0
    """Views are sent this often even when nothing changed, in large clusters seldomer."""
    view_each_s: float = 0.4
    """For each member, time between two such views at least: what they take of the network grows no further then."""
    view_gap_s: float = 0.1
    """Between two views whatever changed: many devices that come or go together make one view, not one each."""
    view_gap_each_s: float = 0.01
    """For each member, time between two views at least, whatever changed: each change makes as many views as the square of
    the members. Only the first of many changes is told at once."""
    view_wait_each_s: float = 0.002
    """For each other device, time from a change to the view that shows it: what changes with it is in the same view."""
    late_s: float = 0.2
    """Woken later than this, a device doubts itself: time that it slept through is no silence of others."""
    most_slack_s: float = 2.0
    """By so much at most own lateness widens how long others may be silent."""
    starved_s: float = 30.0
    """For so long a device is taken to be starved that said so; it says so again long before."""
    starved_most_s: float = 300.0
    """After so long without a word of its end it has lasted, whatever is said: nobody can have plans judged by nothing."""
    forget_s: float = 600.0
    """The dead and the left are remembered for so long."""
    silence: SilenceTiming = field(default_factory=SilenceTiming)
    flaps: FlapTiming = field(default_factory=FlapTiming)
    dial: DialTiming = field(default_factory=DialTiming)

    def __post_init__(self) -> None:
        if not self.heartbeat_s < self.fresh_s < self.silence.least_s:
            raise ValueError("timing: heartbeat_s < fresh_s < silence.least_s must hold")


class Gaps:
    """Those between frames from one device."""

    __slots__ = ("bound_s", "longest_s", "timing")

    def __init__(self, timing: SilenceTiming) -> None:
        self.timing = timing
        self.longest_s = timing.first_s / 2
        self.bound_s = timing.first_s
        """How long it may be silent now."""

    def note(self, gap_s: float) -> None:
        """A frame came, so long after the one before."""
        timing = self.timing
        longest_s = self.longest_s - timing.forget * gap_s
        self.longest_s = longest_s = gap_s if gap_s > longest_s else longest_s
        self.bound_s = min(max(2 * longest_s, timing.least_s), timing.most_s)
