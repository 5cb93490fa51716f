"""Planning: from a problem to a plan. The agent and the command line both start here. Pure functions.

The strategy that the search picks is lowered in full and simulated once more; that simulation gives the plan's figures.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, replace

from edgepart.planner.cost.cost import Profiles
from edgepart.planner.errors import Infeasible, NotInstalled
from edgepart.planner.layout.strategy import Problem, Strategy
from edgepart.planner.plans.plan import Plan
from edgepart.planner.region import Region
from edgepart.planner.report.drawing import computed_tensors
from edgepart.planner.report.engines import describe_engines
from edgepart.planner.report.explain import explain_plan
from edgepart.planner.report.sentences import as_sentence
from edgepart.planner.search.choose_borders import send_borders_first
from edgepart.planner.search.choose_detours import add_detours
from edgepart.planner.search.heirs import take_if_about_as_fast
from edgepart.planner.search.study import Study
from edgepart.planner.simulation.latency import Simulation, simulate
from edgepart.planner.strategies.out_of_memory import explain_infeasible
from edgepart.planner.strategies.registry import get, strategies

Digests = MutableMapping[tuple[str, str, Region], str]
"""Digests of weights by (model digest, constant, region), remembered between plans."""


@dataclass(frozen=True)
class Result:
    """The outcome of one strategy in a comparison."""

    name: str
    strategy: Strategy | None
    simulation: Simulation | None
    throughput_per_s: float | None = None
    """Answered requests per second with many requests in flight."""
    infeasible: Infeasible | NotInstalled | None = None
    """The reason if the strategy needs more memory than the devices have, or an extra that is not installed; then the
    other results are None."""


def plan(problem: Problem, strategy_name: str = "auto") -> Plan:
    """The best plan of a strategy. Raises Infeasible if no plan fits the devices' memory, and UsageError for an unknown
    strategy, objective or axis."""
    return choose_plan(problem, strategy_name)[0]


def choose_plan(
    problem: Problem,
    strategy_name: str = "auto",
    model_digest: str = "",
    *,
    profiles: Profiles | None = None,
    digests: Digests | None = None,
    study: Study | None = None,
    also: Iterable[Strategy] = (),
    rather: Strategy | None = None,
) -> tuple[Plan, Simulation, Strategy]:
    """The best plan of a strategy, its simulation, and the chosen candidate. `also` are further candidates to compare
    with the strategy's own, and `rather` is one that is taken if it is about as fast as the best.

    Raises Infeasible if no plan fits the devices' memory, and UsageError for an unknown strategy, objective or axis."""
    study = study or Study(problem, profiles)
    strategy = best_strategy(problem, strategy_name, study)
    strategy = take_if_about_as_fast(study, rather, study.scorer.pick_best([strategy, *also]))
    plan = study.memo.lowering.plan(strategy, model_digest=model_digest, digests=digests)
    simulation = simulate(plan, problem.cluster, problem.gateway, study.memo.cost)
    why = explain_plan(study, strategy, simulation, _alone(study))
    if plan.rounded_to:
        rounding = (
            f"the values that devices send are rounded to {plan.rounded_to}, so answers differ a little"
        )
        why = f"{why}\n{as_sentence(rounding)}"
    if engines := describe_engines(study.memo, plan):
        why = "\n".join([why, *map(as_sentence, engines)])
    plan = replace(
        plan,
        predicted_latency_s=simulation.latency_s,
        predicted_throughput_per_s=study.scorer.run_stream(simulation).throughput_per_s,
        replicas=simulation.paces,
        why=why,
        layers=computed_tensors(problem.graph, strategy) if len(plan.programs) > 1 else (),
    )
    return plan, simulation, strategy


def best_single_device(study: Study) -> tuple[str, float] | None:
    """The best single device and its seconds for one request; None if the model fits on no device."""
    strategy = _alone(study)
    if strategy is None:
        return None
    device = next(
        (d for layout in strategy.layouts.values() for d in layout.regions), study.memo.problem.gateway
    )
    return device, study.scorer.forecast(strategy).latency_s


def best_strategy(problem: Problem, name: str = "auto", study: Study | None = None) -> Strategy:
    """The best candidate of the strategy `name`. Raises Infeasible if none fits the devices' memory."""
    candidates = get(name)
    study = study or Study(problem)
    try:
        best = study.scorer.pick_best(candidates(study))
    except Infeasible:
        if name != "auto":
            raise
        raise explain_infeasible(study) from None
    if problem.borders_first and not best.early:
        best = send_borders_first(study, best) or best
    if problem.relays and not best.detours:
        best = add_detours(study, best) or best
    return best


def _alone(study: Study) -> Strategy | None:
    try:
        return best_strategy(study.memo.problem, "single", study)
    except Infeasible:
        return None


def compare(problem: Problem, study: Study | None = None) -> list[Result]:
    """The best candidate of every strategy, in the order of the registry. No plan is built: candidates are
    only sketched."""
    study = study or Study(problem)
    found: list[Result] = []
    for name in strategies():
        try:
            strategy = best_strategy(problem, name, study)
        except (Infeasible, NotInstalled) as error:
            found.append(Result(name, None, None, infeasible=error))
        else:
            rate = study.scorer.forecast_stream(strategy).throughput_per_s
            found.append(Result(name, strategy, study.scorer.forecast(strategy), rate))
    return found


def without_engines_s(study: Study) -> float | None:
    """The predicted seconds of the plan of `auto` on CPUs alone; None if no device has engines, or no plan fits."""
    problem = study.memo.problem
    plain = replace(problem, cluster=problem.cluster.without_engines())
    if plain == problem:
        return None
    alone = study.on(plain)
    try:
        return alone.scorer.forecast(best_strategy(plain, "auto", alone)).latency_s
    except Infeasible:
        return None
