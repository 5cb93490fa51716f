"""`edgepart deploy` and `undeploy`: sends a model's files to an agent, shows how far it is, and says how to
use it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepart.agent.api.device_choice import check_devices
from edgepart.agent.options import parse_bytes, parse_shapes
from edgepart.agent.wire.inference import MOST_BINDINGS, MOST_SEARCH_BUDGET_S, DeployOptions
from edgepart.cli.clustering import parse_duration
from edgepart.cli.options import Agent, AgentTarget, Json, State, TransferDtype, check_there, target_of
from edgepart.cli.output import note, print_json, progress, say, seconds
from edgepart.planner.errors import ClusterError, StillGoing, UsageError
from edgepart.planner.plans.reduced_precision import EXACT, checked
from edgepart.planner.vocabulary import AXES, OBJECTIVES, STRATEGIES, one_of

if TYPE_CHECKING:
    from edgepart.cli.client import Client

SENDING = "sending the model"
UNITS = {SENDING: "bytes", "sending weights": "bytes", "storing": "bytes"}


def deploy(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="An .onnx file; its external data is found.")
    ],
    name: Annotated[
        str | None, typer.Option(help="What clients call it.", show_default="the file's name")
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=D0,D1,...",
            help="The first shape of an input with free dimensions, such as x=1,3,224,224. Repeatable.",
        ),
    ] = None,
    objective: Annotated[str, typer.Option(help="latency of one request, or throughput.")] = "latency",
    strategy: Annotated[str, typer.Option(help="How to split it; auto tries them all.")] = "auto",
    axis: Annotated[
        str | None, typer.Option(help=f"Forces the direction: {', '.join(AXES)}.", show_default="the best")
    ] = None,
    devices: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Only on these.", show_default="all")
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(metavar="BYTES", help="On each device: 2G.", show_default="what each has")
    ] = None,
    bindings: Annotated[
        int,
        typer.Option(
            min=0,
            max=MOST_BINDINGS,
            help="How many other shapes than the first have plans at a time, where the model leaves dimensions free.",
        ),
    ] = DeployOptions().bindings,
    search_budget: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="For how long the leader may search for a plan, about.",
            show_default="1 while requests wait, else 10",
        ),
    ] = None,
    transfer_dtype: TransferDtype = EXACT,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until it serves.")] = True,
    timeout: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="How long to wait, from when the agent has the model: 90s, 10m. The deployment goes on after that.",
        ),
    ] = "10m",
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Run MODEL on the cluster: the leader splits it, the devices get their parts, every agent serves it. Exits 3 when
    time is up."""
    target = target_of(agent, state)
    called = name or default_name(model)
    options = DeployOptions(
        shapes=parse_shapes(shape or []),
        objective=one_of(objective, OBJECTIVES, "--objective"),
        strategy=one_of(strategy, STRATEGIES, "--strategy"),
        axis=None if axis is None else one_of(axis, AXES, "--axis"),
        devices=tuple(part.strip() for part in (devices or "").split(",") if part.strip()),
        memory_limit_bytes=None
        if memory_limit is None
        else parse_bytes(memory_limit, option="--memory-limit"),
        bindings=bindings,
        search_budget_s=None if search_budget is None else _search_budget_s(search_budget),
        transfer_dtype=checked(transfer_dtype, "--transfer-dtype"),
    )
    patience = DeployPatience(parse_duration(timeout, "--timeout"), timeout) if wait else None
    note(f"reading {model}")
    files = files_of(model)
    check_shapes(model, options.shapes)
    result = asyncio.run(_deploy(target, called, files, options, patience))
    endpoint = f"{target.url}/v2/models/{called}"
    result |= {"name": called, "endpoint": endpoint, "curl": f"curl -s {endpoint}"}
    if as_json:
        print_json(result)
    elif wait:
        _explain(result)
    else:
        say(f"{called}: accepted. `edgepart models` shows how far it is.")


def undeploy(
    name: Annotated[str, typer.Argument(help="As `edgepart models` shows it.")],
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Stop serving a model, and forget it."""
    from edgepart.agent.api.protocol import check_name

    target = target_of(agent, state)
    check_name(name)

    async def undeploying() -> Mapping[str, Any]:
        from edgepart.cli.client import Client

        async with Client(target) as client:
            return await client.undeploy(name)

    document = asyncio.run(undeploying())
    if as_json:
        print_json(document)
    elif "dismissed" in document:
        say(f"{name}: it is not deployed; what `edgepart status` said of the try that failed is dismissed.")
    else:
        say(f"{name}: undeployed.")


def check_shapes(model: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """UsageError where they do not fit the model's inputs. Before a byte of it travels."""
    if shapes:
        from edgepart.planner.model.load import check_shapes as fit

        fit(model, shapes)


def default_name(model: Path) -> str:
    """The file's name without its ending, in characters that names may have. UsageError where nothing is
    left."""
    made = re.sub(r"[^A-Za-z0-9._-]+", "-", model.stem).strip("-._")[:128]
    if not made:
        raise UsageError(f"{model}: its name makes no deployment's name; give one with --name")
    return made


def files_of(model: Path) -> dict[str, Path]:
    """By the path relative to the model's folder, the model and its external data. UsageError, ModelError."""
    check_there(model)
    from edgepart.planner.model.load import model_files

    # The receiver knows the graph file by its ending.
    found = {f"{model.stem}.onnx": model}
    for path in model_files(model):
        if not path.samefile(model):
            found[os.path.relpath(path, model.parent)] = path
    return found


@dataclass(frozen=True)
class DeployPatience:
    """How long to wait until a deployment serves."""

    seconds: float
    text: str
    """As the user said it."""


async def _deploy(
    target: AgentTarget,
    name: str,
    files: Mapping[str, Path],
    options: DeployOptions,
    patience: DeployPatience | None,
) -> dict[str, Any]:
    """What the agent says in the end. StillGoing when the time to wait is up."""
    from edgepart.agent.api.protocol import check_name
    from edgepart.cli.client import Client

    check_name(name)
    result: dict[str, Any] = {}
    stage = ""
    async with Client(target) as client:
        await _check_devices(client, options.devices)
        try:
            async with asyncio.timeout(None) as timer:
                with progress(UNITS) as bar:
                    async for document in client.deploy(name, files, options, patience is not None):
                        result = document.get("result", result)
                        if "stage" not in document:
                            continue
                        stage = document["stage"]
                        bar(stage, document["done"], document["total"])
                        if patience is not None and timer.when() is None and stage != SENDING:
                            timer.reschedule(asyncio.get_running_loop().time() + patience.seconds)
                            note(f"waiting until it serves, {patience.text} at most (--timeout)")
        except TimeoutError as error:
            raise _still_going(name, patience, stage) from error
    if not result:
        raise ClusterError(
            f"the agent at {target.url} ended its answer early; `edgepart models` shows how far it is"
        )
    return result


async def _check_devices(client: Client, chosen: Sequence[str]) -> None:
    """Before a byte of the model travels."""
    if chosen:
        status = await client.get("/api/status")
        here, away = ([str(row["name"]) for row in status.get(key, ())] for key in ("members", "lost"))
        check_devices(chosen, here, away)


def _still_going(name: str, patience: DeployPatience | None, stage: str) -> StillGoing:
    waited = patience.text if patience else "a while"
    return StillGoing(
        f"{name} does not serve after {waited} ({stage}); it goes on. `edgepart models` shows how far it is, "
        f"`edgepart undeploy {name}` takes it back, and deploying again replaces it"
    )


def _explain(result: Mapping[str, Any]) -> None:
    for text in result.get("notes", ()):
        note(f"note: {text}")
    devices = ", ".join(result.get("devices", ()))
    say(f"{result['name']}: serving, split by {result.get('strategy')} over {devices}")
    if result.get("predicted_latency_s"):
        say(f"predicted latency {seconds(result['predicted_latency_s'])}: {result.get('why')}", prose=True)
    if result.get("rounding"):
        say(f"note: {result['rounding']}", prose=True)
    say(f"\nendpoint  {result['endpoint']}/infer  (Open Inference Protocol v2, at any agent)")
    say(f"inputs    {result['curl']}")
    say(f"try       edgepart infer {result['name']} --input NAME=FILE.npy")


def _search_budget_s(seconds: float) -> float:
    if not 0 < seconds <= MOST_SEARCH_BUDGET_S:
        raise UsageError(
            f"--search-budget {seconds:g}: give a positive number of seconds, {MOST_SEARCH_BUDGET_S:g} at most"
        )
    return seconds
