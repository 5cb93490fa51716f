"""`edgepart deploy`, `rollback` and `undeploy`. `deploy` sends a model's files to an agent, shows the progress, and says
how to use the deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from edgepart.agent.options import parse_bytes, parse_delay, parse_shapes
from edgepart.agent.wire.inference import (
    MOST_BATCH_ROWS,
    MOST_BINDINGS,
    MOST_ERROR,
    MOST_KEPT,
    MOST_SEARCH_BUDGET_S,
    MOST_SEQUENCES,
    DeployOptions,
)
from edgepart.cli.deploying import (
    DeployPatience,
    check_chosen_devices,
    deploy_files,
    roll_back,
    undeploy_it,
)
from edgepart.cli.options import (
    Agent,
    Context,
    DeployedName,
    Input,
    Json,
    Picture,
    State,
    StatePairs,
    TransferDtype,
    Weights,
    parse_duration,
    read_pairs,
)
from edgepart.cli.output import console, note, print_json, say
from edgepart.cli.plan_text import device_table
from edgepart.cli.query import fetch
from edgepart.cli.sources.model import USUAL_DOWNLOAD_LIMIT, LocalModel, model_at, name_of_source, read_digest
from edgepart.cli.sources.quantising import quantised
from edgepart.client.model_files import check_shapes, default_name
from edgepart.client.target import AgentTarget, target_of
from edgepart.planner.errors import EdgepartError, UsageError
from edgepart.planner.figures import format_seconds
from edgepart.planner.plans.reduced_precision import EXACT, check_kind
from edgepart.planner.report.sentences import headline
from edgepart.planner.vocabulary import AXES, OBJECTIVES, STRATEGIES, WEIGHTS, check_word

USUAL = DeployOptions()


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="An .onnx file, its https:// URL, or the folder of a language model. External data is found by itself.",
    ),
]
Digest = Annotated[
    str | None,
    typer.Option(
        metavar="sha256:HEX",
        help="Deploy only if the model has this digest; that of a model of one file is the file's SHA-256.",
    ),
]
DownloadLimit = Annotated[
    str, typer.Option(metavar="BYTES", help="The largest model to download, such as 2G.")
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
Keep = Annotated[
    int,
    typer.Option(
        min=0, max=MOST_KEPT, help="How many earlier versions of the model to keep for `edgepart rollback`."
    ),
]
Batch = Annotated[
    int,
    typer.Option(
        min=1,
        max=MOST_BATCH_ROWS,
        metavar="ROWS",
        help="Run requests that wait at the same time as one, of this many rows at most.",
    ),
]
BatchDelay = Annotated[
    str, typer.Option(metavar="TIME", help="How long a request waits for others, with --batch: 5ms.")
]
MaxError = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=MOST_ERROR,
        metavar="SHARE",
        help="How far answers may be off because of --weights, as a share of each output's largest magnitude.",
        show_default="0.1",
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
    weights: Weights = None,
    max_error: MaxError = None,
    given: Input = None,
    picture: Picture = "",
    keep: Keep = USUAL.keep,
    digest: Digest = None,
    download_limit: DownloadLimit = USUAL_DOWNLOAD_LIMIT,
    batch: Batch = 1,
    batch_delay: BatchDelay = "5ms",
    wait: Wait = True,
    timeout: Timeout = "10m",
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Run MODEL on the cluster: the leader splits it, the devices load their parts, and every agent serves it. Exits with 3
    when the time to wait is up."""
    target = target_of(agent, state)
    called = name or default_name(name_of_source(model))
    options = DeployOptions(
        shapes=parse_shapes(shape or []),
        objective=check_word(objective, OBJECTIVES, "--objective"),
        strategy=check_word(strategy, STRATEGIES, "--strategy"),
        axis=None if axis is None else check_word(axis, AXES, "--axis"),
        devices=tuple(part.strip() for part in (devices or "").split(",") if part.strip()),
        memory_limit_bytes=_memory_bytes(memory_limit),
        bindings=bindings,
        search_budget_s=None if search_budget is None else _search_budget_s(search_budget),
        transfer_dtype=check_kind(transfer_dtype, "--transfer-dtype"),
        states=read_pairs(state_pair, no_states=no_states),
        context=context,
        sequences=sequences,
        mirrors=mirror,
        keep=keep,
        batch_rows=0 if batch == 1 else batch,
        batch_delay_s=parse_delay(batch_delay),
        weights=None if weights is None else check_word(weights, WEIGHTS, "--weights"),
        max_error=max_error,
    )
    source = _Source(model, read_digest(digest or ""), download_limit, given or (), picture)
    patience = DeployPatience(parse_duration(timeout, "--timeout"), timeout) if wait else None
    result = _send(target, called, source, options, patience)
    _print_deployed(target, result, waited=wait, as_json=as_json)


@dataclass(frozen=True)
class _Source:
    """The model that a user names."""

    model: str
    digest: str
    """The digest that it must have; "" accepts any."""
    download_limit: str
    inputs: Sequence[str]
    """The texts of --input, on which answers are compared where weights are quantised."""
    picture: str


def _send(
    target: AgentTarget, name: str, source: _Source, options: DeployOptions, patience: DeployPatience | None
) -> dict[str, Any]:
    """Deploys the model, and returns what the agent reports, with the addresses at which it is served."""
    most_bytes = parse_bytes(source.download_limit, option="--download-limit")
    note(f"reading {source.model}")
    with model_at(source.model, source.digest, most_bytes, options) as found:
        sent, options = _prepare(target, found, options, source)
        result, url = deploy_files(target, name, sent.files, options, patience)
    endpoint = f"{url}/v2/models/{name}"
    return result | {"name": name, "endpoint": endpoint, "curl": f"curl -s {endpoint}"}


def _prepare(
    target: AgentTarget, found: LocalModel, options: DeployOptions, source: _Source
) -> tuple[LocalModel, DeployOptions]:
    """The model to send, and its options. Raises UsageError, ModelError and Unavailable before any byte is sent."""
    check_shapes(found.graph, options.shapes)
    if options.weights is not None:
        check_chosen_devices(target, options.devices)  # Quantising takes a while.
    return quantised(found, options, source.inputs, source.picture)


def rollback(
    name: DeployedName,
    to: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="The version to go back to, as `edgepart models` shows it.",
            show_default="the last one before",
        ),
    ] = None,
    wait: Wait = True,
    timeout: Timeout = "10m",
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Have an earlier version of a model serve again. Nothing is uploaded, and no request is lost. Exits with 3 when the
    time to wait is up."""
    target = target_of(agent, state)
    patience = DeployPatience(parse_duration(timeout, "--timeout"), timeout) if wait else None
    result, _ = roll_back(target, name, to, patience)
    if as_json:
        print_json(result)
    elif wait:
        devices = ", ".join(result.get("devices", ()))
        say(f"{name} is version {result['version']} again, served by {devices}.", prose=True)
    else:
        say(f"{name} goes back. `edgepart models` shows the progress.")


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
    document = undeploy_it(target, name)
    if as_json:
        print_json(document)
    elif "dismissed" in document:
        say(f"{name} is not deployed. `edgepart status` no longer shows the attempt that failed.")
    else:
        say(f"{name} is undeployed.")


def _plan_of(target: AgentTarget, name: str) -> Mapping[str, Any]:
    """The agent's report of the plan that serves; {} if there is none any more, which is no error here."""
    try:
        report: dict[str, Any] = fetch(target, f"/api/models/{name}/plan")
    except EdgepartError:
        return {}
    return report


def _print_deployed(target: AgentTarget, result: Mapping[str, Any], *, waited: bool, as_json: bool) -> None:
    if as_json:
        print_json(result)
    elif waited:
        _print_served(result, _plan_of(target, result["name"]))
    else:
        say(f"{result['name']}: accepted. `edgepart models` shows the progress.")


def _print_served(result: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    for text in result.get("notes", ()):
        note(f"note: {text}")
    latency_s = result.get("predicted_latency_s")
    predicted = f" Predicted for one request: {format_seconds(latency_s)}." if latency_s else ""
    later = f", version {result['version']}," if result.get("version", "1") != "1" else ""
    say(
        f"{result['name']}{later} is served by {', '.join(result.get('devices', ()))}.{predicted}", prose=True
    )
    if plan.get("devices"):
        say("")
        console().print(device_table(plan["devices"]))
    if result.get("why"):
        say(f"\n{headline(result['why'])} `edgepart models` says more.", prose=True)
    if result.get("rounding"):
        say(f"note: {result['rounding']}", prose=True)
    if result.get("text"):
        base = str(result["endpoint"]).partition("/v2/")[0]
        say(
            "\nEvery agent answers OpenAI's clients, and requests by the Open Inference Protocol v2.",
            prose=True,
        )
        say(f"OpenAI    {base}/v1 with the model {result['name']} and any key")
        say(f"try       edgepart chat {result['name']}")
        return
    say("\nEvery agent answers requests by the Open Inference Protocol v2.", prose=True)
    say(f"endpoint  {result['endpoint']}/infer")
    say(f"inputs    {result['curl']}")
    say(f"try       edgepart infer {result['name']} --input NAME=FILE.npy")


def _memory_bytes(text: str | None) -> int | None:
    return None if text is None else parse_bytes(text, option="--memory-limit")


def _search_budget_s(seconds: float) -> float:
    if not 0 < seconds <= MOST_SEARCH_BUDGET_S:
        raise UsageError(
            f"--search-budget {seconds:g}: give a positive number of seconds, {MOST_SEARCH_BUDGET_S:g} at most"
        )
    return seconds
