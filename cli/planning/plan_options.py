"""Options of `edgepart plan`, of which `edgepart export MODEL` has those that say what to plan. Rules: declarations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgepart.planner.errors import UsageError

ModelOrWorkload = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="An ONNX model, or a workload: JSON with a graph of costs to place."
    ),
]
ClusterFile = Annotated[
    Path | None,
    typer.Option(
        "--cluster",
        help="A cluster.json, as `edgepart devices --json` prints it.",
        show_default="this machine",
    ),
]
StrategyName = Annotated[
    str,
    typer.Option(
        "--strategy",
        help="auto, single, modnn, deepthings, bbgrap, data, model, owt, optcnn, tofu, pipeline or replicas. To place "
        "whole operators: expert, heft, m-etf, m-sct, getf, metis, climb, learned or moirai; with --network also "
        "placeto or gdp.",
    ),
]
Compare = Annotated[bool, typer.Option("--compare", help="Compare the plans of all strategies.")]
Axis = Annotated[
    str | None, typer.Option(help="Split along this axis only: height, width, channel, batch ...")
]
Shapes = Annotated[
    list[str] | None, typer.Option("--shape", help="The shape of an input: x=1,3,224,224. Repeatable.")
]
Objective = Annotated[str, typer.Option(help="What to optimise: latency or throughput.")]
Devices = Annotated[str | None, typer.Option(help="Use only these devices: a,b.")]
Gateway = Annotated[
    str | None,
    typer.Option(
        help="The device that receives requests.",
        show_default="cluster.json's gateway, else its first device",
    ),
]
MemoryLimits = Annotated[
    list[str] | None,
    typer.Option(
        "--memory-limit", help="The most memory per device: 2G, or pi-a=2G for one of them. Repeatable."
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(
        "--search-budget",
        "--budget",
        help="About how many seconds the search may take.",
        show_default="10; for a workload, up to 60 as long as better placements come",
    ),
]
BordersFirst = Annotated[
    bool,
    typer.Option(
        "--borders-first",
        help="With any strategy, send borders before the rest is computed where that is faster; auto always tries it.",
    ),
]
Relays = Annotated[
    bool,
    typer.Option(
        "--relays",
        help="Let any strategy send data around slow links where that is faster; auto always tries it.",
    ),
]
Fusion = Annotated[
    bool,
    typer.Option(
        " /--no-fusion",
        help="Let strategies that place whole operators separate operators that the runtime would fuse.",
    ),
]
NetworkFile = Annotated[
    Path | None,
    typer.Option(
        "--network", help="Guide the strategy by this trained network, as `edgepart train` writes it."
    ),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="Measure the plan (with --compare, each) on this machine, or on the cluster if MODEL is a deployment's name.",
    ),
]
Add = Annotated[
    list[str] | None,
    typer.Option(
        help="Predict the gain of one more device: kind=pi5[,link=1Gbit/s][,name=NAME][,memory=8G]. Repeatable."
    ),
]
Remove = Annotated[list[str] | None, typer.Option(help="Predict the loss of this device. Repeatable.")]
Sweep = Annotated[
    str | None, typer.Option(help="Predict the effect of faster or slower links: links=10M,100M,1G.")
]
Advise = Annotated[
    bool,
    typer.Option(
        "--advise", help="Rank what to buy next: boxes, networks and memory, and say what would not help."
    ),
]
Spend = Annotated[
    float | None,
    typer.Option("--spend", metavar="EUR", help="With --advise, also what to buy at once for so many euros."),
]
CatalogueFile = Annotated[
    Path | None,
    typer.Option(
        "--catalogue",
        help="With --advise, offers of your own.",
        show_default="the one that comes with edgepart",
    ),
]
Why = Annotated[
    bool, typer.Option("--why", help="Print every reason for the plan. With --compare, describe every plan.")
]
Html = Annotated[Path | None, typer.Option(help="Draw the plan into this HTML file.")]


def check_positive(option: str, value: float | None, unit: str) -> None:
    """Raises UsageError for a value that is given and not positive."""
    if value is not None and not value > 0:
        raise UsageError(f"{option} {value}: give a positive number of {unit}")
