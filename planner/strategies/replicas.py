"""Replicas: several copies of the model, each on its own device or group of devices, which answers whole
requests. One request does not become faster; many do, as the copies work on different requests and nothing
travels between them. Requests are distributed by planner/plans/balance_requests.py.

A device that has the memory for the whole model is a replica by itself. The other devices form groups, in
which the model is in stages or divided, whichever answers more requests. Simulation decides whether a slow
device, or one behind a slow link, does harm: the quickest replicas are tried alone, too."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from edgepart.planner.errors import Infeasible
from edgepart.planner.layout.choices import Choice, Divide, Pull, Reduce, Whole
from edgepart.planner.layout.strategy import Strategy, deal_to_replicas
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.scorer import Scorer
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.bbgrap import divide_along
from edgepart.planner.strategies.pipeline import place_in_stages
from edgepart.planner.strategies.registry import register
from edgepart.planner.strategies.single import holds, kind, run_alone, singles

NAME = "replicas"

SIZES = (2, 3, 4, 6, 8)
"""The approximate numbers of devices in a group that are tried."""

AXES = 2
"""The number of directions along which a group divides the model: those that most layers have."""

LEAST = 0.01
"""The smallest part of all requests that makes a replica worth keeping the model for."""

FEW = 8
"""The most replicas of which any number of the quickest is tried; of more, all of them, a half, a quarter ..."""


@register(NAME)
def candidates(study: Study) -> Iterator[Strategy]:
    """Yield single devices, then all ways to form replicas, each with all of its replicas and with the quickest only."""
    because = ""
    if study.memo.problem.objective != "throughput":
        because = "several copies would make no request faster; "
    elif len(study.memo.by_speed) == 1:
        because = "there is only one device; "
    if because:
        yield from (run_alone(study, device, NAME, because) for device in study.memo.by_speed)
    else:
        yield from singles(study, NAME)
        yield from make_replicas(study)


def make_replicas(study: Study) -> Iterator[Strategy]:
    """Yield strategies of two or more replicas; for throughput only."""
    groups = _Groups(study)
    whole = [device for device in study.memo.by_speed if holds(study, device)]
    lacking = [device for device in study.memo.by_speed if device not in whole]
    seen = set[frozenset[str]]()
    for grouping in ([], *_groupings(study.memo, lacking)):
        yield from _deal(study.scorer, groups.make([*((device,) for device in whole), *grouping]), seen)
    if whole and lacking:
        for grouping in _groupings(study.memo, study.memo.by_speed):
            yield from _deal(study.scorer, groups.make(grouping), seen)


def _groupings(memo: Memo, devices: Sequence[str]) -> Iterator[list[tuple[str, ...]]]:
    """Yield the devices in groups of each of `SIZES`, balanced by speed, and by memory."""
    speed = {device: 1 / memo.whole_s[device] for device in devices}
    room = {device: memo.limit_bytes(device) for device in devices}
    for count in dict.fromkeys(-(-len(devices) // size) for size in SIZES if size <= len(devices)):
        for weights in (speed, room):
            yield _balance(devices, weights, count)


def _balance(devices: Sequence[str], weights: dict[str, float], count: int) -> list[tuple[str, ...]]:
    """Make `count` groups of nearly equal number: each device, the heaviest first, joins the lightest group
    that has a place."""
    places = -(-len(devices) // count)
    groups: list[list[str]] = [[] for _ in range(count)]
    for device in sorted(devices, key=lambda name: -weights[name]):
        free = [group for group in groups if len(group) < places]
        min(free, key=lambda group: (sum(weights[name] for name in group), len(group))).append(device)
    return [tuple(sorted(group, key=devices.index)) for group in groups]


class _Groups:
    """The best strategy of each group of devices as one replica, remembered."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._ways: dict[tuple[Hashable, ...], tuple[tuple[str, ...], Strategy | None]] = {}
        self._found: dict[tuple[str, ...], Strategy | None] = {}

    def make(self, groups: Iterable[tuple[str, ...]]) -> list[Strategy]:
        """The strategies of those groups that the model fits."""
        for group in groups:
            if group not in self._found:
                self._found[group] = self._make(group)
        return [found for group in groups if (found := self._found[group]) is not None]

    def _make(self, group: tuple[str, ...]) -> Strategy | None:
        """The best strategy of a group; None if the model does not fit. Equal groups are searched only once."""
        study = self.study
        if len(group) == 1:
            return run_alone(study, group[0], NAME) if holds(study, group[0]) else None
        kinds = tuple(kind(study.memo, device) for device in group)
        if kinds not in self._ways:
            self._ways[kinds] = group, self._best(group)
        like, strategy = self._ways[kinds]
        if strategy is None or like == group:
            return strategy
        names = dict(zip(like, group, strict=True))
        choices = {
            n: rename_devices(choice, names) for n, choice in study.candidates.choices_of(strategy).items()
        }
        found = study.candidates.make(NAME, choices, strategy.why, strategy.sync)
        return None if study.scorer.short_bytes(found) else found

    def _best(self, group: tuple[str, ...]) -> Strategy | None:
        study = self.study
        axes = study.memo.axis_names[:AXES]
        try:
            return study.scorer.pick_best(
                (*place_in_stages(study, NAME, group), *(divide_along(study, axis, group) for axis in axes))
            )
        except Infeasible:
            return None


def rename_devices(choice: Choice, names: Mapping[str, str]) -> Choice:
    """The choice with its devices renamed by `names`."""
    if isinstance(choice, Whole):
        return Whole(tuple(names[name] for name in choice.devices))
    if isinstance(choice, Divide):
        return replace(choice, shares=tuple((names[name], share) for name, share in choice.shares))
    if isinstance(choice, Reduce):
        then = rename_devices(choice.then, names)
        assert not isinstance(then, Pull | Reduce)
        return replace(choice, shares=tuple((names[n], share) for n, share in choice.shares), then=then)
    return choice


def _deal(scorer: Scorer, replicas: Sequence[Strategy], seen: set[frozenset[str]]) -> Iterator[Strategy]:
    """Yield strategies of the quickest two replicas, three and so on, without replicas that get next to nothing to do."""
    pace = {id(one): scorer.forecast(one).most_per_s for one in replicas}
    order = sorted(replicas, key=lambda one: -pace[id(one)])
    halves = {len(order) >> n for n in range(len(order).bit_length())}
    for count in range(2, len(order) + 1):
        if len(order) > FEW and count not in halves:
            continue
        chosen = order[:count]
        parts = scorer.forecast_stream(deal_to_replicas(NAME, chosen, "")).parts
        used = [one for one, part in zip(chosen, parts, strict=True) if part >= LEAST]
        key = frozenset(" ".join(scorer.forecast(one).compute_s) for one in used)
        if len(used) > 1 and key not in seen:
            seen.add(key)
            yield deal_to_replicas(NAME, used, _describe(scorer, used))


def _describe(scorer: Scorer, replicas: Sequence[Strategy]) -> str:
    groups = [" with ".join(scorer.forecast(one).compute_s) for one in replicas]
    return f"requests are dealt out to {len(replicas)} copies of the model: {', '.join(groups)}"
