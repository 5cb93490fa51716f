"""Our own strategy: simulate the candidates of all other strategies, and improve the best one step by step;
the best candidate that fits wins.

The search starts from every single device that may be the best (so that the answer is never slower than the
best single device) and from all candidates of all strategies. Then come recipes (planner/search/openings.py):
every direction over the k fastest and the k best connected devices, mixed directions, blocks with recomputed
instead of fetched halos, stretches on one device after another. The best candidate is improved, wherever it
came from: work moves from the busiest device to the idlest, devices that make it slower are left out, and
stretches of the model are done as in other good candidates, as in the best placement of whole operators
(planner/strategies/placed.py), or in another mode. One plan may therefore place a part of the model and split
the rest. Last, the borders that devices send each other are computed and sent first where that is faster
(planner/search/choose_borders.py), and transfers take detours around slow links
(planner/search/choose_detours.py).

A candidate whose busiest device or network card alone takes longer than the best so far is not simulated
(planner/search/lower_bound.py).

The budget is a number of average simulations, from `Problem.search_budget_s` and the size of the graph, as
rules have no clock."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

from edgepart.planner.errors import Infeasible, NotInstalled, UsageError
from edgepart.planner.layout.choices import Choice
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.search.choose_borders import send_borders_first
from edgepart.planner.search.choose_detours import add_detours, try_detours
from edgepart.planner.search.dense_pairs import pair_dense_layers
from edgepart.planner.search.lower_bound import is_hopeless
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.moves import Choices, devices_of, leave_out, rescale, widen
from edgepart.planner.search.openings import axes_of, openings
from edgepart.planner.search.openings import teams as teams
from edgepart.planner.search.recipe import (
    SPATIAL,
    WHOLE,
    LayerStretch,
    Mode,
    Recipe,
    expand_recipe,
    expand_stretch,
    stretches,
)
from edgepart.planner.search.study import Study
from edgepart.planner.strategies import optcnn, out_of_memory, placed, tofu
from edgepart.planner.strategies.bbgrap import KNOWN_AXES
from edgepart.planner.strategies.deepthings import spread_cuts
from edgepart.planner.strategies.registry import PLACERS, get, register, strategies
from edgepart.planner.strategies.single import holds, singles

STRETCHES = 12
"""The most stretches of the model, which can be treated differently."""

CANDIDATE_S, SHARE_S = 0.01, 6e-5
"""The approximate seconds to plan a candidate: a fixed part, and a part for each operator and device (devices
to the power of 1.5, as each talks to others)."""

UNSIMULATED = 0.15
"""The cost of a candidate that is laid out but not simulated, as a part of the cost of one that is."""

CAREFUL = 0.1
"""The part of the search budget that is spent, as the boxes that plan are slow and busy."""

ALL_PART = CAREFUL / 2
"""The part of the search budget that `optcnn` may spend to compare all configurations instead of the best ones."""

AMPLE_S = 2.0
"""The search budget from which on all candidates of all strategies are looked at, whatever that costs."""

LIKELY = 0.65
"""An opening (or Tofu's equal halves) is looked at only if its busiest device or network card takes less than
this part of the best latency so far, as devices also wait."""

FEWEST, MOST = 4, 400
"""Bounds on the number of candidates that the budget pays for."""

DENSE_PART = 0.5
"""The part of the work that must be in dense layers for pairs of them to be tried."""

Order = Mapping[int, float]
"""The order of layers, as in `Strategy.order`."""

PLACED = "as in a placement of whole operators"

ROUNDS = 6
"""The most rounds of moving work between devices."""

KEPT = 4
"""The number of best candidates that are remembered: their choices for each stretch are tried in the best of them."""

BORDERS_TRIED = 8
"""The devices, over all candidates, for which sending borders first is tried: two candidates of four devices
each, or one candidate of more devices."""

HOPEFUL = 1.5
"""A candidate of several devices is improved only if it takes less than this many times as long as the best
single device."""

PLACED_S = 1e-4
"""The approximate seconds, for each layer and device, that a quick placer and the work on its answer take."""

QUICK = ("heft", "m-etf")
"""The placers that take so little time that they are always asked; below an ample budget (`AMPLE_S`), only the first."""

THOROUGH = tuple(name for name in PLACERS if name not in (*QUICK, "placeto", "gdp"))
"""The placers that are asked if a quick placement is nearly as good as the best so far; none whose network a user has to
train."""

SHARES: Mapping[str, float] = MappingProxyType({"learned": 0.05, "climb": 0.1, "moirai": 0.2})
"""The part of the search budget for those that use all the time that they are given. They are asked only if the
problem has a clock."""

SHARE = 0.05
"""The part for each of the others."""

MANY = 400
"""The layers from which on exact search is too slow, so that `learned` is asked as well: of smaller models it found no
better placement (squeezenet, resnet50), and made the search longer."""

NEARLY = 1.3
"""Thorough placers are asked only if a quick placement takes less than this many times as long as the best so far."""

PROMISING = ("optcnn", "bbgrap", "deepthings", "modnn", "model", "data", "owt")
"""The other strategies, those first whose best candidate is most often the best of all; strategies that are
not named here come later."""


@register("auto")
def candidates(study: Study) -> Iterator[Strategy]:
    """Yield single devices, the candidates of the other strategies, openings, and improvements of the best of these."""
    tried = list(singles(study, "auto"))
    yield from tried
    if len(study.memo.by_speed) == 1 or not study.memo.layers:
        return
    if not all(holds(study, device) for device in study.memo.by_speed):
        yield from out_of_memory.candidates(study)
    yield from _AutoSearch(study, tried).run()
    yield from try_detours(study, candidates)


def each_s(memo: Memo, devices: int) -> float:
    """The approximate seconds to lay out and simulate a candidate of `devices` devices."""
    return CANDIDATE_S + SHARE_S * len(memo.graph.operators) * float(devices**1.5)


def budget(memo: Memo) -> int:
    """The number of candidates that may be simulated if each uses every device; others cost less."""
    each = each_s(memo, len(memo.by_speed))
    return max(FEWEST, min(MOST, int(CAREFUL * memo.problem.search_budget_s / each)))


@dataclass(frozen=True)
class _Tried:
    """A candidate that fits, with its score."""

    strategy: Strategy
    choices: Choices
    score: float


class _AutoSearch:
    """One search; its state is the candidates that were tried."""

    def __init__(self, study: Study, single: list[Strategy]) -> None:
        self.study = study
        self.parts = stretches(study.memo, spread_cuts(study.memo, STRETCHES - 1))
        self.left = float(budget(study.memo))
        self.seen: set[Hashable] = {
            _key(None, study.candidates.keep_whole(device), {}) for device in study.memo.by_speed
        }
        self.found: list[_Tried] = []
        """The best candidates of several devices, the very best first."""
        self.placed: _Tried | None = None
        """The best placement of whole operators."""
        self.eager: Strategy | None = None
        """A placement of whole operators as if links took no time."""
        scores = [study.scorer.score(one) for one in single if not study.scorer.short_bytes(one)]
        self.alone = min(scores, default=float("inf"))
        """The best score of a single device or of replicas."""
        forced = study.memo.problem.axis
        if forced is not None and forced not in (*KNOWN_AXES, *study.memo.axis_names):
            raise UsageError(
                f"axis {forced!r}: this model has {', '.join(study.memo.axis_names) or 'none to split'}"
            )

    def run(self) -> Iterator[Strategy]:
        ample = self.study.memo.problem.search_budget_s >= AMPLE_S
        for strategy in self._rivals():
            if strategy.replicas:
                yield from self._deal(replace(strategy, name="auto"))
                continue
            yield from self._try(replace(strategy, name="auto"), free=ample)
            if self.left <= 0:
                break
        yield from self._placements()
        yield from self._pairs()
        kept = self.left / 2
        for recipe in openings(self.study.memo, self.parts):
            if self.left <= kept:
                break
            yield from self._cook(
                expand_recipe(self.study.candidates, recipe, self.parts),
                self._describe(recipe),
                likely=LIKELY,
            )
        if self.found and self.found[0].score < HOPEFUL * self.alone:
            yield from self._improve()
            yield from self._improve_transfers()

    def _improve(self) -> Iterator[Strategy]:
        """Improve the best candidate until nothing helps or the budget is spent. Leaving out devices is tried
        in any case."""
        while True:
            before = self.found[0].score
            yield from self._move_work()
            yield from self._leave_out()
            yield from self._change_stretches()
            if self.found[0].score >= before or self.left <= 0:
                break
        if self.found[0].score < before:
            yield from self._leave_out()

    def _improve_transfers(self) -> Iterator[Strategy]:
        """Send borders first and add detours in the best candidates. This does not count against the budget,
        as nothing is laid out for it."""
        count = max(1, min(2, BORDERS_TRIED // len(self.study.memo.by_speed)))
        for tried in self.found[:count]:
            found = send_borders_first(self.study, tried.strategy)
            if found is not None:
                yield found
            around = add_detours(self.study, found or tried.strategy)
            if around is not None:
                yield around

    def _rivals(self) -> Iterator[Strategy]:
        """Yield all candidates of the other strategies. Replicas and pipelines come first if throughput is
        the objective; with a forced axis they are left out, as they divide along none."""
        apart = ("auto", "single", "replicas", "pipeline", *PLACERS)
        names = [name for name in PROMISING if name in strategies()]
        names += [name for name in strategies() if name not in (*names, *apart)]
        if self.study.memo.problem.axis is None:
            first = self.study.memo.problem.objective == "throughput"
            names = ["replicas", "pipeline", *names] if first else [*names, "pipeline"]
        for name in names:
            match name:
                case "optcnn":
                    yield from optcnn.find_within(
                        self.study, ALL_PART * self.study.memo.problem.search_budget_s
                    )
                case "tofu":
                    yield from tofu.find_likely(self.study, LIKELY)
                case _:
                    yield from get(name)(self.study)

    def _placements(self) -> Iterator[Strategy]:
        """Yield placements of whole operators; the best one is remembered, so that its stretches can be tried elsewhere."""
        study, problem = self.study, self.study.memo.problem
        quick_s = PLACED_S * len(study.memo.layers) * len(study.memo.by_speed)
        if problem.axis is not None or quick_s > CAREFUL * problem.search_budget_s:
            return
        if problem.search_budget_s < AMPLE_S:
            yield from self._place(QUICK[0], quick_s)
            return
        for name in QUICK:
            yield from self._place(name, quick_s)
        with suppress(Infeasible):
            self.eager = placed.place_on_free_links(QUICK[0], study)
        best = min(self.alone, self.found[0].score if self.found else float("inf"))
        if self.placed is None or self.placed.score >= NEARLY * best:
            return
        for name in THOROUGH:
            if name == "learned" and len(study.memo.layers) < MANY:
                continue
            if name not in SHARES or problem.clock is not None:
                yield from self._place(name, SHARES.get(name, SHARE) * problem.search_budget_s)

    def _place(self, name: str, budget_s: float) -> Iterator[Strategy]:
        study = self.study
        try:
            found = list(placed.placements(name, study, budget_s))
        except (Infeasible, NotInstalled):
            return  # Other placers may still find a placement.
        for strategy in found:
            yield from self._try(replace(strategy, name="auto"))
            if study.scorer.short_bytes(strategy) or len(study.scorer.outline(strategy).compute_s) < 2:
                continue
            if self.placed is None or study.scorer.is_better(strategy, self.placed.score):
                self.placed = _Tried(
                    strategy, study.candidates.choices_of(strategy), study.scorer.score(strategy)
                )

    def _pairs(self) -> Iterator[Strategy]:
        """Yield candidates that divide dense layers in pairs, with one sum for each pair, if such layers are
        most of the work."""
        study = self.study
        dense = sum(
            s for n, s in study.memo.fastest_s.items() if study.memo.coarse.accesses[n].family == "gemm"
        )
        if study.memo.problem.axis is not None or dense < DENSE_PART * sum(study.memo.fastest_s.values()):
            return
        for devices in teams(study.memo):
            for heads, but in ((True, ""), (False, "; attention is whole with everybody")):
                choices = pair_dense_layers(study.memo, study.memo.shares(devices), heads=heads)
                if choices is not None:
                    whose = f"dense layers in pairs are shared by {', '.join(devices)}"
                    yield from self._cook(choices, f"{whose}: columns of the first, rows of the second{but}")

    def _cook(
        self, choices: Choices, why: str, free: bool = False, likely: float = 1.0, order: Order | None = None
    ) -> Iterator[Strategy]:
        if self.left > 0 or free:
            made = self.study.candidates.make("auto", choices, why)
            yield from self._try(replace(made, order=order) if order else made, free, likely)

    def _deal(self, strategy: Strategy) -> Iterator[Strategy]:
        """Yield replicas, which are not improved. If they beat every single device, other candidates have to beat them."""
        yield strategy
        if not self.study.scorer.short_bytes(strategy) and self.study.scorer.is_better(strategy, self.alone):
            self.alone = self.study.scorer.score(strategy)

    def _try(self, strategy: Strategy, free: bool = False, likely: float = 1.0) -> Iterator[Strategy]:
        """Yield the candidate if it may be better than the best so far, and remember it. If it is `free`, it
        does not count against the budget. It is not simulated if it certainly takes longer than the best, or
        if one of its devices or network cards is certainly busy for `likely` times as long as the best
        takes."""
        study = self.study
        choices = study.candidates.choices_of(strategy)
        key = _key(strategy.hub, choices, strategy.order)
        if key in self.seen:
            return
        self.seen.add(key)
        best = min(self.alone, self.found[0].score if self.found else float("inf"))
        hopeless = is_hopeless(study, strategy, best, likely)
        if not free:
            used = each_s(study.memo, len(devices_of(choices))) / each_s(study.memo, len(study.memo.by_speed))
            self.left -= used * (UNSIMULATED if hopeless else 1.0)
        if hopeless:
            return
        yield strategy
        if len(study.scorer.outline(strategy).compute_s) < 2 or study.scorer.short_bytes(strategy):
            return
        if len(self.found) < KEPT or study.scorer.is_better(strategy, self.found[-1].score):
            self.found.append(_Tried(strategy, choices, study.scorer.score(strategy)))
            self.found.sort(key=lambda tried: tried.score)
            del self.found[KEPT:]

    def _move_work(self) -> Iterator[Strategy]:
        """Fit parts to how long each device is busy: a device that computes longer than the mean gets less of
        every layer."""
        for _ in range(ROUNDS):
            best = self.found[0]
            busy = self.study.scorer.outline(best.strategy).compute_s
            mean = sum(busy.values()) / len(busy)
            factors = {name: (mean / max(s, mean / 4)) ** 0.5 for name, s in busy.items()}
            why = _also(best, "parts are fitted to how long each device is busy")
            yield from self._cook(rescale(best.choices, factors), why, order=best.strategy.order)
            if self.found[0] is best:
                return

    def _leave_out(self) -> Iterator[Strategy]:
        """Leave out one device after another, as long as that is faster. This does not count against the
        budget, as no device should be used that makes the plan slower."""
        while True:
            best = self.found[0]
            for device in self._expendable(best):
                used = [name for name in devices_of(best.choices) if name != device]
                if len(used) > 1:
                    instead = min(used, key=self.study.memo.by_speed.index)
                    why = _also(best, f"without {device}")
                    changed = leave_out(best.choices, device, instead)
                    yield from self._cook(changed, why, free=True, order=best.strategy.order)
                if self.found[0] is not best:
                    break
            if self.found[0] is best:
                return

    def _expendable(self, best: _Tried) -> list[str]:
        """For each rate of a network card, the slowest first, the device that computes least. If leaving out
        that device is no gain, leaving out another one that computes more seldom is."""
        study, gateway = self.study, self.study.memo.problem.gateway
        busy = study.scorer.outline(best.strategy).compute_s
        cluster = study.memo.cluster
        rates = {n: min(cluster.sending_bytes_per_s[n], cluster.receiving_bytes_per_s[n]) for n in busy}
        found: dict[float, str] = {}
        for name in sorted(
            busy, key=lambda name: (busy[name], name == gateway, study.memo.by_speed.index(name))
        ):
            found.setdefault(rates[name], name)
        return [found[rate] for rate in sorted(found)]

    def _change_stretches(self) -> Iterator[Strategy]:
        """Do each stretch in turn, the most expensive first, as in the other good candidates, and in other modes."""
        for part in sorted(self.parts, key=lambda part: -part.seconds):
            for what, changed, order in self._ways(part):
                if self.left <= 0:
                    return
                best = self.found[0]
                why = _also(best, f"up to {part.layers[-1].operators[-1].name!r}, {what}")
                choices = {**best.choices, **changed}
                if order and not best.strategy.order:
                    yield from self._cook(choices, why)
                yield from self._cook(choices, why, order=best.strategy.order or order)

    def _ways(self, part: LayerStretch) -> Iterator[tuple[str, Mapping[int, Choice], Order]]:
        """Yield ways to do a stretch: words for the way, its choices, and the order of layers if that is not by levels."""
        study = self.study
        numbers = [layer.number for layer in part.layers]
        now = {number: self.found[0].choices[number] for number in numbers}
        for other in tuple(self.found[1:]):
            yield "as in another candidate", {number: other.choices[number] for number in numbers}, {}
        for strategy in (self.placed.strategy if self.placed else None, self.eager):
            choices = study.candidates.choices_of(strategy) if strategy else {}
            changed = {number: choices[number] for number in numbers if choices}
            if strategy and len(devices_of(choices)) > 1 and changed != now:
                yield PLACED, changed, strategy.order
        yield "borders are computed twice", widen(now, SPATIAL), {}
        used = sorted(devices_of(self.found[0].choices), key=study.memo.by_speed.index)
        recipe = Recipe((), study.memo.shares(used), used[0])
        for mode in self._modes(recipe):
            yield str(mode), expand_stretch(study.candidates, recipe, mode, part), {}

    def _modes(self, now: Recipe) -> Iterator[Mode]:
        """Yield the modes of a stretch: whole on the recipe's home or on the gateway, and every direction,
        with borders fetched or computed twice."""
        yield WHOLE
        if self.study.memo.problem.gateway != now.home:
            yield Mode(home=self.study.memo.problem.gateway)
        for axis in axes_of(self.study.memo):
            yield Mode(axis)
            if axis in SPATIAL:
                yield Mode(axis, fused=True)
                yield Mode(axis, fused=True, joined=True)

    def _describe(self, recipe: Recipe) -> str:
        seconds: dict[str, float] = {}
        for mode, part in zip(recipe.modes, self.parts, strict=True):
            seconds[str(mode)] = seconds.get(str(mode), 0.0) + part.seconds
        total = sum(seconds.values()) or 1.0
        ranked = sorted(seconds.items(), key=lambda item: -item[1])
        parts = ", ".join(f"{s / total:.0%} {mode}" for mode, s in ranked if s / total >= 0.005)
        return f"the work is shared by {', '.join(recipe.devices)}: {parts}"


def _key(hub: str | None, choices: Choices, order: Order) -> Hashable:
    """A key that is equal for candidates with the same plan."""
    return hub, frozenset(choices.items()), frozenset(order.items())


def _also(tried: _Tried, change: str) -> str:
    """The reasons for a candidate, with a change added; each change is named only once."""
    why = tried.strategy.why
    return why if change in why else f"{why}; {change}"
