"""Failure detection: its times, and how long another device may be silent before it is suspect. Rules; time
is an argument.

A quiet link shows soon that a device is gone, a noisy one needs patience. So the bound is twice the longest
recent gap between two frames from that device, within stated limits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edgepart.agent.cluster.membership.flapping import FlapTiming
from edgepart.agent.cluster.membership.redial import DialTiming


@dataclass(frozen=True, slots=True)
class SilenceTiming:
    """How long a device may be silent, in seconds. Shorter times notice a failure earlier and err more
    often."""

    least_s: float = 1.75
    """No device is suspect sooner. This covers a stall of a second, which any small box has, and the wait for
    the next heartbeat."""
    first_s: float = 2.0
    """The bound for a new link, before any gaps were seen."""
    most_s: float = 6.0
    """No device may be silent for longer, however noisy its link is. This is also the bound for a device that
    said that it is starved of the CPU."""
    forget: float = 0.02
    """The seconds by which the longest gap shrinks in each second: a gap of 2 s is forgotten in a minute and
    a half. A larger value forgets sooner."""

    def __post_init__(self) -> None:
        if not 0 < self.least_s <= self.first_s <= self.most_s:
            raise ValueError("timing: 0 < least_s <= first_s <= most_s must hold")


@dataclass(frozen=True, slots=True)
class DetectorTiming:
    """The times of failure detection, in seconds: shorter ones notice a failure earlier and err more
    often."""

    heartbeat_s: float = 0.5
    """A heartbeat goes to each linked member this often: three may be missing before silence is noticed."""
    hello_s: float = 2.0
    """The time for the first Hello on a new link."""
    fresh_s: float = 1.2
    """A device vouches only for devices that it heard within this time: two heartbeats and a little, so that
    one may be late."""
    confirm_s: float = 0.3
    """A suspect is dead after this time if there is nobody to ask, or no answer: members are asked three
    times by then."""
    isolated_s: float = 1.0
    """The same time if all of several links broke together: then the fault is likely here, and the links get
    time to return."""
    ask_s: float = 0.1
    """The time after which members are asked again about a suspect."""
    view_s: float = 5.0
    """A view is sent after this time even if nothing changed, in case one was lost; in large clusters less
    often (`view_each_s`)."""
    view_each_s: float = 0.4
    """The least time between two such views, for each member of the cluster, so that in large clusters their
    share of the network does not grow any further."""
    view_gap_s: float = 0.1
    """The least time between two views, whatever changed: many devices that come or go together make one
    view, not one view each."""
    view_gap_each_s: float = 0.01
    """The same time for each member of the cluster: each change makes as many views as the square of the
    number of members, so of many changes only the first is told at once."""
    view_wait_each_s: float = 0.002
    """The time from a change to the view that shows it, for each other device: the view also shows what
    changes meanwhile."""
    late_s: float = 0.2
    """A device that is woken later than this doubts itself: the time that it slept through does not count as
    silence of others."""
    most_slack_s: float = 2.0
    """The most by which a device's own lateness extends the time for which others may be silent."""
    starved_s: float = 30.0
    """A device that said that it is starved counts as starved for this long; it says so again long before."""
    starved_most_s: float = 300.0
    """The time after which starvation counts as lasting if its end was not told. Without this limit a device
    could prevent for ever that plans are judged."""
    forget_s: float = 600.0
    """Devices that died or left are remembered, and shown as lost, for this long."""
    silence: SilenceTiming = field(default_factory=SilenceTiming)
    flaps: FlapTiming = field(default_factory=FlapTiming)
    dial: DialTiming = field(default_factory=DialTiming)

    def __post_init__(self) -> None:
        if not self.heartbeat_s < self.fresh_s < self.silence.least_s:
            raise ValueError("timing: heartbeat_s < fresh_s < silence.least_s must hold")


class FrameGaps:
    """The gaps between frames from one device."""

    __slots__ = ("bound_s", "longest_s", "timing")

    def __init__(self, timing: SilenceTiming) -> None:
        self.timing = timing
        self.longest_s = timing.first_s / 2
        self.bound_s = timing.first_s
        """How long the device may be silent now, in seconds."""

    def note(self, gap_s: float) -> None:
        """Note that a frame came `gap_s` after the one before."""
        timing = self.timing
        longest_s = self.longest_s - timing.forget * gap_s
        self.longest_s = longest_s = gap_s if gap_s > longest_s else longest_s
        self.bound_s = min(max(2 * longest_s, timing.least_s), timing.most_s)
