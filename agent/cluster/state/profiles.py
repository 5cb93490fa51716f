"""Profiles: how long segments took on real devices. Facts and rules, without I/O: segment_times.py measures,
state_files.py keeps.

A profile holds for every device of one kind with the same number of threads, so that equal boxes need not
measure the same segments. This device's own measurement takes precedence over those that members tell; of
several members' measurements, the median counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median_low
from typing import TYPE_CHECKING, Any

from edgepart.agent.cluster.state.deployments import ReadResult, read_each, require_all_readable
from edgepart.agent.wire.codec import json_record, read_json_record
from edgepart.agent.wire.control import Profile
from edgepart.planner.errors import UsageError

if TYPE_CHECKING:
    from edgepart.planner.cost.cost import Profiles

MAX_PROFILES = 4096
"""The most profiles that are remembered; those not heard of for longest are forgotten."""
OWN, KEPT = "", "kept"
"""Sources that are no members: this device's own measurements, and the profiles that were on disk when the
agent started."""
MAX_SOURCES = 16
"""The most sources that are remembered for one profile."""
NEWS_SHARE = 0.1
"""The share by which a profile has to move to be news. Every member hears of news, so noise must not
count."""

Key = tuple[str, str, int]
"""(`Segment.timed_as`, device kind, threads)."""


class ProfileBook:
    """All profiles that this device knows: its own, and those that members told."""

    def __init__(self, profiles: Iterable[Profile] = ()) -> None:
        self._seconds: dict[Key, dict[str, float]] = {}
        """Seconds by source, for each profile."""
        self.learn(profiles, KEPT)

    def learn(self, profiles: Iterable[Profile], source: str = OWN) -> tuple[Profile, ...]:
        """Take over new profiles; return those that the planner should know of. `source`: the member that
        tells them."""
        news = []
        for one in profiles:
            key = (one.segment, one.kind, one.threads)
            told = dict(self._seconds.pop(key, {}))  # A copy: segment_times.py reads in a thread.
            before, known = _typical_seconds(told), told.get(source, 0.0)
            if abs(known - one.seconds) > NEWS_SHARE * known:
                told.pop(source, None)
                told[source] = one.seconds
                if len(told) > MAX_SOURCES:
                    del told[next(name for name in told if name != OWN)]
            self._seconds[key] = told
            if abs(before - _typical_seconds(told)) > NEWS_SHARE * before:
                news.append(one)
        while len(self._seconds) > MAX_PROFILES:
            del self._seconds[next(iter(self._seconds))]
        return tuple(news)

    def seconds(self, segment: str, kind: str, threads: int) -> float | None:
        return _typical_seconds(self._seconds.get((segment, kind, threads), {})) or None

    def profiles(self, most: int = MAX_PROFILES) -> tuple[Profile, ...]:
        """The profiles that were heard of last, oldest first."""
        return tuple(
            Profile(*key, _typical_seconds(told)) for key, told in list(self._seconds.items())[-most:]
        )


def _typical_seconds(told: Mapping[str, float]) -> float:
    """The seconds that count among those that all sources told; 0 if none did."""
    return told.get(OWN) or median_low(told.values() or (0.0,))


def to_planner_profiles(profiles: Iterable[Profile]) -> Profiles:
    """The profiles as planner/cost/cost.py takes them."""
    return {(t.segment, t.kind, t.threads): t.seconds for t in profiles}


def to_json(profiles: Iterable[Profile]) -> list[Mapping[str, Any]]:
    return [json_record(one) for one in profiles]


def from_json(document: Any) -> tuple[Profile, ...]:
    """The profiles of a document. Raises UsageError if the document holds anything else."""
    return require_all_readable(read_profiles(document))


def read_profiles(document: Any) -> ReadResult[Profile]:
    """The readable profiles, and what is wrong with each of the others. Raises UsageError if the document is
    no list."""
    if not isinstance(document, list):
        raise UsageError(f"no profiles of segments: expected list, found {type(document).__name__}")
    return read_each(
        document, "no profiles of segments: profiles", lambda entry: read_json_record(Profile, entry)
    )
