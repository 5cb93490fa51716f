"""OptCNN (Jia, Lin, Qi, Aiken: Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks):
each layer has a configuration (section 4); node and edge elimination (section 5.2) minimises the sum of the
seconds of all layers and of the transfers between them (section 5.1).

Our additions: unequal devices get proportional parts, and each link has its own speed; a layer may be whole
on one device or on all, or a sum of parts; the nodes that the eliminations leave are eliminated as variables,
so that any graph is solved, exactly unless its tables become too large. If comparing all configurations would
take too long, those that take longest are left out, and the explanation says so instead of a proof.

The paper's cost knows nothing of memory. If the solution does not fit, weights get a price on each device that lacks
memory (a Lagrange multiplier), and the problem is solved again with higher prices until what it finds fits. Then the
solution is no longer proven. If nothing of this fits, nor any device alone, layers are in stages (fitting_stages.py)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from math import inf

import numpy as np

from edgepart.planner.errors import UsageError
from edgepart.planner.layerwise.configurations import make_space
from edgepart.planner.layerwise.elimination import Solution, minimise
from edgepart.planner.layerwise.time_costs import LayerwiseProblem, TimeCosts
from edgepart.planner.layout.choices import Choice, Divide, Reduce, Whole
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.bbgrap import KNOWN_AXES
from edgepart.planner.strategies.fitting_stages import fit_in_stages
from edgepart.planner.strategies.registry import register
from edgepart.planner.strategies.single import run_alone

PRICES = 8
"""The most times that prices of memory are raised."""

PART = 0.5
"""The part of the search budget that may be spent to compare all configurations."""


@register("optcnn")
def candidates(study: Study) -> Iterator[Strategy]:
    """Yield the solution, and each device alone, as the simulator sees more than a sum over layers. Of equal
    devices, only the first is yielded."""
    yield from find_within(study, PART * study.memo.problem.search_budget_s)


def find_within(study: Study, budget_s: float) -> Iterator[Strategy]:
    """Yield the same candidates; all configurations are compared only if that takes about `budget_s` at most."""
    several = len(study.memo.by_speed) > 1 and bool(study.memo.layers)
    fitted = False
    if several:
        strategy, problem, found = solve(study, budget_s)
        yield strategy
        for priced in _price_memory(study, strategy, problem, found):
            yield priced
            strategy = priced
        fitted = not study.scorer.short_bytes(strategy)
    first: dict[Hashable, str] = {}
    for name in study.memo.by_speed:
        cluster, gateway = study.memo.cluster, study.memo.problem.gateway
        links = cluster.link(name, gateway), cluster.link(gateway, name)
        kind = cluster.device(name).kind
        first.setdefault((links, study.memo.whole_s[name], study.memo.limit_bytes(name), kind), name)
    for name in first.values():
        alone = run_alone(study, name, "optcnn")
        yield alone
        fitted = fitted or not study.scorer.short_bytes(alone)
    if several and not fitted:
        because = (
            "no configurations of the layers were found that fit, so that layers are in stages instead: "
        )
        yield from fit_in_stages(study, "optcnn", because)


def _price_memory(
    study: Study, strategy: Strategy, problem: LayerwiseProblem, found: Solution
) -> Iterator[Strategy]:
    """Yield strategies in which devices that lack memory have fewer weights, until one fits. At the first
    prices, a full memory costs an eighth of what the whole solution takes."""
    devices = [device.name for device in study.memo.cluster.devices]
    limits = np.array([max(1.0, study.memo.limit_bytes(name)) for name in devices])
    prices, step = np.zeros(len(devices)), found.cost / limits / 8
    for _ in range(PRICES if found.cost < inf else 0):
        if not study.scorer.short_bytes(strategy):
            return
        peaks = study.scorer.forecast(strategy).peak_memory_bytes
        over = np.array([peaks.get(name, 0) for name in devices]) / limits - 1
        prices += step * np.maximum(over, 0.0)
        step *= 2
        priced = zip(problem.unary, problem.weight_bytes, strict=True)
        found = minimise([seconds + nbytes @ prices for seconds, nbytes in priced], problem.edges)
        choices = problem.choices_of(found.choice)
        why = f"each of {len(choices)} layers has its own configuration (weights have a price where memory is short): "
        strategy = study.candidates.make("optcnn", choices, why + summarise_choices(study.memo, choices))
        yield strategy


def solve(study: Study, budget_s: float = inf) -> tuple[Strategy, LayerwiseProblem, Solution]:
    """The strategy of least cost, the problem that it solves, and the solution. All configurations are compared
    if that takes about `budget_s` at most, else the most promising ones of each layer.

    Raises UsageError for a forced axis that the model does not have."""
    wanted, there = study.memo.problem.axis, {axis.name for la in study.memo.layers for _, axis in la.reduced}
    if wanted is not None and wanted not in {*KNOWN_AXES, *study.memo.axis_names, *there}:
        raise UsageError(
            f"axis {wanted!r}: this model has {', '.join((*study.memo.axis_names, *sorted(there)))}"
        )
    problem, found = _minimise(study.memo, budget_s)
    choices = problem.choices_of(found.choice)
    strategy = study.candidates.make("optcnn", choices, explain_choices(study.memo, problem, found))
    return strategy, problem, found


def _minimise(memo: Memo, budget_s: float) -> tuple[LayerwiseProblem, Solution]:
    """The problem with all configurations if it is small enough, and its solution. If that is not exact, fewer
    configurations may have a better one, because the tables of eliminations are smaller."""
    costs, solved = TimeCosts(memo, make_space(memo, whole=True)), []
    if costs.size().fits(budget_s):
        problem = costs.build_problem()
        solved.append((problem, minimise(problem.unary, problem.edges)))
    if not any(found.exact for _, found in solved):
        problem = TimeCosts(memo, make_space(memo)).build_problem()
        solved.append((problem, minimise(problem.unary, problem.edges)))
    return min(solved, key=lambda one: one[1].cost)


def explain_choices(memo: Memo, problem: LayerwiseProblem, found: Solution) -> str:
    """A sentence for people: the choices for most of the work, and whether they are proven to be the best."""
    choices = problem.choices_of(found.choice)
    if not found.exact:
        proof = f"not proven best: {found.why}"
    elif problem.is_whole:
        proof = "none costs less by its model"
    else:
        compared, listed = max(map(len, problem.choices)), max(problem.listed)
        proof = (
            f"not proven best: at most {compared} of up to {listed} configurations of a layer were compared"
        )
    return f"each of {len(choices)} layers has its own configuration ({proof}): {summarise_choices(memo, choices)}"


def summarise_choices(memo: Memo, choices: Mapping[int, Choice]) -> str:
    """The choices for most of the work, with the percentage of the work that each has."""
    seconds: dict[str, float] = {}
    for layer in memo.layers:
        text = describe_choice(choices[layer.number])
        seconds[text] = seconds.get(text, 0.0) + sum(memo.fastest_s[op.name] for op in layer.operators)
    total = sum(seconds.values()) or 1.0
    ranked = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{s / total:.0%} {text}" for text, s in ranked if s / total >= 0.005)


def describe_choice(choice: Choice) -> str:
    """A few words for people that describe one choice."""
    match choice:
        case Whole((device,)):
            return f"whole on {device}"
        case Whole(devices):
            return f"whole on each of {len(devices)}"
        case Divide(axes, shares):
            return f"{' x '.join(axes)} over {len(shares)}"
        case Reduce(axis, shares, then):
            rest = "whole" if isinstance(then, Whole) else "in pieces"
            return f"sums along {axis} over {len(shares)}, then {rest}"
    return "left to its readers"
