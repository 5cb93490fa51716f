"""`edgepart plan`: what a plan for a model on a cluster would be, without any cluster. Door: reads the
model and cluster.json, prints, writes --html. `edgepart.cli.main` mounts `plan`; errors go through its
handler."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepart.agent.planwork.garbage_collection import collect_seldom
from edgepart.cli.options import Agent, State, TransferDtype, check_there, target_of
from edgepart.cli.output import console, nbytes, seconds
from edgepart.cli.placing import is_workload, place
from edgepart.cli.placing import read as read_workload
from edgepart.cli.verifying import is_deployment, show, verify_here, verify_live
from edgepart.planner.errors import NotInstalled, UsageError
from edgepart.planner.figures import figure
from edgepart.planner.json_text import parse_json
from edgepart.planner.plans.reduced_precision import EXACT, checked
from edgepart.planner.vocabulary import OBJECTIVES, STRATEGIES, one_of

if TYPE_CHECKING:
    from edgepart.planner.devices.cluster import Cluster
    from edgepart.planner.layout.strategy import Problem, Strategy
    from edgepart.planner.plans.plan import Plan
    from edgepart.planner.search.study import Study
    from edgepart.planner.simulation.latency import Simulation

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def plan(
    model: Annotated[
        Path, typer.Argument(help="An ONNX model, or a workload: JSON with a graph of costs to place.")
    ],
    cluster: Annotated[
        Path | None,
        typer.Option(help="cluster.json, as `edgepart devices --json` prints it; default: this machine."),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            help="auto, single, modnn, deepthings, bbgrap, data, model, owt, optcnn, tofu, pipeline or replicas; to "
            "place whole operators expert, heft, m-etf, m-sct, getf, metis or moirai."
        ),
    ] = "auto",
    compare: Annotated[bool, typer.Option("--compare", help="Every strategy, side by side.")] = False,
    axis: Annotated[
        str | None, typer.Option(help="Split along this: height, width, channel, batch ...")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Shape of an input: x=1,3,224,224. Repeatable.")
    ] = None,
    objective: Annotated[str, typer.Option(help="latency or throughput.")] = "latency",
    devices: Annotated[str | None, typer.Option(help="Only these devices: a,b.")] = None,
    gateway: Annotated[
        str | None,
        typer.Option(help="Where requests come in; default: cluster.json's gateway, else its first device."),
    ] = None,
    memory_limit: Annotated[
        list[str] | None, typer.Option(help="Per device: 2G, or pi-a=2G for one of them. Repeatable.")
    ] = None,
    budget: Annotated[
        float, typer.Option("--search-budget", "--budget", help="Seconds that the search may take, about.")
    ] = 10.0,
    borders_first: Annotated[
        bool,
        typer.Option(
            "--borders-first",
            help="Whatever the strategy, send borders before the rest is computed where that is faster; auto does.",
        ),
    ] = False,
    transfer_dtype: TransferDtype = EXACT,
    relays: Annotated[
        bool,
        typer.Option(
            "--relays",
            help="Whatever the strategy, devices pass on what others need too where that is faster; auto does.",
        ),
    ] = False,
    fusion: Annotated[
        bool,
        typer.Option(
            " /--no-fusion",
            help="Strategies that place whole operators may part what the runtime computes as one.",
        ),
    ] = True,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Measure it, too: on this machine, or, where MODEL is the name of a deployment, on its cluster.",
        ),
    ] = False,
    add: Annotated[
        list[str] | None,
        typer.Option(
            help="What if there were one more: kind=pi5[,link=1Gbit/s][,name=NAME][,memory=8G]. Repeatable."
        ),
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option(help="What if this device were not there. Repeatable.")
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(help="What if all links were as fast as each of these: links=10M,100M,1G.")
    ] = None,
    state: State = None,
    agent: Agent = None,
    html: Annotated[Path | None, typer.Option(help="Draw the plan into this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Predict how a model would be split over devices, how fast it would be, and why."""
    if budget <= 0:
        raise UsageError(f"--search-budget {budget}: give a positive number of seconds")
    if is_workload(model):
        workload = read_workload(model)
        given = {"--cluster": cluster, "--axis": axis, "--shape": shape, "--devices": devices, "--gateway": gateway,
                 "--memory-limit": memory_limit, "--borders-first": borders_first, "--relays": relays,
                 "--no-fusion": not fusion,
                 "--transfer-dtype": transfer_dtype != EXACT, "--verify": verify, "--html": html,
                 "--add": add, "--remove": remove, "--sweep": sweep}  # fmt: skip
        _refuse([name for name, value in given.items() if value], model)
        place(workload, strategy, objective, budget, compare=compare, as_json=as_json)
        return
    supposing = bool(add or remove or sweep)
    if supposing and (compare or html or verify):
        raise UsageError("--add, --remove and --sweep come without --compare, --html and --verify")
    if compare and html:
        raise UsageError("--html draws one plan; leave --compare out, or choose with --strategy")
    if verify and is_deployment(model):
        _print_verified(verify_live(target_of(agent, state), str(model)), as_json)
        return
    one_of(strategy, STRATEGIES, "--strategy")
    one_of(objective, OBJECTIVES, "--objective")
    collect_seldom()
    problem = _problem(
        model, cluster, shape or [], devices, gateway, memory_limit or [], objective, axis, budget
    )
    rounding = checked(transfer_dtype, "--transfer-dtype")
    problem = replace(problem, borders_first=borders_first, relays=relays, transfer_dtype=rounding)
    problem = replace(problem, fusion=fusion, clock=time.perf_counter)
    for note in problem.graph.notes:
        print(f"note: {note}", file=sys.stderr)
    if supposing:
        from edgepart.cli.whatif import ask

        ask(problem, strategy, add or [], remove or [], sweep, as_json)
        return
    if compare:
        _print_comparison(_compare(problem), as_json)
        return
    offer = _offer(problem, strategy)
    if html:
        from edgepart.cli.drawing import draw

        html.write_text(draw(offer.document, offer.plan, offer.simulation, problem, offer.strategy))
        print(f"drawn: {html}", file=sys.stderr)
    if verify:
        found, made = offer.simulation, offer.document
        made["verified"] = verify_here(problem, offer.plan, found.latency_s, found.compute_s)
    if as_json:
        print(json.dumps(offer.document))
        return
    _print_plan(offer.document)
    if verify:
        show(offer.document["verified"])


def _refuse(options: Sequence[str], model: Path) -> None:
    """What only a model has."""
    if options:
        raise UsageError(f"{', '.join(options)}: of no use for {model}, a workload, which says all there is")


def _print_verified(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(document))
    else:
        show(document)


@dataclass(frozen=True)
class Offer:
    """One plan and what is said about it."""

    plan: Plan
    simulation: Simulation
    strategy: Strategy
    document: dict[str, Any]


def _offer(problem: Problem, name: str) -> Offer:
    from edgepart.planner.planner import choose, single
    from edgepart.planner.report.document import summary

    study = _study(problem)
    start = time.perf_counter()
    made, simulation, strategy = choose(problem, name, study=study)
    seconds = time.perf_counter() - start
    document = summary(
        made, simulation, graph=problem.graph, strategy=strategy, search_s=seconds, single=single(study)
    )
    return Offer(made, simulation, strategy, document)


def _study(problem: Problem) -> Study:
    from edgepart.planner.search.study import Study

    return Study(problem)


def _problem(
    model: Path,
    cluster: Path | None,
    shapes: Sequence[str],
    devices: str | None,
    gateway: str | None,
    limits: Sequence[str],
    objective: str,
    axis: str | None,
    budget: float,
) -> Problem:
    from edgepart.planner.layout.strategy import Problem
    from edgepart.planner.model.assumed_shapes import load_assuming

    check_there(model)
    bound = dict(shape_option(text) for text in shapes)
    found, entry = read_cluster(cluster)
    if devices:
        found = found.only(tuple(name.strip() for name in devices.split(",") if name.strip()))
    names = [device.name for device in found.devices]
    graph, _ = load_assuming(model, bound)
    entry = gateway or (entry if entry in names else names[0])
    return Problem(graph, found, entry, objective, axis, limits_option(limits, names), budget)


def read_cluster(path: Path | None) -> tuple[Cluster, str]:
    """A cluster.json, and the device that it says requests come in at ("" where it says none); without one, this machine,
    measured. UsageError says what is wrong with the file."""
    from edgepart.planner.devices.cluster import Cluster, from_json

    if path is None:
        import os
        import platform

        from edgepart.agent.measure.probe import probe_device

        print("no --cluster: measuring this machine, the only device of this plan", file=sys.stderr)
        return Cluster((probe_device(platform.node() or "here", os.cpu_count() or 1),)), ""
    try:
        document = parse_json(path.read_text())
        return from_json(document), str(document.get("gateway") or "")
    except OSError as error:
        raise UsageError(f"--cluster {path}: {error.strerror}; give the path of a cluster.json") from error
    except ValueError as error:
        raise UsageError(f"--cluster {path}: is no JSON ({error})") from error


def shape_option(text: str) -> tuple[str, tuple[int, ...]]:
    """
    >>> shape_option("x=1,3,224,224")
    ('x', (1, 3, 224, 224))
    """
    name, equals, extents = text.rpartition("=")
    if not equals or not name or not re.fullmatch(r"\s*(\d+(\s*,\s*\d+)*)?\s*", extents):
        raise UsageError(f"--shape {text!r}: write it as INPUT=1,3,224,224")
    return name, tuple(int(extent) for extent in extents.split(",") if extent.strip())


def limits_option(texts: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """By device; a limit without a name is for all. UsageError for what is no size, or no device."""
    found: dict[str, float] = {}
    for text in texts:
        name, _, size = text.rpartition("=")
        if name and name not in names:
            raise UsageError(f"--memory-limit {text!r}: no device {name!r} among {', '.join(names)}")
        found.update({device: bytes_option(size) for device in ([name] if name else names)})
    return found


def bytes_option(text: str) -> float:
    """
    >>> bytes_option("1.5G")
    1610612736.0
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if not match:
        raise UsageError(f"--memory-limit {text!r}: write bytes, or a number with K, M, G or T, such as 512M")
    return float(match[1]) * UNITS[match[2].upper()]


def _compare(problem: Problem) -> dict[str, Any]:
    from edgepart.planner.planner import compare

    study = _study(problem)
    start = time.perf_counter()
    found: dict[str, Any] = {}
    for result in compare(problem, study):
        if result.strategy is None or result.simulation is None:
            missing = isinstance(result.infeasible, NotInstalled)
            found[result.name] = {"feasible": False, "why": str(result.infeasible)}
            found[result.name] |= {"installed": False} if missing else {}
            continue
        simulation = result.simulation
        found[result.name] = {
            "feasible": True,
            "predicted_latency_s": simulation.latency_s,
            "predicted_throughput_per_s": result.throughput_per_s if simulation.compute_s else None,
            "devices": sorted(simulation.compute_s),
            "sent_bytes": sum(simulation.sent_bytes.values()),
            "peak_memory_bytes": max(simulation.peak_memory_bytes.values(), default=0),
            "why": result.strategy.why,
        }
    return {
        "model": problem.graph.name,
        "objective": problem.objective,
        "strategies": found,
        "search_s": time.perf_counter() - start,
    }


def _print_comparison(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(document))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table("strategy", title=Text(document["model"]), title_justify="left")
    for column in ("latency", "req/s", "devices", "sent", "memory"):
        table.add_column(column, justify="right")
    rows = document["strategies"]
    best = _best(document)
    for name, row in rows.items():
        if not row["feasible"]:
            said = "does not fit" if row.get("installed", True) else "not installed"
            table.add_row(name, said, "", "", "", "", style="red")
            continue
        table.add_row(
            name,
            seconds(row["predicted_latency_s"], 4),
            figure(row["predicted_throughput_per_s"] or 0, 4),
            str(len(row["devices"])),
            nbytes(row["sent_bytes"]),
            nbytes(row["peak_memory_bytes"]),
            style="bold" if name in best else None,
        )
    out = console(soft_wrap=False)
    out.print(table)
    for name, row in rows.items():
        out.print(Text.assemble((name, "bold"), f": {row['why']}"))


def _best(document: Mapping[str, Any]) -> set[str]:
    """The strategies that nobody beats, by the objective."""
    rows = {name: row for name, row in document["strategies"].items() if row["feasible"]}
    if document["objective"] == "throughput":
        score = {name: -(row["predicted_throughput_per_s"] or 0.0) for name, row in rows.items()}
    else:
        score = {name: row["predicted_latency_s"] for name, row in rows.items()}
    return {name for name in score if score[name] == min(score.values())}


def _print_plan(document: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    out, rate = console(soft_wrap=False), document["predicted_throughput_per_s"]
    out.print(
        Text.assemble(
            (document["model"], "bold"),
            f" · {document['strategy']}: ",
            (seconds(document["predicted_latency_s"], 4), "bold"),
            " a request" + (f", {figure(rate, 4)} requests/s with many in flight" if rate else ""),
        )
    )
    if single := document["baselines"]["single"]:
        out.print(f"best single device: {seconds(single['predicted_latency_s'], 4)} on {single['device']}")
    table = Table("device")
    for column in ("computes", "sends", "receives", "weights", "peak memory", "segments"):
        table.add_column(column, justify="right")
    for name, row in document["devices"].items():
        sizes = [
            nbytes(row[k]) for k in ("sent_bytes", "received_bytes", "weight_bytes", "peak_memory_bytes")
        ]
        table.add_row(name, seconds(row["compute_s"], 4), *sizes, str(row["segments"]))
    out.print(table)
    out.print(document["why"])
