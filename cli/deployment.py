"""`edgepart deploy` and `undeploy`. `deploy` sends a model's files to an agent, shows the progress, and says how to use
the deployment."""

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
from edgepart.agent.wire.inference import (
    MOST_BINDINGS,
    MOST_SEARCH_BUDGET_S,
    MOST_SEQUENCES,
    DeployOptions,
)
from edgepart.cli.options import (
    Agent,
    AgentTarget,
    Context,
    DeployedName,
    Json,
    State,
    StatePairs,
    TransferDtype,
    check_there,
    parse_duration,
    read_pairs,
    target_of,
)
from edgepart.cli.output import console, note, print_json, progress, say
from edgepart.cli.plan_text import device_table
from edgepart.cli.query import fetch
from edgepart.planner.errors import ClusterError, EdgepartError, StillGoing, UsageError
from edgepart.planner.figures import format_seconds
from edgepart.planner.json_text import parse_json
from edgepart.planner.plans.reduced_precision import EXACT, check_kind
from edgepart.planner.report.sentences import headline
from edgepart.planner.vocabulary import AXES, OBJECTIVES, STRATEGIES, check_word

if TYPE_CHECKING:
    from edgepart.cli.client import Client

USUAL = DeployOptions()
SENDING = "sending the model"
UNITS = {SENDING: "bytes", "sending weights": "bytes", "storing": "bytes"}


Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="An .onnx file, or the folder of a language model. Its external data is found by itself.",
    ),
]
DeploymentName = Annotated[
    str | None, typer.Option("--name", help="The name that clients use.", show_default="the file's name")
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=D0,D1,...",
        help="The shape to plan first for an input with free dimensions, such as x=1,3,224,224. Repeatable.",
    ),
]
Objective = Annotated[str, typer.Option(help="What to optimise: the latency of one request, or throughput.")]
StrategyName = Annotated[
    str, typer.Option("--strategy", help="How to split the model; auto tries every way.")
]
Axis = Annotated[
    str | None,
    typer.Option(help=f"Split along this axis only: {', '.join(AXES)}.", show_default="the best"),
]
Devices = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Use only these devices.", show_default="all")
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES",
        help="The most memory to use on each device, such as 2G.",
        show_default="what each has",
    ),
]
Bindings = Annotated[
    int,
    typer.Option(
        min=0,
        max=MOST_BINDINGS,
        help="How many shapes besides the first may have plans at a time, where the model has free dimensions.",
    ),
]
SearchBudget = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="About how long the leader may search for a plan.",
        show_default="1 while requests wait, else 10",
    ),
]
NoStates = Annotated[
    bool,
    typer.Option(
        "--no-states",
        help="Keep no states between requests: clients send all inputs and get all outputs.",
    ),
]
Sequences = Annotated[
    int,
    typer.Option(
        min=1,
        max=MOST_SEQUENCES,
        help="For how many sequences devices keep the states of a model at the same time.",
    ),
]
Mirrors = Annotated[
    bool,
    typer.Option(
        "--mirror",
        help="Let each device keep a copy of another one's caches, so that a text goes on at once when a device is lost.",
    ),
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the model is served.")]
Timeout = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="How long to wait once the agent has the model: 90s, 10m. The deployment goes on after that.",
    ),
]


def deploy(
    model: Model,
    name: DeploymentName = None,
    shape: Shapes = None,
    objective: Objective = "latency",
    strategy: StrategyName = "auto",
    axis: Axis = None,
    devices: Devices = None,
    memory_limit: MemoryLimit = None,
    bindings: Bindings = USUAL.bindings,
    search_budget: SearchBudget = None,
    transfer_dtype: TransferDtype = EXACT,
    state_pair: StatePairs = None,
    no_states: NoStates = False,
    context: Context = None,
    sequences: Sequences = USUAL.sequences,
    mirror: Mirrors = False,
    wait: Wait = True,
    timeout: Timeout = "10m",
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Run MODEL on the cluster: the leader splits it, the devices load their parts, and every agent serves it. Exits with 3
    when the time to wait is up."""
    target = target_of(agent, state)
    called = name or default_name(model)
    options = DeployOptions(
        shapes=parse_shapes(shape or []),
        objective=check_word(objective, OBJECTIVES, "--objective"),
        strategy=check_word(strategy, STRATEGIES, "--strategy"),
        axis=None if axis is None else check_word(axis, AXES, "--axis"),
        devices=tuple(part.strip() for part in (devices or "").split(",") if part.strip()),
        memory_limit_bytes=None
        if memory_limit is None
        else parse_bytes(memory_limit, option="--memory-limit"),
        bindings=bindings,
        search_budget_s=None if search_budget is None else _search_budget_s(search_budget),
        transfer_dtype=check_kind(transfer_dtype, "--transfer-dtype"),
        states=read_pairs(state_pair, no_states=no_states),
        context=context,
        sequences=sequences,
        mirrors=mirror,
    )
    patience = DeployPatience(parse_duration(timeout, "--timeout"), timeout) if wait else None
    note(f"reading {model}")
    model = find_model(model)
    files = files_of(model)
    check_shapes(model, options.shapes)
    result = asyncio.run(_deploy(target, called, files, options, patience))
    endpoint = f"{target.url}/v2/models/{called}"
    result |= {"name": called, "endpoint": endpoint, "curl": f"curl -s {endpoint}"}
    if as_json:
        print_json(result)
    elif wait:
        _print_served(result, _plan_of(target, called))
    else:
        say(f"{called}: accepted. `edgepart models` shows the progress.")


def undeploy(
    name: DeployedName,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Stop serving a model, and delete it from the cluster."""
    from edgepart.agent.api.protocol import check_name

    target = target_of(agent, state)
    check_name(name)

    async def undeploy_it() -> Mapping[str, Any]:
        from edgepart.cli.client import Client

        async with Client(target) as client:
            return await client.undeploy(name)

    document = asyncio.run(undeploy_it())
    if as_json:
        print_json(document)
    elif "dismissed" in document:
        say(f"{name} is not deployed. `edgepart status` no longer shows the attempt that failed.")
    else:
        say(f"{name}: undeployed.")


def check_shapes(model: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises UsageError if the shapes do not fit the model's inputs. This is checked before any byte is sent."""
    if shapes:
        from edgepart.planner.model.load import check_shapes as fit

        fit(model, shapes)


def default_name(model: Path) -> str:
    """A deployment's name made of the file's name, without its ending. Raises UsageError if no allowed character is
    left."""
    made = re.sub(r"[^A-Za-z0-9._-]+", "-", model.stem).strip("-._")[:128]
    if not made:
        raise UsageError(f"{model}: its name makes no deployment's name; give one with --name")
    return made


def find_model(given: Path) -> Path:
    """The .onnx file to deploy: the one given, or the one in the folder given, which genai_config.json names, or which is
    called model.onnx (in the folder onnx/ too), or which is the only one. Raises UsageError if there is no such file."""
    if not given.is_dir():
        return given
    found = [*sorted(given.glob("*.onnx")), *sorted((given / "onnx").glob("*.onnx"))]
    named = _model_named_by_genai(given)
    usual = [path for path in found if path.name == "model.onnx"]
    chosen = named if named is not None else usual[0] if usual else found[0] if len(found) == 1 else None
    if chosen is None:
        names = ", ".join(str(path.relative_to(given)) for path in found) or "none"
        raise UsageError(f"{given}: which of its .onnx files is the model? Give its path. There are: {names}")
    return chosen


def _model_named_by_genai(folder: Path) -> Path | None:
    """The decoder that the folder's genai_config.json names; None without that file. Raises UsageError if the file cannot
    be used."""
    try:
        name = parse_json((folder / "genai_config.json").read_bytes())["model"]["decoder"]["filename"]
        return folder / str(name)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{folder / 'genai_config.json'} names no decoder ({error!r}); give the path of the .onnx file"
        ) from error


def files_of(model: Path) -> dict[str, Path]:
    """The model and its external data, by their paths relative to the model's folder, and the files beside a language
    model, which may be in the folder above. Raises UsageError and ModelError."""
    from edgepart.agent.text.companions import NAMES, TOKENIZER

    check_there(model)
    from edgepart.planner.model.load import model_files

    # The receiver recognises the graph file by its ending.
    found = {f"{model.stem}.onnx": model}
    for path in model_files(model):
        if not path.samefile(model):
            found[os.path.relpath(path, model.parent)] = path
    beside = [folder for folder in (model.parent, model.parent.parent) if (folder / TOKENIZER).is_file()]
    if beside and (beside[0] == model.parent or model.parent.name == "onnx"):
        found |= {name: beside[0] / name for name in NAMES if (beside[0] / name).is_file()}
    return found


@dataclass(frozen=True)
class DeployPatience:
    """The time to wait until a deployment is served."""

    seconds: float
    text: str
    """The text as the user wrote it."""


async def _deploy(
    target: AgentTarget,
    name: str,
    files: Mapping[str, Path],
    options: DeployOptions,
    patience: DeployPatience | None,
) -> dict[str, Any]:
    """The result that the agent reports at the end. Raises StillGoing when the time to wait is up."""
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
            f"the agent at {target.url} ended its answer early; `edgepart models` shows the progress"
        )
    return result


async def _check_devices(client: Client, chosen: Sequence[str]) -> None:
    """Raises UsageError if a chosen device is unknown, and Unavailable if none of them is here. This is checked before any
    byte of the model is sent."""
    if chosen:
        status = await client.get("/api/status")
        here, away = ([str(row["name"]) for row in status.get(key, ())] for key in ("members", "lost"))
        check_devices(chosen, here, away)


def _still_going(name: str, patience: DeployPatience | None, stage: str) -> StillGoing:
    waited = patience.text if patience else "a while"
    return StillGoing(
        f"{name} does not serve after {waited} ({stage}); it goes on. `edgepart models` shows the progress, "
        f"`edgepart undeploy {name}` stops it, and deploying again replaces it"
    )


def _plan_of(target: AgentTarget, name: str) -> Mapping[str, Any]:
    """The agent's report of the plan that serves; {} if there is none any more, which is no error here."""
    try:
        report: dict[str, Any] = fetch(target, f"/api/models/{name}/plan")
    except EdgepartError:
        return {}
    return report


def _print_served(result: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    for text in result.get("notes", ()):
        note(f"note: {text}")
    latency_s = result.get("predicted_latency_s")
    predicted = f" Predicted for one request: {format_seconds(latency_s)}." if latency_s else ""
    say(f"{result['name']} is served by {', '.join(result.get('devices', ()))}.{predicted}", prose=True)
    if plan.get("devices"):
        say("")
        console().print(device_table(plan["devices"]))
    if result.get("why"):
        say(f"\n{headline(result['why'])} `edgepart models` says more.", prose=True)
    if result.get("rounding"):
        say(f"note: {result['rounding']}", prose=True)
    say("\nEvery agent answers requests by the Open Inference Protocol v2.", prose=True)
    say(f"endpoint  {result['endpoint']}/infer")
    say(f"inputs    {result['curl']}")
    say(f"try       edgepart infer {result['name']} --input NAME=FILE.npy")


def _search_budget_s(seconds: float) -> float:
    if not 0 < seconds <= MOST_SEARCH_BUDGET_S:
        raise UsageError(
            f"--search-budget {seconds:g}: give a positive number of seconds, {MOST_SEARCH_BUDGET_S:g} at most"
        )
    return seconds
