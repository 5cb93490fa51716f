"""Timelines: what every device does when, and the critical path of a request. Facts and pure rules.

The times of a device's steps follow from the arrivals of its messages. A simulation therefore records only
the times of messages, and this module derives the rest afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from edgepart.planner.plans.plan import GATEWAY, Receive, Send


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """The fields of a transfer on which its time depends."""

    source: str
    target: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Compute:
    """A step of a schedule that computes for a number of seconds."""

    seconds: float
    what: str
    """A text for people that names the operators."""


@dataclass(frozen=True)
class TimedSchedule:
    """The input of the simulator: made from a plan, or from a candidate that is not a plan yet."""

    steps: Mapping[str, Sequence[Receive | Compute | Send]]
    """The steps of each device, in order."""
    messages: Sequence[MessageTimes]
    """The messages by transfer number."""
    replicas: tuple[tuple[str, ...], ...] = ()
    """Groups of devices, each of which answers whole requests by itself; () if all devices answer together."""


@dataclass(frozen=True, slots=True)
class TimelineBar:
    """One bar of a timeline."""

    start_s: float
    stop_s: float
    what: str
    kind: str
    """"compute", "send" or "wait"."""


@dataclass(frozen=True, slots=True)
class CriticalLeg:
    """A part of the critical path of one request."""

    kind: str
    """"compute" or "transfer"."""
    source: str
    """The device that computes or sends; GATEWAY for an input transfer."""
    target: str
    """The device that computes or receives; GATEWAY for an output transfer."""
    seconds: float
    """The duration; a transfer lasts from its Send step until all of it has arrived, waiting for other messages
    included."""


def timelines(
    schedule: TimedSchedule,
    departures_s: Sequence[float],
    sent_s: Sequence[float],
    arrivals_s: Sequence[float],
) -> dict[str, tuple[TimelineBar, ...]]:
    """The bars of each device, sorted by start. Messages that the gateway sends are not among the bars of its
    device."""
    return {
        device: tuple(
            sorted(
                _bars(schedule, device, departures_s, sent_s, arrivals_s),
                key=lambda bar: (bar.start_s, bar.stop_s),
            )
        )
        for device in schedule.steps
    }


def _bars(
    schedule: TimedSchedule,
    device: str,
    departures_s: Sequence[float],
    sent_s: Sequence[float],
    arrivals_s: Sequence[float],
) -> Iterator[TimelineBar]:
    for step, start, stop in step_times(schedule.steps[device], arrivals_s):
        if isinstance(step, Compute):
            yield TimelineBar(start, stop, step.what, "compute")
        elif isinstance(step, Receive):
            if stop > start:
                source = schedule.messages[step.transfer].source
                yield TimelineBar(start, stop, f"for {source or 'the request'}", "wait")
        elif sent_s[step.transfer] > departures_s[step.transfer]:
            target = schedule.messages[step.transfer].target
            yield TimelineBar(
                departures_s[step.transfer], sent_s[step.transfer], f"to {target or 'the gateway'}", "send"
            )


def step_times(
    steps: Sequence[Receive | Compute | Send], arrivals_s: Sequence[float]
) -> Iterator[tuple[Receive | Compute | Send, float, float]]:
    """Yields each step, with the times (in seconds) at which the device reaches and leaves it."""
    now = 0.0
    for step in steps:
        start = now
        if isinstance(step, Compute):
            now += step.seconds
        elif isinstance(step, Receive):
            now = max(now, arrivals_s[step.transfer])
        yield step, start, now


def critical_path(schedule: TimedSchedule, arrivals_s: Sequence[float]) -> tuple[CriticalLeg, ...]:
    """The legs that follow one another from the request's arrival to its last output. Their seconds add up to
    the latency."""
    ends = [n for n, message in enumerate(schedule.messages) if message.target == GATEWAY]
    if not ends:
        return ()
    number = max(ends, key=lambda n: (arrivals_s[n], -n))
    legs: list[CriticalLeg] = []
    times = {device: list(step_times(steps, arrivals_s)) for device, steps in schedule.steps.items()}
    sends = {
        step.transfer: n
        for steps in schedule.steps.values()
        for n, step in enumerate(steps)
        if isinstance(step, Send)
    }
    while True:
        message = schedule.messages[number]
        if message.source == GATEWAY:
            legs.append(CriticalLeg("transfer", GATEWAY, message.target, arrivals_s[number]))
            break
        device, at = message.source, sends[number]
        steps = times[device]
        legs.append(CriticalLeg("transfer", device, message.target, arrivals_s[number] - steps[at][1]))
        while at > 0:
            at -= 1
            step, start, stop = steps[at]
            if isinstance(step, Compute):
                legs.append(CriticalLeg("compute", device, device, stop - start))
            elif isinstance(step, Receive) and stop > start:
                number = step.transfer
                break
        else:
            break
    return tuple(reversed(legs))
