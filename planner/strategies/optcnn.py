"""OptCNN (Jia, Lin, Qi, Aiken: Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks):
each layer has a configuration (section 4); node and edge elimination (section 5.2) minimises the sum of the
seconds of all layers and of the transfers between them (section 5.1).

Our additions: unequal devices get proportional parts, and each link has its own speed; a layer may be whole
on one device or on all, or a sum of parts; the nodes that the eliminations leave are eliminated as variables,
so that any graph is solved, exactly unless its tables become too large."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

from edgepart.planner.errors import UsageError
from edgepart.planner.layerwise.configurations import make_space
from edgepart.planner.layerwise.elimination import Solution, minimise
from edgepart.planner.layerwise.time_costs import LayerwiseProblem, TimeCosts
from edgepart.planner.layout.choices import Choice, Divide, Reduce, Whole
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.bbgrap import KNOWN_AXES
from edgepart.planner.strategies.registry import register
from edgepart.planner.strategies.single import run_alone


@register("optcnn")
def candidates(study: Study) -> Iterator[Strategy]:
    """Yield the solution, and each device alone, as the simulator sees more than a sum over layers. Of equal
    devices, only the first is yielded."""
    if len(study.memo.by_speed) > 1 and study.memo.layers:
        yield solve(study)[0]
    first: dict[Hashable, str] = {}
    for name in study.memo.by_speed:
        link, device = (
            study.memo.cluster.link(name, study.memo.problem.gateway),
            study.memo.cluster.device(name),
        )
        first.setdefault((link, study.memo.whole_s[name], study.memo.limit_bytes(name), device.kind), name)
    for name in first.values():
        yield run_alone(study, name, "optcnn")


def solve(study: Study) -> tuple[Strategy, LayerwiseProblem, Solution]:
    """The strategy of least cost, the problem that it solves, and the solution.

    Raises UsageError for a forced axis that the model does not have."""
    wanted, there = study.memo.problem.axis, {axis.name for la in study.memo.layers for _, axis in la.reduced}
    if wanted is not None and wanted not in {*KNOWN_AXES, *study.memo.axis_names, *there}:
        raise UsageError(
            f"axis {wanted!r}: this model has {', '.join((*study.memo.axis_names, *sorted(there)))}"
        )
    problem = TimeCosts(study.memo, make_space(study.memo)).build_problem()
    found = minimise(problem.unary, problem.edges)
    choices = problem.choices_of(found.choice)
    strategy = study.candidates.make("optcnn", choices, explain_choices(study.memo, choices, found))
    return strategy, problem, found


def explain_choices(memo: Memo, choices: Mapping[int, Choice], found: Solution) -> str:
    """A sentence for people: the choices for most of the work, and whether they are proven to be the best."""
    proof = "none costs less by its model" if found.exact else f"not proven best: {found.why}"
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
