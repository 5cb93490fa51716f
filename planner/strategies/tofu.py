"""Tofu (Wang, Huang, Li: Supporting Very Large Models using Automatic Dataflow Graph Partitioning): every
layer is cut in two over the two halves of the devices, and each part again over the halves of its half, until
one device is left. At each step, dynamic programming over the coarsened graph finds the cuts that move the
fewest bytes, and every group of devices takes the same cuts.

The paper's version is one candidate: equal parts, on as many devices as make a power of two. Our additions:
parts in proportion to speed for any number of devices; devices on quick links are separated last; fewer
devices than there are, down to one. Simulation decides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edgepart.planner.errors import UsageError
from edgepart.planner.figures import format_bytes
from edgepart.planner.layerwise.byte_costs import ByteCosts, MeasuredCuts
from edgepart.planner.layerwise.configuration_cost import LEAST_S
from edgepart.planner.layerwise.configurations import make_space
from edgepart.planner.layerwise.elimination import Solution, minimise
from edgepart.planner.layerwise.halving import Team, least_part, list_cuts, order_near_first
from edgepart.planner.layout.choices import Choice, Shares
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.bbgrap import KNOWN_AXES
from edgepart.planner.strategies.optcnn import summarise_choices
from edgepart.planner.strategies.registry import register
from edgepart.planner.strategies.single import run_alone

FEW = 4
"""The most devices of which each number is tried; of more, all of them, a half, a quarter ..."""

MUCH = 1.4
"""A team counts as much slower if it takes at least this many times as long as all devices together."""


@dataclass(frozen=True)
class RecursiveCuts:
    """The result of the recursion."""

    choices: dict[int, Choice]
    """The choice of each layer, by its number."""
    solutions: tuple[Solution, ...]
    """The solution of each level; the cost of the last one is all bytes that move."""

    @property
    def moved_bytes(self) -> float:
        return self.solutions[-1].cost


@register("tofu")
def candidates(study: Study) -> Iterator[Strategy]:
    """Yield the versions beyond the paper, of fewer and fewer devices as long as that is faster; the paper's
    version; and the fastest device and the gateway alone. If memory is short, all numbers of devices are
    yielded, also with few copies of weights."""
    yield from find_likely(study, 1.0)


def find_likely(study: Study, part: float) -> Iterator[Strategy]:
    """Yield the candidates that are likely to be the best. Left out are the paper's version if its slowest
    device alone would compute for `part` of the time that the best other version takes, and teams that could
    not share all work in less than that and are much slower than all devices together."""
    if len(study.memo.by_speed) > 1 and study.memo.layers:
        for weights in (False, True) if is_tight(study.memo) else (False,):
            yield from _halve(study, ByteCosts(study.memo, weights), part)
    for name in dict.fromkeys((study.memo.by_speed[0], study.memo.problem.gateway)):
        yield run_alone(study, name, "tofu")


def _halve(study: Study, byte_costs: ByteCosts, part: float) -> Iterator[Strategy]:
    """Yield the halves for each team, those beyond the paper first. Of these, none follows a team that is
    slower than the larger ones before it, unless memory is short."""
    tight, best = is_tight(study.memo), float("inf")
    said = ", copies of weights counted" if byte_costs.weights else ""
    first, usual = choose_paper_team(study.memo)
    beyond = dict(list_teams(study.memo))
    for team, words in beyond.items():
        if part < 1 and not tight and _is_hopeless(study.memo, team, part * best):
            break
        found = make_strategy(
            study, Recursion(byte_costs, team).run(), (usual if team == first else words) + said
        )
        yield found
        score = study.scorer.score(found)
        if score > best and not tight:
            break
        best = min(best, score)
    if first not in beyond and (tight or equal_s(study.memo, first) < part * best):
        yield make_strategy(study, Recursion(byte_costs, first).run(), usual + said)


def _is_hopeless(memo: Memo, team: Team, enough: float) -> bool:
    """Whether a team takes `enough` seconds even if all of its devices compute all the time and nothing
    moves, and is much slower than all devices together. A team that only leaves out a slow device, or one
    behind a slow link, may still be the best."""
    speed = sum(1 / max(memo.whole_s[name], LEAST_S) for name, _ in team.shares)
    all_speed = sum(1 / max(memo.whole_s[name], LEAST_S) for name in memo.by_speed)
    return 1 / speed >= max(enough, MUCH / all_speed)


def equal_s(memo: Memo, team: Team) -> float:
    """A lower bound on the seconds that equal halves take: the seconds of the slowest device's part of every
    layer, as smaller parts run at no higher rate."""
    takes, levels = make_space(memo).takes, len(team.levels)
    slow = memo.seconds_on(max((name for name, _ in team.shares), key=lambda name: memo.whole_s[name]))
    found = 0.0
    for layer in (one for one in memo.layers if one.exits):
        part, sums = least_part(layer, levels, takes)
        ways = [part * sum(slow[op.name] for op in layer.operators)]
        found += min(ways + [slow[op] * part for op, part in sums.items()])
    return found


def is_tight(memo: Memo) -> bool:
    """Whether some device cannot hold all weights. If so, cuts that leave few copies of weights are tried,
    too (in the paper, weights are cut like all tensors, and the part that a device lacks moves)."""
    weights = sum(constant.nbytes for constant in memo.graph.constants.values())
    return weights > min(map(memo.limit_bytes, memo.by_speed))


def choose_paper_team(memo: Memo) -> tuple[Team, str]:
    """The team as in the paper, equal parts for the fastest 2^m devices, and words for it."""
    devices = memo.by_speed[: 1 << (len(memo.by_speed).bit_length() - 1)]
    return _team(
        tuple((name, 1.0) for name in devices)
    ), f"as in the paper, equal halves of {len(devices)} devices"


def list_teams(memo: Memo) -> Iterator[tuple[Team, str]]:
    """Yield teams beyond the paper, with words for each: parts by speed, neighbours together, over all
    devices and over the fastest few."""
    fast = memo.by_speed
    size = len(fast)
    while size > 1:
        order = order_near_first(memo.cluster, fast[:size])
        few = "" if size == len(fast) else f" of {len(fast)}"
        words = f"beyond the paper, halves of {size}{few} devices in proportion to speed, near ones together"
        yield _team(memo.shares(order)), words
        size = size - 1 if size <= FEW else -(-size // 2)


def _team(shares: Shares) -> Team:
    total = sum(share for _, share in shares)
    return Team(tuple((name, round(share / total, 4)) for name, share in shares))


def make_strategy(study: Study, found: RecursiveCuts, words: str) -> Strategy:
    """The strategy of the cuts that were found, with the reason in words."""
    loose = next((one.why for one in found.solutions if not one.exact), None)
    proof = (
        "each step moves the fewest bytes" if loose is None else f"not proven to be the fewest bytes: {loose}"
    )
    why = f"{words} ({proof}; {format_bytes(found.moved_bytes)} in all): {summarise_choices(study.memo, found.choices)}"
    return study.candidates.make("tofu", found.choices, why)


class Recursion:
    """Finds the cuts, level after level; every group takes the same cuts."""

    def __init__(self, byte_costs: ByteCosts, team: Team) -> None:
        """Raises UsageError for a forced axis that the model does not have."""
        self.byte_costs = byte_costs
        self.team = team
        self.memo = byte_costs.memo
        wanted = self.memo.problem.axis
        there = {axis.name for layer in self.memo.layers for _, axis in layer.reduced}
        if wanted is not None and wanted not in {*KNOWN_AXES, *self.memo.axis_names, *there}:
            names = ", ".join((*self.memo.axis_names, *sorted(there)))
            raise UsageError(f"axis {wanted!r}: this model has {names}")
        self._takes = make_space(self.memo).takes

    def run(self) -> RecursiveCuts:
        """The cuts of all levels."""
        before: list[tuple[MeasuredCuts, int] | None] = [None] * len(self.byte_costs.nodes)
        solutions: list[Solution] = []
        for level in range(len(self.team.levels)):
            measured = self._measure_cuts(level, before)
            unary, edges = self.byte_costs.tables(measured, self._gateway(level))
            solutions.append(minimise(unary, edges))
            before = list(zip(measured, solutions[-1].choice, strict=True))
        named = zip(self.byte_costs.nodes, before, strict=True)
        choices = {
            node.layer.number: one[0].choices[one[1]] for node, one in named if one and not node.is_junction
        }
        return RecursiveCuts(choices, tuple(solutions))

    def _measure_cuts(self, level: int, before: list[tuple[MeasuredCuts, int] | None]) -> list[MeasuredCuts]:
        """The possible next cuts of each node with their costs. Equal layers that were cut alike so far share them."""
        found: dict[tuple[int, tuple[MeasuredCuts, int] | None], MeasuredCuts] = {}
        for node, one in zip(self.byte_costs.nodes, before, strict=True):
            if (node.kind, one) not in found:
                choice = one[0].choices[one[1]] if one else None
                ways = list_cuts(node.layer, choice, self.team, level, self._takes)
                found[node.kind, one] = self.byte_costs.measure(node, ways)
        return [found[node.kind, one] for node, one in zip(self.byte_costs.nodes, before, strict=True)]

    def _gateway(self, level: int) -> str:
        """The device that stands for the gateway's group; the gateway itself if it does not take part."""
        order = [name for name, _ in self.team.shares]
        gateway = self.memo.problem.gateway
        if gateway not in order:
            return gateway
        first = [name for name, _ in self.team.levels[level]]
        return next(name for name in reversed(order[: order.index(gateway) + 1]) if name in first)
