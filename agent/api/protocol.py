"""The Protocol `Node`, which is what the HTTP gateway asks of its agent, and the records in the answers.

Facts. agent/api/node.py implements Node; tests do so with a bare session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from edgepart.agent.chronicle.event_log import EventLog
from edgepart.agent.chronicle.log_lines import LogLine
from edgepart.agent.chronicle.numbered_log import NumberedLog
from edgepart.agent.wire.control import DeviceWeights
from edgepart.agent.wire.inference import DeployOptions, Epoch
from edgepart.agent.wire.trials import TrialShare
from edgepart.planner.errors import UsageError
from edgepart.planner.plans.plan import ValueInfo

Progress = Callable[[str, float, float], None]
"""Called with (stage, done, total): the stage in plain words ("storing", "planning", "sending weights",
"warming up" ...), `done` and `total` in the stage's own unit, `total` 0 if it is not known. Any thread may
call it."""


@dataclass(frozen=True)
class BindingStatus:
    """A binding of a model's free dimensions that has a plan, or that requests wait for."""

    shapes: Mapping[str, tuple[int, ...]]
    """The shape of each input that has free dimensions, by input name."""
    state: str
    """"serving", or "waiting for a plan"."""
    epoch: Epoch | None = None
    strategy: str = ""
    devices: tuple[str, ...] = ()
    predicted_latency_s: float | None = None
    why: str = ""
    """Why its plan is what it is, in sentences; a first plan says that requests waited for it."""


@dataclass(frozen=True)
class SequenceFigures:
    """The sequences of this gateway's clients, of one model with states."""

    under_way: int
    """Those whose steps go on: texts that grow, and sequences of /v2."""
    idle: int
    """Those that are kept for later prompts that begin with the same tokens."""
    most: int
    """The most that each device keeps (--sequences)."""
    state_bytes: Mapping[str, int]
    """The memory that the states of all these take on each device, by its name."""
    tokens_per_s: float | None = None
    """The average speed of the last texts; None before the first one."""


@dataclass(frozen=True)
class CandidateCard:
    """The candidate of a deployment, and what the agent that is asked has seen of it. Figures are those of this agent's
    clients since the candidate was deployed, or since the agent's start."""

    name: str
    """The name under which the candidate has a card of its own."""
    version: str
    """The number of the model's version that it is."""
    share: int
    """How many of a hundred requests it answers."""
    shadow: bool
    """Whether it gets copies of requests in place of a share."""
    trouble: str
    """Why it cannot answer now; "" if it can."""
    serving_answers: int = 0
    """Requests that the version that serves has answered."""
    serving_mean_s: float | None = None
    """The mean time of these, in seconds; None before the first."""
    answers: int = 0
    """Requests, or copies of requests, that the candidate has answered."""
    mean_s: float | None = None
    fallbacks: int = 0
    """Requests of its share that the version that serves has answered, because the candidate could not."""
    last_failure: str = ""
    """Why it could not, the last time."""
    compared: int = 0
    """Copies that it has answered."""
    different: int = 0
    """Those of which its answer makes another choice: another entry is the largest."""
    largest_difference: float = 0.0
    """The largest difference of numbers over all copies, as a share of the output's largest magnitude."""
    copy_errors: int = 0
    """Copies that it could not answer."""
    copies_dropped: int = 0
    """Requests of which no copy was made, because as many as may be were under way."""


@dataclass(frozen=True)
class ModelCard:
    """A deployment as clients and people see it."""

    name: str
    state: str
    """"serving", or what still has to happen, in a few words ("planning", "preparing 2/3", "waiting:
    ...")."""
    inputs: tuple[ValueInfo, ...] = ()
    """The inputs; in their shapes, -1 stands for an axis that may vary. A shape is None if not even the rank
    is known."""
    outputs: tuple[ValueInfo, ...] = ()
    epoch: Epoch | None = None
    """The epoch of the active plan; None while there is none."""
    strategy: str = ""
    devices: tuple[str, ...] = ()
    """The devices that compute a part of the active plan."""
    why: str = ""
    """Why the plan is what it is, in a sentence."""
    predicted_latency_s: float | None = None
    trouble: str = ""
    """Why the deployment cannot answer requests now; "" if it can."""
    note: str = ""
    """The leader's note on the plan, for example that the previous plan was measured to be slower than one
    device; "" if there is none."""
    transfer_dtype: str = "float32"
    """The type to which some of the data between devices is rounded; "float32" if none is."""
    rounding: str = ""
    """A sentence about how far this rounding makes answers differ; "" if nothing is rounded, or if that is
    not known yet."""
    quantised: str = ""
    """A sentence about weights that were quantised before the model was sent, and how far its answers are off; "" if none
    were."""
    model_digest: str = ""
    version: str = "1"
    """The number of the model's version that answers requests; the one that is on its way while none answers yet."""
    next_version: str = ""
    """The number of the version that takes over as soon as it is ready; "" if none is on its way."""
    kept_versions: tuple[str, ...] = ()
    """The numbers of the versions that a rollback can bring back, in the order in which they served, the last one first."""
    set_aside: bool = False
    """Whether no device loads the model, because it ends the processes that compute it."""
    bindings: tuple[BindingStatus, ...] = ()
    """The bindings of a model with free dimensions: the first one, which the fields above describe, then
    those that requests brought."""
    states: tuple[str, ...] = ()
    """The inputs whose values devices keep between the steps of a sequence, so that clients leave them out."""
    sequences: SequenceFigures | None = None
    """None for a model without states."""
    weights: tuple[DeviceWeights, ...] = ()
    """While a plan is being prepared: how far the weights of its devices have come."""
    covered: tuple[str, ...] = ()
    """The devices for whose loss another plan is loaded and was tried: such a loss takes one message."""
    candidate: CandidateCard | None = None
    """The version that is tried beside the one that serves; None if there is none."""
    candidate_of: str = ""
    """The deployment whose candidate this is; "" if it is none."""
    deployment: str = ""
    """The deployment that a request is for, where its client named a candidate by the parent's name and the number of the
    version; "" where that is `name`."""


@dataclass(frozen=True, slots=True)
class SequenceTurn:
    """The sequence of which a request is the next step, in Triton's words."""

    id: str
    """The client's id of the sequence."""
    start: bool = False
    """Whether this is the first step."""
    end: bool = False
    """Whether this is the last step."""


@dataclass(frozen=True)
class InferResult:
    """The answer to one request."""

    outputs: Mapping[str, Any]
    """The outputs by name: numpy arrays (object arrays for strings), or what ONNX Runtime gives for maps and
    sequences."""
    epoch: Epoch
    """The epoch of the plan that computed the answer."""
    seconds: float
    """Seconds from the request's arrival at the node until its outputs are there, waiting for a plan
    included."""
    replays: int = 0
    """How often the request was run again because a device or an epoch was lost."""
    request: str = ""
    """The id by which agents know the request."""
    queue_s: float = 0.0
    """The part of `seconds` before the last run began."""
    rows: int = 1
    """The rows of the request, if requests of the deployment are run in batches."""
    runs: int = 1
    """The number of runs that the request counts for; 0 if another request of its batch counts for the run."""
    version: str = "1"
    """The number of the model's version that gave the answer."""


@dataclass(frozen=True)
class DeployedVersion:
    """A version of a model that a user deployed."""

    version: int
    model: str
    """The digest under which members store the model."""
    options: Mapping[str, Any]
    """The options as the user gave them: the fields of DeployOptions, without those that only the agent gives."""


@dataclass(frozen=True)
class DeployedCandidate:
    """A candidate that a user deployed."""

    version: int
    model: str
    options: Mapping[str, Any]
    """The model's digest and the options, as in DeployedVersion."""
    share: int
    shadow: bool


@dataclass(frozen=True)
class DeployedModel:
    """What is deployed under a name, as the map of deployments says it. It need not serve yet."""

    name: str
    now: DeployedVersion
    kept: tuple[DeployedVersion, ...]
    """The versions that a rollback can bring back, in the order in which they served, the last one first."""
    candidate: DeployedCandidate | None = None
    """The version that is tried beside it; None if there is none."""


class Node(Protocol):
    """The agent as its HTTP side sees it. Async methods run on the server's event loop and do not block it;
    the others answer at once from memory. Errors are those of planner/errors.py."""

    @property
    def name(self) -> str:
        """This device's name in the cluster."""

    @property
    def version(self) -> str: ...

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the cluster's CA, in hex."""

    @property
    def event_log(self) -> EventLog:
        """What happened in the cluster lately, as this agent saw it."""

    @property
    def log_lines(self) -> NumberedLog[LogLine]:
        """The last lines of this agent's log."""

    def live(self) -> bool:
        """Whether this agent works at all."""

    def ready(self, model: str | None) -> tuple[bool, str]:
        """Whether `model` can be used now (None: whether the agent can take requests), and why not."""

    def models(self) -> Sequence[ModelCard]: ...

    def model(self, name: str) -> ModelCard | None:
        """The deployment of that name; None if there is none. This is called for each request."""

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None,
        deadline_s: float,
        sequence: SequenceTurn | None = None,
        *,
        drawn: bool = True,
    ) -> InferResult:
        """Run one request. `outputs`: the outputs that are wanted; None means all. `deadline_s` counts from
        now. `sequence`: the sequence of which the request is the next step; without it, the states of a model that has
        some are zeros before the request. `drawn`: whether the model's candidate may answer, if it has one.

        Raises UnknownDeployment; RequestError if there is no such output, if inputs do not fit the model, or if there is
        no such sequence; Unavailable if no device can answer in time."""

    def admit(self, options: DeployOptions) -> None:
        """Check options before the model is sent.

        Raises UsageError if they name a device that is not known; Unavailable if none of the devices that
        they name is here."""

    async def deploy(
        self, name: str, folder: Path, options: DeployOptions, progress: Progress
    ) -> dict[str, Any]:
        """Deploy the model whose files lie in `folder`: one graph file (`*.onnx`) at its top, with external
        data where the graph says. The needed files are copied or moved out before this returns; the caller
        deletes the folder. Returns when the deployment is acknowledged and serves. The answer is JSON for
        people and scripts, and holds at least {"name", "devices", "strategy", "predicted_latency_s", "why",
        "notes"}.

        Raises ModelError, UsageError, Infeasible or Unavailable."""

    async def deploy_stored(
        self, name: str, model: str, options: DeployOptions, progress: Progress
    ) -> dict[str, Any]:
        """Deploy the model of that digest, which a member stores, as `deploy` does with one that was sent."""

    async def deploy_candidate(
        self, name: str, given: Path | str, options: DeployOptions, share: TrialShare, progress: Progress
    ) -> dict[str, Any]:
        """Deploy the model in a folder, or the stored one of a digest, as `deploy` and `deploy_stored` do, but as the
        candidate of the deployment `name`, which serves on. A candidate that is there is replaced or, if it is of this
        model and these options, only gets the share. The answer also holds
        {"candidate_of", "share", "shadow"}.

        Raises UnknownDeployment; UsageError if the model has other inputs or outputs, or if a member knows no candidates;
        Unavailable if `name` does not serve; and what `deploy` raises."""

    async def share(self, name: str, share: TrialShare) -> CandidateCard:
        """Give a deployment's candidate another share of the requests, without a new plan. Raises UnknownDeployment;
        UsageError if there is no candidate."""

    async def promote(self, name: str, progress: Progress) -> dict[str, Any]:
        """Let a deployment's candidate serve in place of the version that does. Returns what `deploy` returns, when no
        member starts requests on another version and the candidate itself is gone. Raises UnknownDeployment; UsageError if
        there is no candidate; Infeasible or Unavailable."""

    async def discard(self, name: str) -> str:
        """Undeploy a deployment's candidate, and return the number of its version. Raises UnknownDeployment; UsageError if
        there is none."""

    def deployments(self) -> Sequence[DeployedModel]:
        """What is deployed, sorted by name, each with its candidate."""

    async def rollback(self, name: str, to: int | None, progress: Progress) -> dict[str, Any]:
        """Have an earlier version of a model serve again: the one numbered `to`, or the last one before the one that
        serves. Returns what `deploy` returns, when no member starts requests on another version.

        Raises UnknownDeployment; UsageError if that version is not kept; Infeasible or Unavailable."""

    async def undeploy(self, name: str) -> None:
        """Undeploy a model. Raises UnknownDeployment if nothing of that name is deployed."""

    async def drain(self, name: str, progress: Progress, *, remove: bool) -> dict[str, Any]:
        """Drain a member: plans are made without it, and what it stores is stored elsewhere; with `remove`,
        it then leaves for good. `name`: a member's name, or a node id. Returns {"name", "node", "state"} when
        that is done.

        Raises UsageError if there is no such device, if it is the last one, or if the member that may sign
        the request refuses; Unavailable if the leader cannot drain devices, or if no member is here that may
        sign the request."""

    async def undrain(self, name: str) -> dict[str, Any]:
        """Let a drained device serve again; returns {"name", "node", "state"}. Raises UsageError if there is
        no such device, or if it was removed."""

    def status(self) -> dict[str, Any]:
        """Return {"name", "node", "version", "cluster", "http", "grpc", "grpc_trouble", "leader", "term", "uptime_s",
        "members": [{"name", "node", "state", "http", "grpc", "address", "leader"}] (`grpc` is "" for a member without such
        a server, None if it has not said), "deployments": [...], "drains": devices that
        are drained or being removed, "refused": devices that are not taken in, "disk": {"free_bytes",
        "trouble", "damaged"}, "sequences": {"kept", "bytes", "evictions", "replays", "batches", "resumed",
        "mirrored_bytes"} of this device, "loading": deployments of which it has yet to load something, "traffic": {peer:
        {"sent_bytes", "received_bytes"}} of this device since its agent was started, "drifts": {deployment: {device:
        factor}}}. `leader` is the leader's name or null, `http` a URL or null; `members` lists this device too.
        `deployments` may be left out: the gateway puts the cards of `models()` there."""

    def devices(self) -> dict[str, Any]:
        """The devices in the form of cluster.json (planner/devices/cluster.py), with extra keys if they are
        known."""

    def plan(self, name: str) -> dict[str, Any]:
        """The report of the deployment's active plan. Under "measured" it says how long requests through this
        agent took that ran alone, and how long each device computed for one. Raises UnknownDeployment, or
        Unavailable if there is no plan."""

    async def drawing(self, name: str) -> dict[str, Any]:
        """The deployment's active plan in pictures: {"epoch", "devices": {name: colour}, "timeline", "layers"}, where the
        last two are SVG (planner/report/drawing.py); `timeline` is null if a device of the plan is not here. Raises
        UnknownDeployment, or Unavailable if there is no plan."""

    async def doctor(self) -> dict[str, Any]:
        """For each box that was ever heard of, say whether it is a member, why not, and what to do; and check this
        device. Returns {"agent", "boxes", "knocks", "checks", "notes"}."""

    async def trace(self, name: str, seconds: float) -> dict[str, Any]:
        """Have members record what they do, for `seconds` at most; returns which members take part, and which
        do not and why.

        Raises UnknownDeployment; RequestError if `seconds` is too long; Unavailable if there is no plan, or
        if a trace is being taken."""

    async def end_trace(self, name: str) -> dict[str, Any]:
        """End the trace and return what was recorded (agent/measure/trace_collector.py). Raises RequestError
        if nothing is being recorded."""


def check_name(name: str) -> str:
    """Check a deployment's name, which is part of URLs and of metric labels, and return it. Raises UsageError
    if the name does not fit there."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
        raise UsageError(
            f"deployment name {name[:200]!r}: up to 128 letters, digits, '.', '_', '-'; a letter or digit first"
        )
    return name
