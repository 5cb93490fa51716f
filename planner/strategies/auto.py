"""Ours: what every other strategy would do is simulated, the best is improved step by step, and the best that fits wins.

It starts from every device alone that may be the best (so that the answer is never slower than the best single device)
and from all candidates of all strategies; then come recipes (planner/search/openings.py): every direction over the k
fastest and the k best connected devices, mixed directions, blocks with recomputed instead of fetched halos, stretches
on one device after another. The best of them is improved, whatever it came from: work moves from the busiest to the
idlest, devices that hurt are left out, and stretches of the model are done as in other good candidates, as in the best
placement of whole operators (planner/strategies/placed.py), or in another mode: so one plan may place some of a model
and split the rest. Last, what devices send each other is computed and sent first where that is faster
(planner/search/choose_borders.py), and it goes around slow links (planner/search/choose_detours.py).

A candidate whose busiest device or card alone takes longer than the best so far is not simulated
(planner/search/lower_bound.py).

The budget is counted in what simulating takes on average, from `Problem.search_budget_s` and the size of the graph, as
rules have no clock."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

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
from edgepart.planner.strategies import out_of_memory, placed, tofu
from edgepart.planner.strategies.bbgrap import KNOWN_AXES
from edgepart.planner.strategies.deepthings import spread_cuts
from edgepart.planner.strategies.registry import PLACERS, get, register, strategies
from edgepart.planner.strategies.single import holds, singles

STRETCHES = 12
"""Parts of the model that can be treated differently."""

CANDIDATE_S, SHARE_S = 0.01, 6e-5
"""The approximate time of planning: for a candidate, and for each of its operators and devices (to the power of 1.5, as
each talks to others)."""

UNSIMULATED = 0.15
"""What a candidate costs that is laid out and not simulated, of one that is."""

CAREFUL = 0.1
"""The part of the search budget that is handed out, as the boxes that plan are slow and busy."""

AMPLE_S = 2.0
"""A search budget from which on all candidates of all strategies are looked at, whatever that costs."""

LIKELY = 0.65
"""The part of the best latency so far within which the busiest device or card of an opening (or of Tofu's equal halves)
has to stay to be looked at, as devices also wait."""

FEWEST, MOST = 4, 400
"""Bounds on the number of candidates."""

DENSE_PART = 0.5
"""The part of the work from which on dense layers in pairs are tried."""

Order = Mapping[int, float]
"""The same as in a strategy."""

PLACED = "as in a placement of whole operators"

ROUNDS = 6
"""The rounds of moving work between devices."""

KEPT = 4
"""Best candidates that are remembered: what their stretches do is tried in the best of them."""

BORDERS_TRIED = 8
"""Devices over all candidates of which borders are tried first: two candidates with four devices each, one with more."""

HOPEFUL = 1.5
"""Times as long as the best single device: several devices that take longer than that are not improved."""

PLACED_S = 1e-4
"""The approximate time of placing each layer on each device, by the placers that are quick, and of what follows from
it."""

QUICK = ("heft", "m-etf")
"""The placers that take so little time that they are always asked; with less than an ample budget only the first is."""

THOROUGH = tuple(name for name in PLACERS if name not in QUICK)
"""The placers that are asked if a quick placement is nearly as good as the best so far."""

EXACT = "moirai"
"""The one of these that goes on for as long as it may. It is asked only if somebody counts seconds."""

THOROUGH_SHARE = 0.2
"""The part of the search budget for the exact placer; each of the others has a quarter of that."""

NEARLY = 1.3
"""Times as long as the best so far."""

PROMISING = ("optcnn", "bbgrap", "deepthings", "modnn", "model", "data", "owt")
"""The other strategies, those first whose best is most often the best of all; those that are not named come later."""


@register("auto")
def candidates(study: Study) -> Iterator[Strategy]:
    """Devices alone, what the others find, openings, and improvements of the best of them."""
    tried = list(singles(study, "auto"))
    yield from tried
    if len(study.memo.by_speed) == 1 or not study.memo.layers:
        return
    if not all(holds(study, device) for device in study.memo.by_speed):
        yield from out_of_memory.candidates(study)
    yield from _AutoSearch(study, tried).run()
    yield from try_detours(study, candidates)


def each_s(memo: Memo, devices: int) -> float:
    """Seconds that a candidate of so many devices takes to lay out and simulate, about."""
    return CANDIDATE_S + SHARE_S * len(memo.graph.operators) * float(devices**1.5)


def budget(memo: Memo) -> int:
    """How many candidates that use every device may be simulated; others cost less."""
    each = each_s(memo, len(memo.by_speed))
    return max(FEWEST, min(MOST, int(CAREFUL * memo.problem.search_budget_s / each)))


@dataclass(frozen=True)
class _Tried:
    """A candidate that fits, and what came of it."""

    strategy: Strategy
    choices: Choices
    score: float


class _AutoSearch:
    """One search; its state is what was tried."""

    def __init__(self, study: Study, single: list[Strategy]) -> None:
        self.study = study
        self.parts = stretches(study.memo, spread_cuts(study.memo, STRETCHES - 1))
        self.left = float(budget(study.memo))
        self.seen: set[Hashable] = {
            _key(None, study.candidates.keep_whole(device), {}) for device in study.memo.by_speed
        }
        self.found: list[_Tried] = []
        """The best of several devices, the very best first."""
        self.placed: _Tried | None = None
        """The best placement of whole operators."""
        self.eager: Strategy | None = None
        """One as if links took no time."""
        scores = [study.scorer.score(one) for one in single if not study.scorer.short_bytes(one)]
        self.alone = min(scores, default=float("inf"))
        """The best that any one device does, or replicas do."""
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
        """Until nothing helps, or the budget is spent; that devices hurt is looked at in any case."""
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
        """Sends borders first and adds detours in the best candidates. Not counted, as nothing is laid out for it."""
        count = max(1, min(2, BORDERS_TRIED // len(self.study.memo.by_speed)))
        for tried in self.found[:count]:
            found = send_borders_first(self.study, tried.strategy)
            if found is not None:
                yield found
            around = add_detours(self.study, found or tried.strategy)
            if around is not None:
                yield around

    def _rivals(self) -> Iterator[Strategy]:
        """All candidates of the other strategies. Replicas and stages come first where many requests count; they follow
        no axis."""
        apart = ("auto", "single", "replicas", "pipeline", *PLACERS)
        names = [name for name in PROMISING if name in strategies()]
        names += [name for name in strategies() if name not in (*names, *apart)]
        if self.study.memo.problem.axis is None:
            first = self.study.memo.problem.objective == "throughput"
            names = ["replicas", "pipeline", *names] if first else [*names, "pipeline"]
        for name in names:
            yield from tofu.find_likely(self.study, LIKELY) if name == "tofu" else get(name)(self.study)

    def _placements(self) -> Iterator[Strategy]:
        """Whole operators on devices; the best of them is remembered, for its stretches."""
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
            share_s = THOROUGH_SHARE * problem.search_budget_s / (1 if name == EXACT else 4)
            if name != EXACT or problem.clock is not None:
                yield from self._place(name, share_s)

    def _place(self, name: str, budget_s: float) -> Iterator[Strategy]:
        study = self.study
        try:
            found = list(placed.placements(name, study, budget_s))
        except (Infeasible, NotInstalled):
            return  # Then others do it, or nobody.
        for strategy in found:
            yield from self._try(replace(strategy, name="auto"))
            if study.scorer.short_bytes(strategy) or len(study.scorer.outline(strategy).compute_s) < 2:
                continue
            if self.placed is None or study.scorer.is_better(strategy, self.placed.score):
                self.placed = _Tried(
                    strategy, study.candidates.choices_of(strategy), study.scorer.score(strategy)
                )

    def _pairs(self) -> Iterator[Strategy]:
        """Dense layers in pairs, with one sum for each: where such layers are most of the work."""
        study = self.study
        dense = sum(
            s for n, s in study.memo.fastest_s.items() if study.memo.coarse.accesses[n].family == "gemm"
        )
        if study.memo.problem.axis is not None or dense < DENSE_PART * sum(study.memo.fastest_s.values()):
            return
        for devices in teams(study.memo):
            choices = pair_dense_layers(study.memo, study.memo.shares(devices))
            if choices is not None:
                why = f"dense layers in pairs are shared by {', '.join(devices)}: columns of the first, rows of the second"
                yield from self._cook(choices, why)

    def _cook(
        self, choices: Choices, why: str, free: bool = False, likely: float = 1.0, order: Order | None = None
    ) -> Iterator[Strategy]:
        if self.left > 0 or free:
            made = self.study.candidates.make("auto", choices, why)
            yield from self._try(replace(made, order=order) if order else made, free, likely)

    def _deal(self, strategy: Strategy) -> Iterator[Strategy]:
        """Replicas are not improved; where they do better than the rest can, that is not looked at further."""
        yield strategy
        if not self.study.scorer.short_bytes(strategy) and self.study.scorer.is_better(strategy, self.alone):
            self.alone = self.study.scorer.score(strategy)

    def _try(self, strategy: Strategy, free: bool = False, likely: float = 1.0) -> Iterator[Strategy]:
        """Yields it where it may be better than what is there, and remembers what came of it. `free` does not count
        against the budget; it is not simulated where it is sure to take longer than the best, or one of its devices or
        cards is sure to be busy for `likely` times as long as that."""
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
        """Parts follow how long each device is busy: who computes longer than the mean gets less of every layer."""
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
        """One device less, as long as that is faster. Not counted, as no device is to be used that makes it slower."""
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
        """The device that computes least, and of those behind slower links the same. Where it is no gain to be without
        that one, it is seldom one to be without another that computes more."""
        study, gateway = self.study, self.study.memo.problem.gateway
        busy = study.scorer.outline(best.strategy).compute_s
        rates = {name: study.memo.cluster.card_bytes_per_s[name] for name in busy}
        found: dict[float, str] = {}
        for name in sorted(
            busy, key=lambda name: (busy[name], name == gateway, study.memo.by_speed.index(name))
        ):
            found.setdefault(rates[name], name)
        return [found[rate] for rate in sorted(found)]

    def _change_stretches(self) -> Iterator[Strategy]:
        """Each stretch in turn, the most expensive first, is done as in the other good candidates, and in other modes."""
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
        """What may be done with a stretch, and in which order, where that is not by levels."""
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
        """Whole here or at the gateway, and every direction, with borders fetched or computed twice."""
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
    """The same for what is the same plan."""
    return hub, frozenset(choices.items()), frozenset(order.items())


def _also(tried: _Tried, change: str) -> str:
    """The reasons of a candidate, and a change; each change is said once."""
    why = tried.strategy.why
    return why if change in why else f"{why}; {change}"
