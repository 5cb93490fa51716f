"""Ours: many ways to divide the model are simulated, the best is improved step by step, and the best that
fits wins.

It starts from every device alone (so that the answer is never slower than the best single device), every
direction over the k fastest and the k best connected devices, mixed directions (rows while there are many,
channels for dense layers, the tail whole), blocks with recomputed instead of fetched halos, and stretches
of the model placed on one device after another. Then stretches change their mode one at a time, and work
moves from the busiest to the idlest.

The budget is a number of candidates, from `Problem.search_budget_s` and the size of the graph, as rules
have no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from edgepart.planner.errors import UsageError
from edgepart.planner.layout import Strategy
from edgepart.planner.pairs import paired
from edgepart.planner.recipe import SPATIAL, WHOLE, Mode, Recipe, Stretch, cook, stretches
from edgepart.planner.strategies import bbgrap, deepthings, fitting, modnn, optcnn, register
from edgepart.planner.strategies.bbgrap import KNOWN_AXES
from edgepart.planner.strategies.deepthings import spread
from edgepart.planner.strategies.pipeline import staged
from edgepart.planner.strategies.single import alone
from edgepart.planner.study import Shares, Study

STRETCHES = 12
"""Parts of the model that can be treated differently."""

CANDIDATE_S, SHARE_S = 0.01, 6e-5
"""Of planning, about: for a candidate, and for each of its operators and devices (to the power of 1.5, as
each talks to others)."""

CAREFUL = 0.25
"""The part of the search budget that is handed out, as the boxes that plan are slow and busy."""

ENDS_TRIED = 3
"""Stretches up to which rows are tried before the rest is whole."""

FEWEST, MOST = 8, 400
"""Bounds on the number of candidates."""

DENSE_PART = 0.5
"""Of the work, from which on dense layers in pairs are tried."""

ROUNDS = 6
"""Of moving work between devices."""


@register("auto")
def candidates(study: Study) -> Iterator[Strategy]:
    """Openings, then improvements of the best of them."""
    everything = [alone(study, device, "auto") for device in study.by_speed]
    yield from everything
    if len(study.by_speed) == 1 or not study.layers:
        return
    if any(map(study.short_bytes, everything)):
        yield from fitting.candidates(study)
    yield from _Search(study).run()


def budget(study: Study) -> int:
    """How many candidates may be simulated."""
    each = CANDIDATE_S + SHARE_S * len(study.graph.operators) * len(study.by_speed) ** 1.5
    return max(FEWEST, min(MOST, int(CAREFUL * study.problem.search_budget_s / each)))


@dataclass
class _Tried:
    """A recipe and what came of it."""

    recipe: Recipe
    strategy: Strategy
    score: float


class _Search:
    """One search; its state is what was tried."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.parts = stretches(study, spread(study, STRETCHES - 1))
        self.left = budget(study)
        self.seen: set[Recipe] = set()
        self.best: _Tried | None = None
        forced = study.problem.axis
        if forced is not None and forced not in (*KNOWN_AXES, *study.axis_names):
            raise UsageError(
                f"axis {forced!r}: this model has {', '.join(study.axis_names) or 'none to split'}"
            )
        self.axes = (forced,) if forced is not None else study.axis_names[:4]

    def run(self) -> Iterator[Strategy]:
        if self.study.problem.objective == "throughput" and self.study.problem.axis is None:
            for strategy in reversed(list(staged(self.study, "auto"))):
                if self.left > 0:
                    self.left -= 1
                    yield strategy
        for other in (optcnn, bbgrap, deepthings, modnn):
            for strategy in other.candidates(self.study):
                if self.left > 0:
                    self.left -= 1
                    yield replace(strategy, name="auto")
        for strategy in self._pairs():
            if self.left > 0:
                self.left -= 1
                yield strategy
        for recipe in self._openings():
            yield from self._try(recipe)
        while self.best is not None and self.left > 0:
            before = self.best.score
            yield from self._move_work()
            yield from self._change_modes()
            if self.best.score >= before:
                return

    def _try(self, recipe: Recipe) -> Iterator[Strategy]:
        if recipe in self.seen or self.left <= 0:
            return
        self.seen.add(recipe)
        self.left -= 1
        strategy = replace(cook(self.study, recipe, self.parts), why=self._why(recipe))
        yield strategy
        if self.study.short_bytes(strategy):
            return
        if self.best is None or self.study.is_better(strategy, self.best.score):
            self.best = _Tried(recipe, strategy, self.study.score(strategy))

    def _pairs(self) -> Iterator[Strategy]:
        """Dense layers in pairs, with one sum for each: where such layers are most of the work."""
        study = self.study
        dense = sum(s for n, s in study.full_s.items() if study.coarse.accesses[n].family == "gemm")
        if study.problem.axis is not None or dense < DENSE_PART * sum(study.full_s.values()):
            return
        for devices in teams(self.study):
            choices = paired(self.study, self.study.shares(devices))
            if choices is not None:
                why = f"dense layers in pairs are shared by {', '.join(devices)}: columns of the first, rows of the second"
                yield self.study.strategy("auto", choices, why)

    def _openings(self) -> Iterator[Recipe]:
        """Half of the budget is kept for improving the best of them."""
        kept = self.left // 2
        for devices in teams(self.study):
            shares = self.study.shares(devices)
            for modes in self._first_modes(shares):
                if self.left > kept:
                    yield Recipe(modes, shares, devices[0])
            yield self._in_turn(shares)

    def _first_modes(self, shares: Shares) -> Iterator[tuple[Mode, ...]]:
        count = len(self.parts)
        rows = [axis for axis in self.axes if axis in SPATIAL]
        dense = Mode("channel") if "channel" in self.axes else WHOLE
        for axis in self.axes:
            yield (Mode(axis),) * count
        for axis in rows:
            tall = [self._is_tall(part, axis, len(shares)) for part in self.parts]
            for tail, fused in ((dense, False), (WHOLE, False), (dense, True)):
                yield tuple(Mode(axis, fused) if t else tail for t in tall)
        for axis in rows[:1]:
            for n in range(1, ENDS_TRIED + 1):
                end = count * n // (ENDS_TRIED + 1)
                yield (*(Mode(axis),) * end, *(WHOLE,) * (count - end))

    def _is_tall(self, stretch: Stretch, axis: str, count: int) -> bool:
        """Whether most of its work has rows enough for every device."""
        tall = [la for la in stretch.layers if (a := la.axis(axis)) is not None and a.extent >= 2 * count]
        seconds = sum(self.study.full_s[op.name] for layer in tall for op in layer.operators)
        return seconds * 2 > stretch.seconds

    def _in_turn(self, shares: Shares) -> Recipe:
        """Stretches on one device after another, in proportion: for memory, and for throughput."""
        total, done, at = sum(p.seconds for p in self.parts), 0.0, 0
        ends = [sum(s for _, s in shares[: n + 1]) / sum(s for _, s in shares) for n in range(len(shares))]
        modes = []
        for part in self.parts:
            while at < len(shares) - 1 and done + part.seconds / 2 > ends[at] * total:
                at += 1
            modes.append(Mode(home=shares[at][0]))
            done += part.seconds
        return Recipe(tuple(modes), shares, shares[0][0])

    def _change_modes(self) -> Iterator[Strategy]:
        """Each stretch in turn, the most expensive first, tries every other mode."""
        order = sorted(range(len(self.parts)), key=lambda n: -self.parts[n].seconds)
        for number in order:
            if self.best is not None:
                for mode in self._modes(self.best.recipe):
                    yield from self._try(self.best.recipe.with_mode(number, mode))

    def _modes(self, now: Recipe) -> Iterator[Mode]:
        """Other ways for a stretch: the axes that the recipe has, channels, and whole here or at the
        gateway."""
        used = [axis for axis in self.axes if any(mode.axis == axis for mode in now.modes)]
        for axis in used or self.axes[:1]:
            if axis in SPATIAL:
                yield Mode(axis, fused=True)
                yield Mode(axis, fused=True, joined=True)
            yield Mode(axis)
        yield WHOLE
        if "channel" in self.axes and "channel" not in used:
            yield Mode("channel")
        if self.study.problem.gateway != now.home:
            yield Mode(home=self.study.problem.gateway)

    def _move_work(self) -> Iterator[Strategy]:
        """Shares follow how long each device is busy: who computes longer than the mean gets less."""
        for _ in range(ROUNDS):
            if self.best is None:
                return
            before, recipe = self.best.score, self.best.recipe
            busy = self.study.forecast(self.best.strategy).compute_s
            if len(busy) < len(recipe.shares):
                return
            mean = sum(busy[name] for name in recipe.devices) / len(recipe.shares)
            shares = tuple(
                (name, share * (mean / max(busy[name], mean / 4)) ** 0.5) for name, share in recipe.shares
            )
            total = sum(share for _, share in shares)
            yield from self._try(replace(recipe, shares=tuple((n, round(s / total, 4)) for n, s in shares)))
            if self.best.score >= before:
                return

    def _why(self, recipe: Recipe) -> str:
        seconds: dict[str, float] = {}
        for mode, part in zip(recipe.modes, self.parts, strict=True):
            seconds[str(mode)] = seconds.get(str(mode), 0.0) + part.seconds
        total = sum(seconds.values()) or 1.0
        ranked = sorted(seconds.items(), key=lambda item: -item[1])
        parts = ", ".join(f"{s / total:.0%} {mode}" for mode, s in ranked if s / total >= 0.005)
        return f"the work is shared by {', '.join(recipe.devices)}: {parts}"


def teams(study: Study) -> Iterator[tuple[str, ...]]:
    """Groups of devices worth a try: the fastest few and the best connected few, all of them first."""
    fast = study.by_speed
    gateway = study.problem.gateway
    near = tuple(
        sorted(fast, key=lambda name: (-study.cluster.link(name, gateway).bytes_per_s, fast.index(name)))
    )
    sizes = [
        n for n in range(len(fast), 1, -1) if n <= 4 or n == len(fast) or n in (6, 8, 12, 16, 24, 32, 64, 128)
    ]
    found = dict.fromkeys(
        tuple(sorted(order[:size], key=fast.index)) for size in sizes for order in (fast, near)
    )
    yield from found
