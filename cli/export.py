"""`edgepart export`: what a cluster runs, as a description; or with a model, its plan as files. Door: files, network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgepart.cli.describe.commands import print_description
from edgepart.cli.options import Agent, Json, Operators, State
from edgepart.cli.planning.exporting import addresses_option, check_options, export_plan
from edgepart.cli.planning.plan_inputs import problem_of
from edgepart.cli.planning.plan_options import (
    Axis,
    BordersFirst,
    Budget,
    ClusterFile,
    Devices,
    Fusion,
    Gateway,
    MemoryLimits,
    Objective,
    Relays,
    Shapes,
    StrategyName,
    check_positive,
)
from edgepart.client.offline import SEARCH_S
from edgepart.planner.errors import UsageError

ModelToExport = Annotated[
    Path | None,
    typer.Argument(
        metavar="[MODEL]", help="An ONNX model whose plan is written as files.", show_default=False
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="With MODEL: the folder to write, empty or not there."),
]
Addresses = Annotated[
    list[str] | None,
    typer.Option(
        "--address",
        metavar="DEVICE=HOST:PORT",
        help="With MODEL: where a device listens. Repeatable.",
        show_default="the device's name and port 7440",
    ),
]


def export(
    model: ModelToExport = None,
    out: Out = None,
    cluster: ClusterFile = None,
    strategy: StrategyName = "auto",
    axis: Axis = None,
    shape: Shapes = None,
    objective: Objective = "latency",
    devices: Devices = None,
    gateway: Gateway = None,
    memory_limit: MemoryLimits = None,
    budget: Budget = None,
    borders_first: BordersFirst = False,
    operators: Operators = None,
    relays: Relays = False,
    fusion: Fusion = True,
    address: Addresses = None,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Print the description of what is deployed, which `apply` takes. With MODEL, write how devices would share the model
    as ONNX models, schedules and a program that runs them without edgepart."""
    if model is None:
        given = {"--out": out, "--cluster": cluster, "--strategy": strategy != "auto", "--axis": axis, "--shape": shape,
                 "--objective": objective != "latency", "--devices": devices, "--gateway": gateway,
                 "--memory-limit": memory_limit, "--search-budget": budget, "--borders-first": borders_first,
                 "--operators": operators, "--relays": relays, "--no-fusion": not fusion, "--address": address}  # fmt: skip
        if options := [name for name, value in given.items() if value]:
            raise UsageError(f"{', '.join(options)}: only with a model: edgepart export MODEL --out DIR")
        print_description(state, agent, as_json=as_json)
        return
    if out is None:
        raise UsageError(f"give the folder to write: edgepart export {model} --out DIR")
    check_positive("--search-budget", budget, "seconds")
    check_options(strategy, objective, out)
    addresses, search_s = addresses_option(address or ()), SEARCH_S if budget is None else budget
    problem = problem_of(
        model,
        cluster,
        shape or (),
        devices,
        gateway,
        memory_limit or (),
        objective,
        axis,
        search_s,
        operators,
        borders_first=borders_first,
        relays=relays,
        fusion=fusion,
    )
    export_plan(problem, strategy, out, addresses, as_json=as_json)
