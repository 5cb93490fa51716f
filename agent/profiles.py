"""Profiles: what segments took on real devices. Facts and rules, without I/O: one.py measures, statefiles.py keeps.

A profile holds for every device of its kind with as many threads, so that what one box measured, its twins need not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from edgepart.agent.control import Profile
from edgepart.agent.deployments import Read, readable, whole
from edgepart.agent.records import json_record, read_json_record
from edgepart.planner.errors import UsageError

if TYPE_CHECKING:
    from edgepart.planner.cost import Profiles

MOST = 4096
"""Profiles that are remembered; the ones not heard of for longest are forgotten."""
NEWS = 0.1
"""A profile that moved by less than this part is the same."""

Key = tuple[str, str, int]
"""Segment digest, device kind, threads."""


class ProfileBook:
    """All that this device knows, its own and what members told."""

    def __init__(self, profiles: Iterable[Profile] = ()) -> None:
        self._known: dict[Key, float] = {}
        self.learn(profiles)

    def learn(self, profiles: Iterable[Profile]) -> tuple[Profile, ...]:
        """Take what is new; those that a planner may care about."""
        news = []
        for one in profiles:
            key = (one.segment, one.kind, one.threads)
            known = self._known.get(key)
            if known is not None and abs(known - one.seconds) <= NEWS * known:
                self._known[key] = self._known.pop(key)
                continue
            self._known.pop(key, None)
            self._known[key] = one.seconds
            news.append(one)
        while len(self._known) > MOST:
            del self._known[next(iter(self._known))]
        return tuple(news)

    def seconds(self, segment: str, kind: str, threads: int) -> float | None:
        return self._known.get((segment, kind, threads))

    def profiles(self, most: int = MOST) -> tuple[Profile, ...]:
        """Those heard of last, oldest first."""
        return tuple(Profile(*key, seconds) for key, seconds in list(self._known.items())[-most:])


def for_planner(profiles: Iterable[Profile]) -> Profiles:
    """As planner/cost.py takes them."""
    return {(t.segment, t.kind, t.threads): t.seconds for t in profiles}


def to_json(profiles: Iterable[Profile]) -> list[Mapping[str, Any]]:
    return [json_record(one) for one in profiles]


def from_json(document: Any) -> tuple[Profile, ...]:
    """UsageError where the document holds anything but profiles."""
    return whole(readable_from_json(document))


def readable_from_json(document: Any) -> Read[Profile]:
    """Those that can be read, and what is wrong with each of the others. UsageError where it is no list."""
    if not isinstance(document, list):
        raise UsageError(f"no profiles of segments: expected list, found {type(document).__name__}")
    return readable(
        document, "no profiles of segments: profiles", lambda entry: read_json_record(Profile, entry)
    )
