"""`edgepart plan`: predicts the plan for a model on a cluster, without any cluster. Door: it reads files, has a clock,
prints, and writes the page of --html."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepart.agent.host.garbage_collection import collect_rarely
from edgepart.cli.options import Agent, Json, Operators, State, TransferDtype, Weights
from edgepart.cli.planning.advise import ADVICE_SEARCH_S, print_advice
from edgepart.cli.planning.comparison import compare_strategies, print_comparison
from edgepart.cli.planning.placement import CLIMBING, place, prepare_search
from edgepart.cli.planning.plan_inputs import problem_of
from edgepart.cli.planning.plan_options import (
    Add,
    Advise,
    Axis,
    BordersFirst,
    Budget,
    CatalogueFile,
    ClusterFile,
    Compare,
    Devices,
    Fusion,
    Gateway,
    Html,
    MemoryLimits,
    ModelOrWorkload,
    NetworkFile,
    Objective,
    Relays,
    Remove,
    Shapes,
    Spend,
    StrategyName,
    Sweep,
    Verify,
    Why,
    check_positive,
)
from edgepart.cli.planning.printed_plan import PlanPrinting, print_plan, print_verified
from edgepart.cli.sources.quantising import quantised_graph
from edgepart.cli.sources.workload import is_workload, read_workload_file
from edgepart.cli.verification import is_deployment, verify_here, verify_live
from edgepart.client.offline import SEARCH_S, forecast
from edgepart.client.target import target_of
from edgepart.planner.errors import UsageError
from edgepart.planner.plans.reduced_precision import EXACT, check_kind
from edgepart.planner.vocabulary import GUIDED, OBJECTIVES, STRATEGIES, check_word

if TYPE_CHECKING:
    from edgepart.client.offline import Forecast
    from edgepart.planner.layout.strategy import Problem
    from edgepart.planner.placing.problem.networks import Networks


def plan(
    model: ModelOrWorkload,
    cluster: ClusterFile = None,
    strategy: StrategyName = "auto",
    compare: Compare = False,
    axis: Axis = None,
    shape: Shapes = None,
    objective: Objective = "latency",
    devices: Devices = None,
    gateway: Gateway = None,
    memory_limit: MemoryLimits = None,
    budget: Budget = None,
    borders_first: BordersFirst = False,
    transfer_dtype: TransferDtype = EXACT,
    weights: Weights = None,
    operators: Operators = None,
    network: NetworkFile = None,
    relays: Relays = False,
    fusion: Fusion = True,
    verify: Verify = False,
    add: Add = None,
    remove: Remove = None,
    sweep: Sweep = None,
    advise: Advise = False,
    spend: Spend = None,
    catalogue: CatalogueFile = None,
    state: State = None,
    agent: Agent = None,
    html: Html = None,
    why: Why = False,
    as_json: Json = False,
) -> None:
    """Predict how a model would be split over devices, how fast it would be, and why."""
    check_positive("--search-budget", budget, "seconds")
    networks, printing = _networks(strategy, network), PlanPrinting(compare, verify, why, as_json)
    if is_workload(model):
        given = {"--cluster": cluster, "--axis": axis, "--shape": shape, "--devices": devices, "--gateway": gateway,
                 "--memory-limit": memory_limit, "--borders-first": borders_first, "--relays": relays, "--html": html,
                 "--no-fusion": not fusion, "--transfer-dtype": transfer_dtype != EXACT, "--verify": verify, "--add": add,
                 "--remove": remove, "--sweep": sweep, "--weights": weights, "--operators": operators, "--advise": advise,
                 "--spend": spend is not None, "--catalogue": catalogue}  # fmt: skip
        _place(model, given, strategy, objective, budget, networks, printing)
        return
    what_if = WhatIf(add or (), remove or (), sweep, AdviceAsked(advise, spend, catalogue))
    live = verify and is_deployment(model)
    _check_combination(what_if, printing, html=html is not None, deployment=str(model) if live else "")
    if live:
        print_verified(verify_live(target_of(agent, state), str(model)), as_json)
        return
    check_word(strategy, STRATEGIES, "--strategy")
    check_word(objective, OBJECTIVES, "--objective")
    collect_rarely()
    model = quantised_graph(model, weights)
    limits, within_s = memory_limit or (), budget or (ADVICE_SEARCH_S if advise else SEARCH_S)
    inputs = model, cluster, shape or (), devices, gateway, limits, objective, axis, within_s, operators
    problem = problem_of(*inputs, borders_first=borders_first, relays=relays, fusion=fusion)
    kind = check_kind(transfer_dtype, "--transfer-dtype")
    problem = replace(problem, networks=networks, transfer_dtype=kind)
    _predict(problem, strategy, what_if, html, printing)


@dataclass(frozen=True)
class AdviceAsked:
    """Whether advice on what to buy is asked for, and the options for it."""

    wanted: bool
    spend_eur: float | None
    catalogue: Path | None


@dataclass(frozen=True)
class WhatIf:
    """Changes of the cluster whose effect is asked for."""

    add: Sequence[str]
    remove: Sequence[str]
    sweep: str | None
    advice: AdviceAsked

    @property
    def has_variants(self) -> bool:
        return bool(self.add or self.remove or self.sweep)


def _place(
    model: Path,
    given: Mapping[str, Any],
    strategy: str,
    objective: str,
    budget: float | None,
    networks: Networks,
    printing: PlanPrinting,
) -> None:
    """Places a workload. Raises UsageError for options that only a model has."""
    workload = read_workload_file(model)
    if options := [name for name, value in given.items() if value]:
        raise UsageError(
            f"{', '.join(options)}: not for {model}, a workload, which describes everything itself"
        )
    compare, reasons, as_json = printing.compare, printing.reasons, printing.as_json
    place(workload, strategy, objective, budget, networks, compare=compare, reasons=reasons, as_json=as_json)


def _networks(strategy: str, file: Path | None) -> Networks:
    """Returns what runs the networks of strategies: the file's for this strategy. Raises UsageError if it has none."""
    from edgepart.agent.engines.networks import networks_of

    if file is not None and strategy not in GUIDED:
        raise UsageError(
            f"--network: no network guides {strategy}; it goes with --strategy {' or '.join(GUIDED)}"
        )
    return networks_of({} if file is None else {strategy: file})


def _check_combination(what_if: WhatIf, printing: PlanPrinting, *, html: bool, deployment: str) -> None:
    """Raises UsageError for options that exclude each other. `deployment` is the one to measure; "" if it is a model."""
    advice, compare = what_if.advice, printing.compare
    if (what_if.has_variants or advice.wanted) and (compare or html or printing.verify):
        raise UsageError(
            "--add, --remove, --sweep and --advise do not go with --compare, --html and --verify"
        )
    if advice.wanted and what_if.has_variants:
        raise UsageError("--advise tries what can be bought; leave --add, --remove and --sweep out")
    if not advice.wanted and (advice.spend_eur is not None or advice.catalogue):
        raise UsageError("--spend and --catalogue are for --advise")
    check_positive("--spend", advice.spend_eur, "euros")
    if compare and html:
        raise UsageError("--html draws one plan; leave --compare out, or choose with --strategy")
    if compare and deployment:
        raise UsageError(
            f"--compare: {deployment} is a deployment, which has one plan; leave --compare out to measure that, or give a "
            "model's file to measure the plan of each strategy on this machine"
        )


def _predict(
    problem: Problem, strategy: str, what_if: WhatIf, html: Path | None, printing: PlanPrinting
) -> None:
    """Prints the result that the options ask for: advice, variants of the cluster, a comparison, or one plan."""
    for note in problem.graph.notes:
        print(f"note: {note}", file=sys.stderr)
    if what_if.advice.wanted:
        asked = what_if.advice
        if strategy in CLIMBING:
            prepare_search()
        print_advice(problem, strategy, asked.catalogue, asked.spend_eur, printing.reasons, printing.as_json)
    elif what_if.has_variants:
        from edgepart.cli.planning.what_if import print_variants

        print_variants(problem, strategy, what_if.add, what_if.remove, what_if.sweep, printing.as_json)
    elif printing.compare:
        document = compare_strategies(problem, verify=printing.verify)
        print_comparison(document, reasons=printing.reasons, as_json=printing.as_json)
    else:
        if strategy in CLIMBING:
            prepare_search()
        offer = forecast(problem, strategy)
        if html:
            _draw(offer, problem, html)
        if printing.verify:
            found = offer.simulation
            offer.document["verified"] = verify_here(problem, offer.plan, found.latency_s, found.compute_s)
        print_plan(offer.document, printing)


def _draw(offer: Forecast, problem: Problem, html: Path) -> None:
    from edgepart.cli.planning.plan_page import draw

    html.write_text(draw(offer.document, offer.plan, offer.simulation, problem, offer.strategy))
    print(f"drawn: {html}", file=sys.stderr)
