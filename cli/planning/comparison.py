"""`edgepart plan --compare`: the plans of all strategies side by side, predicted and, with --verify, measured here. Door:
it runs the plans, has a clock, and prints."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any

from edgepart.cli.output import console, note, say, table
from edgepart.cli.planning.refused import in_short, refused_row
from edgepart.cli.verification import check_measurable, percent, verify_here
from edgepart.planner.figures import format_bytes, format_figure, format_seconds

if TYPE_CHECKING:
    from edgepart.planner.layout.strategy import Problem, Strategy
    from edgepart.planner.search.study import Study
    from edgepart.planner.simulation.latency import Simulation


def _study(problem: Problem) -> Study:
    from edgepart.planner.search.study import Study

    return Study(problem)


def compare_strategies(problem: Problem, *, verify: bool = False) -> dict[str, Any]:
    """The comparison as a document; if asked to `verify`, with what each plan takes on this machine. Raises UsageError,
    before the search, if that cannot be measured here."""
    from edgepart.planner.planner import compare, without_engines_s
    from edgepart.planner.report.engines import engine_documents

    if verify:
        check_measurable(problem)
    study = _study(problem)
    measured = _Measurements(study)
    start = time.perf_counter()
    found: dict[str, Any] = {}
    plans: dict[str, tuple[Strategy, Simulation]] = {}
    for result in compare(problem, study):
        if result.strategy is None or result.simulation is None:
            assert result.infeasible is not None, "what was not found has a reason"
            found[result.name] = refused_row(result.infeasible)
            continue
        simulation = result.simulation
        plans[result.name] = result.strategy, simulation
        found[result.name] = {
            "feasible": True,
            "predicted_latency_s": simulation.latency_s,
            "predicted_throughput_per_s": result.throughput_per_s if simulation.compute_s else None,
            "devices": sorted(simulation.compute_s),
            "sent_bytes": sum(simulation.sent_bytes.values()),
            "peak_memory_bytes": max(simulation.peak_memory_bytes.values(), default=0),
            "why": result.strategy.why,
        }
    search_s = time.perf_counter() - start
    for name, (strategy, simulation) in plans.items() if verify else ():
        found[name]["verified"] = measured.of(name, strategy, simulation)
    return {
        "model": problem.graph.name,
        "objective": problem.objective,
        "strategies": found,
        "engines": engine_documents(study.memo),
        "without_engines_s": without_engines_s(study),
        "search_s": search_s,
    }


class _Measurements:
    """What plans take on this machine. Strategies that come to the same plan share a measurement."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._known: dict[str, dict[str, Any]] = {}

    def of(self, name: str, strategy: Strategy, simulation: Simulation) -> dict[str, Any]:
        """The comparison of `verify_here`, for the plan of the strategy `name`."""
        plan = self._study.memo.lowering.plan(strategy)
        if plan.structure not in self._known:
            note(f"measuring the plan of {name}")
            problem, predicted_s = self._study.memo.problem, simulation.latency_s
            self._known[plan.structure] = verify_here(problem, plan, predicted_s, simulation.compute_s)
        return self._known[plan.structure]


def print_comparison(document: dict[str, Any], *, reasons: bool, as_json: bool) -> None:
    """Prints a row for each strategy, and which is the best; with `reasons`, why each plan is as it is."""
    if as_json:
        print(json.dumps(document))
        return
    from rich.table import Table
    from rich.text import Text

    strategies = Table("strategy", title=Text(document["model"]), title_justify="left")
    rows = document["strategies"]
    verified = any("verified" in row for row in rows.values())
    for column in (
        "latency",
        *(("measured", "off") if verified else ()),
        "req/s",
        "devices",
        "sent",
        "memory",
    ):
        strategies.add_column(column, justify="right")
    best = _best(document)
    for name, row in rows.items():
        if not row["feasible"]:
            strategies.add_row(name, in_short(row), style="red")
            continue
        strategies.add_row(
            name,
            format_seconds(row["predicted_latency_s"], 4),
            *(_measured(row["verified"]) if verified else ()),
            format_figure(row["predicted_throughput_per_s"] or 0, 4),
            str(len(row["devices"])),
            format_bytes(row["sent_bytes"]),
            format_bytes(row["peak_memory_bytes"]),
            style="bold" if name in best else None,
        )
    out = console(soft_wrap=False)
    out.print(strategies)
    _print_engines(document)
    for name, row in rows.items():
        if reasons or not row["feasible"]:
            out.print(Text.assemble((name, "bold"), f": {row['why']}"))
    if not reasons:
        say(f"{_verdict(document, best)} (--why describes each plan.)", prose=True)


def _measured(verified: Mapping[str, Any]) -> tuple[str, str]:
    """The measured latency, and how far the predicted one is off."""
    return format_seconds(verified["measured_latency_s"], 4), percent(verified["off"])


def _print_engines(document: Mapping[str, Any]) -> None:
    """Prints what each engine would give; nothing if there is none."""
    if not document["engines"]:
        return
    rows = [
        (
            figures["engine"],
            figures["device"],
            str(figures["operators"]),
            format_seconds(figures["cpu_s"]),
            format_seconds(figures["engine_s"]),
            f"{format_figure(figures['times_as_long'])}x as long",
        )
        for figures in document["engines"]
    ]
    out = console(soft_wrap=False)
    out.print()
    out.print(table(("engine", "device", "operators", "on the CPU", "on the engine", ""), rows))
    if document["without_engines_s"] is not None:
        say(f"Without engines, auto takes {format_seconds(document['without_engines_s'], 4)}.")


def _verdict(document: Mapping[str, Any], best: Set[str]) -> str:
    """One sentence on which strategy is the best."""
    if not best:
        return "No strategy has a plan that fits."
    names, row = ", ".join(sorted(best)), document["strategies"][min(best)]
    if document["objective"] == "throughput":
        return f"The most requests: {format_figure(row['predicted_throughput_per_s'] or 0, 4)} a second, by {names}."
    return f"The fastest: {format_seconds(row['predicted_latency_s'], 4)}, by {names}."


def _best(document: Mapping[str, Any]) -> set[str]:
    """The strategies whose plans are the best, by the objective."""
    rows = {name: row for name, row in document["strategies"].items() if row["feasible"]}
    if document["objective"] == "throughput":
        score = {name: -(row["predicted_throughput_per_s"] or 0.0) for name, row in rows.items()}
    else:
        score = {name: row["predicted_latency_s"] for name, row in rows.items()}
    return {name for name in score if score[name] == min(score.values())}
