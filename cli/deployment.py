"""`edgepart deploy`, `share`, `promote`, `rollback` and `undeploy`. `deploy` sends a model's files to an agent, shows the
progress, and says how to use the deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from edgepart.agent.options import parse_bytes, parse_delay, parse_shapes
from edgepart.agent.wire.codec import read_json_record
from edgepart.agent.wire.inference import (
    MOST_BATCH_ROWS,
    MOST_BINDINGS,
    MOST_ERROR,
    MOST_KEPT,
    MOST_SEARCH_BUDGET_S,
    MOST_SEQUENCES,
    DeployOptions,
)
from edgepart.agent.wire.trials import TrialShare
from edgepart.cli.deploying import (
    DeployPatience,
    check_chosen_devices,
    deploy_files,
    promote_it,
    roll_back,
    share_it,
    undeploy_it,
)
from edgepart.cli.options import (
    Agent,
    Context,
    DeployedName,
    Input,
    Json,
    Operators,
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
from edgepart.cli.sources.operators import read_operators
from edgepart.cli.sources.quantising import quantised
from edgepart.client.described_files import described_files
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
SHARE_HELP = "The percentage of the requests that the candidate answers."
Share = Annotated[
    int | None,
    typer.Option(
        "--share",
        min=0,
        max=100,
        metavar="PERCENT",
        help="Make MODEL a candidate of the deployment, which answers so many percent of its requests.",
        show_default="replace what serves",
    ),
]
Shadow = Annotated[
    bool,
    typer.Option(
        "--shadow",
        help="Make MODEL a candidate that gets copies of requests; its answers are compared, and given to nobody.",
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
    operators: Operators = None,
    keep: Keep = USUAL.keep,
    digest: Digest = None,
    download_limit: DownloadLimit = USUAL_DOWNLOAD_LIMIT,
    batch: Batch = 1,
    batch_delay: BatchDelay = "5ms",
    share: Share = None,
    shadow: Shadow = False,
    wait: Wait = True,
    timeout: Timeout = "10m",
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Run MODEL on the cluster: the leader splits it, the devices load their parts, and every agent serves it. Exits with 3
    when the time to wait is up."""
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
    source = _Source(model, read_digest(digest or ""), download_limit, given or (), picture, operators)
    trial = None if share is None and not shadow else TrialShare(share or 0, shadow)
    _deploy(target_of(agent, state), name, source, options, _patience(timeout, wait), trial, as_json=as_json)


def _patience(timeout: str, wait: bool) -> DeployPatience | None:
    return DeployPatience(parse_duration(timeout, "--timeout"), timeout) if wait else None


def _deploy(
    target: AgentTarget,
    name: str | None,
    source: _Source,
    options: DeployOptions,
    patience: DeployPatience | None,
    trial: TrialShare | None,
    *,
    as_json: bool,
) -> None:
    called = name or default_name(name_of_source(source.model))
    result = _send(target, called, source, options, patience, trial)
    _print_deployed(target, result, trial, waited=patience is not None, as_json=as_json)


def _is_candidate(target: AgentTarget, name: str, digest: str, options: DeployOptions) -> bool:
    """Whether the deployment's candidate is of this model and these options, so that only its share can be new."""
    listed = fetch(target, "/api/deployments")["deployments"]
    trial = next((one.get("candidate") for one in listed if one["name"] == name), None)
    if trial is None:
        return False
    there = read_json_record(DeployOptions, trial["options"], DeployOptions())
    source = trial["model"] if there.quantised is None else there.quantised.source
    return digest == source and replace(there, quantised=None) == options


def share(
    name: DeployedName,
    percent: Annotated[
        int | None, typer.Argument(min=0, max=100, metavar="PERCENT", help=SHARE_HELP, show_default=False)
    ] = None,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Send it copies of requests in place of a share.")
    ] = False,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Change the share of the requests that a deployment's candidate answers. Nothing is uploaded or planned."""
    if percent is None and not shadow:
        raise UsageError("give the percentage, or --shadow. Nothing was changed")
    document = share_it(target_of(agent, state), name, TrialShare(percent or 0, shadow))
    if as_json:
        print_json(document)
    else:
        _print_share(document)


def promote(
    name: DeployedName,
    wait: Wait = True,
    timeout: Timeout = "10m",
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Have a deployment's candidate serve in place of the version that does. Nothing is uploaded, and no request is lost.
    Exits with 3 when the time to wait is up."""
    patience = _patience(timeout, wait)
    result, _ = promote_it(target_of(agent, state), name, patience)
    if as_json:
        print_json(result)
    elif wait:
        devices = ", ".join(result.get("devices", ()))
        say(f"{name} is version {result['version']} now, served by {devices}.", prose=True)
    else:
        say(f"{name}: its candidate takes over. `edgepart models` shows the progress.")


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
    operators: Path | None
    """The Python file whose descriptions the model is given."""


def _send(
    target: AgentTarget,
    name: str,
    source: _Source,
    options: DeployOptions,
    patience: DeployPatience | None,
    trial: TrialShare | None,
) -> dict[str, Any]:
    """Deploys the model, and returns what the agent reports, with the addresses at which it is served. Of a candidate that
    is there already, only the share is changed, and nothing is sent."""
    described = read_operators(source.operators)
    most_bytes = parse_bytes(source.download_limit, option="--download-limit")
    note(f"reading {source.model}")
    tried = trial is not None
    with model_at(source.model, source.digest, most_bytes, options, with_digest=tried) as found:
        # With descriptions it is another model, which has another digest.
        if trial is not None and not described and _is_candidate(target, name, found.digest, options):
            return dict(share_it(target, name, trial))
        sent, options = _prepare(target, found, options, source)
        with ExitStack() as held:
            files = described_files(sent.graph, sent.files, options.shapes, described, held)
            result, url = deploy_files(target, name, files, options, patience, trial)
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
    patience = _patience(timeout, wait)
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
    candidate: Annotated[
        bool, typer.Option("--candidate", help="Give up only the deployment's candidate.")
    ] = False,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Stop serving a model, and delete it from the cluster."""
    from edgepart.agent.api.deployment_name import check_name

    target = target_of(agent, state)
    check_name(name)
    document = undeploy_it(target, name, candidate=candidate)
    if as_json:
        print_json(document)
    elif "discarded" in document:
        say(f"Version {document['version']}, the candidate of {name}, is undeployed; {name} serves on.")
    elif "dismissed" in document:
        say(
            f"{document['dismissed']} is not deployed. `edgepart status` no longer shows the attempt that failed."
        )
    else:
        say(f"{name} is undeployed.")


def _plan_of(target: AgentTarget, name: str) -> Mapping[str, Any]:
    """The agent's report of the plan that serves; {} if there is none any more, which is no error here."""
    try:
        report: dict[str, Any] = fetch(target, f"/api/models/{name}/plan")
    except EdgepartError:
        return {}
    return report


def _print_deployed(
    target: AgentTarget, result: Mapping[str, Any], trial: TrialShare | None, *, waited: bool, as_json: bool
) -> None:
    if as_json:
        print_json(result)
    elif "candidate" in result:
        _print_share(result)
    elif trial is not None:
        _print_candidate(result, trial, waited=waited)
    elif waited:
        _print_served(result, _plan_of(target, result["name"]))
    else:
        say(f"{result['name']}: accepted. `edgepart models` shows the progress.")


def _print_share(document: Mapping[str, Any]) -> None:
    """Say what the candidate gets from now on."""
    name, trial = document["name"], document["candidate"]
    gets = "gets a copy of each request" if trial["shadow"] else f"answers {trial['share']} % of the requests"
    say(f"{name}: version {trial['version']}, the candidate, {gets} from now on.", prose=True)


def _print_candidate(result: Mapping[str, Any], share: TrialShare, *, waited: bool) -> None:
    name = result["name"]
    if not waited:
        say(f"{name}: the candidate is accepted. `edgepart models` shows the progress.")
        return
    for text in result.get("notes", ()):
        note(f"note: {text}")
    gets = "gets a copy of each request" if share.shadow else f"answers {share.percent} % of the requests"
    on, latency_s = ", ".join(result.get("devices", ())), result.get("predicted_latency_s")
    predicted = f", predicted for one request: {format_seconds(latency_s)}" if latency_s else ""
    say(f"{name}: version {result['version']}, the candidate, {gets}, on {on}{predicted}.", prose=True)
    say(f"\nfigures   edgepart status\nmore      edgepart share {name} PERCENT")
    say(f"take it   edgepart promote {name}\ndrop it   edgepart undeploy {name} --candidate")


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
