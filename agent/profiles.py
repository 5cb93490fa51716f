"""Profiles: what segments took on real devices. Facts and rules, without I/O: one.py measures, statefiles.py keeps.

A profile holds for every device of its kind with as many threads, so that what one box measured, its twins need not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from edgepart.agent.control import Profile
from edgepart.planner.errors import UsageError

if TYPE_CHECKING:
    from edgepart.planner.cost import Profiles

MOST = 4096
"""Profiles that are remembered; the ones not heard of for longest are forgotten."""
MOST_THREADS = 1 << 20
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
    return [
        {"segment": t.segment, "kind": t.kind, "threads": t.threads, "seconds": t.seconds} for t in profiles
    ]


def from_json(document: Any) -> tuple[Profile, ...]:
    """UsageError where the document holds no profiles."""
    try:
        return tuple(_profile(entry) for entry in document)
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise UsageError(f"no profiles of segments: {error!r}") from error


def _profile(entry: Mapping[str, Any]) -> Profile:
    threads = int(entry["threads"])
    if not 0 < threads <= MOST_THREADS:
        raise ValueError(f"a device does not compute with {threads} threads")
    return Profile(str(entry["segment"]), str(entry["kind"]), threads, float(entry["seconds"]))
