"""The Protocol `Node`, which is what the HTTP gateway asks of its agent.

Facts. agent/api/node.py implements Node; tests do so with a bare session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from edgepart.agent.api.deployed_model import DeployedModel
from edgepart.agent.api.inference_request import InferResult, SequenceTurn
from edgepart.agent.api.model_card import CandidateCard, ModelCard
from edgepart.agent.api.stages import Progress
from edgepart.agent.chronicle.event_log import EventLog
from edgepart.agent.chronicle.log_lines import LogLine
from edgepart.agent.chronicle.numbered_log import NumberedLog
from edgepart.agent.wire.inference import DeployOptions
from edgepart.agent.wire.trials import TrialShare


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
