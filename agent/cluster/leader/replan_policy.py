"""Replanning: when to plan a deployment, on which devices, and whether to move to the result. Rules, without
I/O.

A deployment without a plan that runs takes any plan at once. A deployment that serves moves only if the gain
is worth the cost of moving. For each device that could be lost, a contingency plan is computed while nothing
else is to be done.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType

from edgepart.agent.cluster.leader.drift_policy import DriftPolicyTiming
from edgepart.agent.cluster.state.events import ComputePlan, Member, PlanComputed, PlanFailed, PlanKey
from edgepart.agent.wire.control import ALIVE, FLAPPING, Card, Deployment, Profile

MAX_RESULTS = 64
"""The most plans and failures that are remembered for each deployment; the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class PlanningTiming:
    """Damping: with longer waits deployments move less often and gain later."""

    hold_s: float = 1.0
    """A serving deployment is replanned when the cluster has not changed for this long: several changes often
    come together."""
    flap_s: float = 10.0
    """Each change within this time of the previous one doubles that wait, unless it comes during the wait and devices that
    were planned for before are all still there: boxes that join together come and are linked one after the other, and then
    measure their links."""
    most_hold_s: float = 30.0
    """The longest such wait, however often the cluster changes."""
    gain: float = 0.95
    """A serving plan is left only for one whose predicted latency is below this share of its own: moving
    loads and warms up new programs, which 5 % less latency is worth."""
    retry_s: float = 1.0
    """The wait after a failure that may pass, doubled each time."""
    most_retry_s: float = 60.0
    """The longest such wait."""
    avoid_s: float = 30.0
    """A device that could not load its program is left out for this long, doubled each time: a retry costs
    all devices of the plan another loading."""
    most_avoid_s: float = 600.0
    """The longest such time, so that a repaired device is used again."""
    spares: int | None = None
    """The most contingency plans that are kept ready; None is one for each device that serves."""
    tries: bool = False
    """Whether a plan is tried on made-up inputs before it serves, which needs the agent's doors."""
    refining: DriftPolicyTiming = field(default_factory=DriftPolicyTiming)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The members, as planning has to know them."""

    members: tuple[Member, ...]
    cards: Mapping[str, Card]
    digests: Mapping[str, str]
    """The digest of each card, by node."""
    broken_links: frozenset[tuple[str, str]]


def select_members(cluster: ClusterView, deployment: Deployment, avoided: Collection[str]) -> list[Member]:
    """The members that may get a program: alive, measured, chosen by the user, and all linked with each
    other. Flapping members are used only if there are no others."""
    steady = _usable(cluster, deployment, avoided, ALIVE)
    return steady or _usable(cluster, deployment, avoided, FLAPPING)


def _usable(
    cluster: ClusterView, deployment: Deployment, avoided: Collection[str], status: str
) -> list[Member]:
    chosen = deployment.options.devices
    rows = [
        member
        for member in cluster.members
        if member.status == status
        and member.node in cluster.cards
        and member.node not in avoided
        and (not chosen or member.name in chosen)
    ]
    left_out = choose_left_out({member.node for member in rows}, cluster.broken_links)
    return [member for member in rows if member.node not in left_out] if left_out else rows


def choose_left_out(nodes: Collection[str], broken: Collection[tuple[str, str]]) -> set[str]:
    """The nodes to do without so that all others reach each other: one after another, the one with the most
    broken links; of several, the last by id.

    >>> sorted(choose_left_out({"a", "b", "c", "d"}, [("a", "b"), ("b", "c"), ("d", "e")]))
    ['b']
    """
    pairs = [pair for pair in broken if pair[0] in nodes and pair[1] in nodes]
    left_out: set[str] = set()
    while pairs:
        worst = max((count, node) for node, count in Counter(chain.from_iterable(pairs)).items())[1]
        left_out.add(worst)
        pairs = [pair for pair in pairs if worst not in pair]
    return left_out


@dataclass(frozen=True, slots=True)
class _Avoided:
    """A device that is left out."""

    until: float
    span_s: float
    """For how long it is left out."""
    why: str


class ReplanPolicy:
    """The plans that one deployment may move to."""

    def __init__(self, timing: PlanningTiming) -> None:
        self.computing: PlanKey | None = None
        self.error: PlanFailed | None = None
        """Why there is no plan for what is wanted now; None if there is one, or if that is not known yet."""
        self._timing = timing
        self._results: dict[PlanKey, PlanComputed | PlanFailed] = {}
        self._compared: dict[PlanKey, bytes] = {}
        self._hasty: set[PlanKey] = set()
        """The keys for which the last search was a quick one."""
        self._settled: tuple[PlanKey, bytes] | None = None
        self._key: PlanKey | None = None
        self._key_at = -math.inf
        self._lasting: set[str] = set()
        """The nodes of all keys since it was calm that were wanted for longer than the wait."""
        self._hold_s = timing.hold_s
        self._retry_at = -math.inf
        self._retry_s = timing.retry_s
        self._avoided: dict[str, _Avoided] = {}
        self._left_out: set[str] = set()
        """The devices to avoid when the key was looked at last."""
        self._again: dict[PlanKey, tuple[float, float]] = {}
        """For refuges whose planning failed for a reason that may pass: when it is tried again, and after how long."""

    def avoid(self, node: str, now: float, why: str) -> None:
        """Leave out a device that could not load its program, twice as long each time. `why` is a sentence."""
        before = self._avoided.get(node)
        span_s = 2 * before.span_s if before else self._timing.avoid_s
        span_s = min(span_s, self._timing.most_avoid_s)
        self._avoided[node] = _Avoided(now + span_s, span_s, why)

    def devices_to_avoid(self, now: float) -> set[str]:
        return {node for node, one in self._avoided.items() if now < one.until}

    def explain_avoided(self, nodes: Collection[str]) -> list[str]:
        """Why plans are made without those of these devices that could not load their programs."""
        return [one.why for node, one in self._avoided.items() if node in nodes and node in self._left_out]

    def key(
        self,
        cluster: ClusterView,
        deployment: Deployment,
        now: float,
        without: str = "",
        disappointed: str = "",
    ) -> PlanKey:
        members = select_members(cluster, deployment, self.devices_to_avoid(now) | {without})
        devices = tuple((m.node, m.name, cluster.digests[m.node]) for m in members)
        return PlanKey(deployment.name, deployment.version, devices, disappointed)

    def is_wanted(self, key: PlanKey) -> bool:
        """Whether the key is the one that is wanted now."""
        return key == self._key

    def key_devices(self) -> tuple[str, ...]:
        """The names of the devices to plan on."""
        return () if self._key is None else tuple(name for _, name, _ in self._key.devices)

    def look(self, key: PlanKey, now: float) -> None:
        """Note the key that is wanted from now on. If keys change soon after each other, the wait before
        replanning grows."""
        self._left_out = self.devices_to_avoid(now)
        if key == self._key:
            return
        nodes = {*_nodes(key)}
        if self._key is not None:
            since_s, before = now - self._key_at, {*_nodes(self._key)}
            outlasted = since_s >= self._hold_s
            if since_s >= self._timing.flap_s:
                self._hold_s, self._lasting = self._timing.hold_s, before
            elif outlasted or not self._lasting <= nodes & before:
                self._hold_s = min(2 * self._hold_s, self._timing.most_hold_s)
            if outlasted:
                self._lasting = self._lasting | before
        if self._key is None or self._key.version != key.version:
            self._retry_s = self._timing.retry_s
        self._retry_at = -math.inf
        self._key, self._key_at, self.error = key, now, None

    def find_needed_plan(self, now: float, *, waiting: bool = False) -> PlanComputed | None:
        """A plan for a deployment without one that runs; None if there is none. It is the plan for the wanted
        key, or else for some of the key's devices, because requests wait and a better plan may follow.
        `waiting`: whether requests wait that did not before, so that changes in what is known of these
        devices matter less."""
        assert self._key is not None
        result = self._results.get(self._key)
        if isinstance(result, PlanFailed):
            self.error = result
            if not result.final and now >= self._retry_at:
                del self._results[self._key]
            return None
        return result or self._for_some(self._key, waiting, alone=waiting)

    def _for_some(self, key: PlanKey, waiting: bool, *, alone: bool) -> PlanComputed | None:
        """The quickest of the plans for devices that are all here and, unless requests are `waiting`, have not changed
        since; if plans on one device `alone` are wanted, one of them before others, as it is loaded soonest."""
        here = set(key.devices)
        nodes = {node for node, _, _ in here}
        found = [
            result
            for made_for, result in self._results.items()
            if isinstance(result, PlanComputed)
            and made_for.version == key.version
            and (alone or not made_for.alone)
            and (here.issuperset(made_for.devices) or (waiting and nodes.issuperset(_nodes(made_for))))
        ]
        return min(found, key=lambda one: (not one.key.alone, one.latency_s), default=None)

    def find_faster(self, than_s: float) -> PlanComputed | None:
        """A plan that takes enough less than `than_s` to be worth a move, for the wanted devices or some of them: while a
        stopgap serves, a search for devices that have changed since is not in vain. None if there is none."""
        assert self._key is not None
        found = self._for_some(self._key, waiting=True, alone=False)
        return found if found is not None and self.is_gain(found.latency_s, than_s) else None

    def found(self, key: PlanKey) -> PlanComputed | None:
        """The plan for the key; None if there is none."""
        result = self._results.get(key)
        return result if isinstance(result, PlanComputed) else None

    def has_failed(self, key: PlanKey, now: float) -> bool:
        """Whether there was no plan for the key, which is not to be tried again yet."""
        failed = isinstance(self._results.get(key), PlanFailed)
        if failed and key in self._again and now >= self._again[key][0]:
            del self._results[key]
            return False
        return failed

    def better(self, current: bytes, now: float) -> PlanComputed | None:
        """A plan that is worth the move from `current`; None if there is none. If the comparison is made,
        None also settles it, unless the search was a quick one: then a thorough one follows."""
        assert self._key is not None
        if self.is_settled(current):
            return None
        result = self._results.get(self._key) if self.is_compared(self._key, current) else None
        if result is None or self._key in self._hasty:
            return self._hasty_gain(current)
        if (
            isinstance(result, PlanComputed)
            and result.plan != current
            and self.is_gain(result.latency_s, result.current_latency_s)
        ):
            return result
        self.settle(current)
        return None

    def _hasty_gain(self, current: bytes) -> PlanComputed | None:
        """The best that quick searches found for these devices, even if they have been measured again since: a thorough
        search will go by that, and a box that joins need not wait until nothing is measured any more."""
        results = (self._results.get(key) for key in self._hasty_keys() if self.is_compared(key, current))
        gains = [
            result
            for result in results
            if isinstance(result, PlanComputed)
            and result.plan != current
            and self.is_gain(result.latency_s, result.current_latency_s)
        ]
        return min(gains, key=lambda one: (one.latency_s, one.plan), default=None)

    def _hasty_keys(self) -> list[PlanKey]:
        """The keys for the wanted devices for which the last search was a quick one."""
        assert self._key is not None
        return [key for key in self._hasty if _is_for_same_devices(key, self._key)]

    def is_compared(self, key: PlanKey | None, current: bytes) -> bool:
        """Whether a search that was to beat `current` was begun for the key."""
        return key is not None and self._compared.get(key) == current

    def has_newcomers(
        self, key: PlanKey, current: bytes, made_for: PlanKey | None, used: Iterable[str]
    ) -> bool:
        """Whether the key has a device with which nothing was searched that could beat `current`: the plan uses others, was
        `made_for` others (None: that is not known), and was last settled without it. A box that comes back is a newcomer to
        the plan that took over when it was lost."""
        settled = self._settled[0] if self._settled is not None and self._settled[1] == current else None
        searched = chain.from_iterable(_nodes(one) for one in (made_for, settled) if one)
        return not {*_nodes(key)} <= {*used, *searched}

    def is_gain(self, latency_s: float, over_s: float) -> bool:
        """Whether `latency_s` is enough below `over_s` to be worth a move."""
        return latency_s < self._timing.gain * over_s

    def is_settled(self, current: bytes) -> bool:
        """Whether `current` needs no comparison for the wanted key any more."""
        return self._settled == (self._key, current)

    def settle(self, current: bytes) -> None:
        """Note that `current` needs no comparison for the wanted key, or no more than a thorough one if all that was found
        for it came from quick searches."""
        assert self._key is not None
        hasty = self._hasty_keys()
        for key in hasty:
            if key == self._key:
                self._results.pop(key, None)  # It stays known that the next search is to be a thorough one.
            else:
                self._drop(key)
        if not hasty or (self._key in self._compared and self._key not in hasty):
            self._settled = (self._key, current)

    def refuse(self, plan: bytes) -> None:
        """Drop the plan, which did not pass its trial."""
        for key, result in list(self._results.items()):
            if isinstance(result, PlanComputed) and result.plan == plan:
                self._drop(key)

    def forget(self) -> None:
        """Drop the result for the wanted key, which cannot be used any more."""
        if self._key is not None:
            self._drop(self._key)

    def _drop(self, key: PlanKey) -> None:
        self._results.pop(key, None)
        self._compared.pop(key, None)
        self._hasty.discard(key)
        self._again.pop(key, None)

    def ask(
        self,
        key: PlanKey,
        now: float,
        current: bytes,
        *,
        urgent: bool,
        quick: bool = False,
        held: bool = True,
    ) -> bool:
        """Whether to compute a plan for the key now; if so, it counts as under way. `quick`: whether the search is a quick
        one, which a thorough one may follow, and which takes the place of a thorough one for other devices. `held`: wait
        until the cluster has not changed for a while."""
        if not key.devices or (held and now < self.ask_at(current, urgent=urgent)):
            return False
        if self.computing == key and self.is_compared(key, current):
            return False
        searched = self.is_compared(key, current) and (quick or key not in self._hasty)
        if self._results.get(key) is not None and (urgent or not current or searched):
            return False
        replaced = quick and self.computing not in self._hasty and self.is_compared(self.computing, current)
        if self.computing is not None and not urgent and not replaced:
            return False
        self.computing = key
        self._results.pop(key, None)
        self._compared[key] = current
        (self._hasty.add if quick else self._hasty.discard)(key)
        return True

    def ask_at(self, current: bytes, *, urgent: bool) -> float:
        """The time from which on `ask` may return True."""
        return self._retry_at if urgent else self._key_at + self._hold_s

    def answered(self, result: PlanComputed | PlanFailed, now: float) -> None:
        """Take the answer to ComputePlan."""
        if self.computing == result.key:
            self.computing = None
        self._results[result.key] = result
        if isinstance(result, PlanFailed) and not result.final:
            if result.key.alone:  # Nothing that is wanted now has to wait because of it.
                _, wait_s = self._again.get(result.key, (0.0, self._timing.retry_s / 2))
                wait_s = min(2 * wait_s, self._timing.most_retry_s)
                self._again[result.key] = now + wait_s, wait_s
            else:
                self._retry_at = now + self._retry_s
                self._retry_s = min(2 * self._retry_s, self._timing.most_retry_s)
        while len(self._results) > MAX_RESULTS:
            self._drop(next(iter(self._results)))

    def wake_at(self, now: float) -> float:
        """The next time when something may become due without an event; inf if nothing may."""
        times = [self._retry_at, self._key_at + self._hold_s]
        times += [at for at, _ in self._again.values()]
        times += [one.until for one in self._avoided.values()]
        return min((time for time in times if time > now), default=math.inf)


def _nodes(key: PlanKey) -> Iterator[str]:
    return (node for node, _, _ in key.devices)


def _is_for_same_devices(one: PlanKey, other: PlanKey) -> bool:
    """Whether two keys differ at most in what was measured, also of the devices themselves."""
    nodes = {*_nodes(one)} == {*_nodes(other)}
    return nodes and replace(one, devices=other.devices, drifts=other.drifts) == other


def differs_only_in_measurements(before: PlanKey | None, now: PlanKey) -> bool:
    """Whether two keys differ only in what was measured."""
    if before is None or before == now:
        return False
    return replace(before, drifts=now.drifts, disappointed=now.disappointed) == now


def make_compute_plan(
    key: PlanKey,
    deployment: Deployment,
    cluster: ClusterView,
    current: bytes,
    *,
    urgent: bool,
    quick: bool = False,
    awaited: bool = False,
    serving: bytes = b"",
    profiles: tuple[Profile, ...] = (),
    measured_s: float = 0.0,
    taken: Mapping[str, int] = MappingProxyType({}),
    chosen: bytes = b"",
    refines: bool = False,
) -> ComputePlan:
    cards = tuple(cluster.cards[node] for node, _, _ in key.devices)
    others = tuple(sorted(taken.items()))
    return ComputePlan(
        key,
        deployment,
        cards,
        current,
        urgent,
        quick,
        profiles,
        measured_s,
        others,
        chosen,
        refines,
        awaited,
        serving,
    )
