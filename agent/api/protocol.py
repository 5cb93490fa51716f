"""What the HTTP gateway asks of the agent around it: the Protocol `Node` and the records in its answers.

Facts only: no socket, no clock, no thread. agent/service.py implements Node; tests do so with a bare session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from edgepart.agent.wire.inference import DeployOptions, Epoch
from edgepart.planner.errors import UsageError
from edgepart.planner.plans.plan import ValueInfo

Progress = Callable[[str, float, float], None]
"""(stage, done, total): stage in plain words ("storing", "planning", "sending weights", "warming up" ...),
done and total in a unit of the stage's own, total 0 where it is not known. Any thread may call it."""


@dataclass(frozen=True)
class BindingStatus:
    """One binding of a model's free dimensions that there is a plan for, or that requests wait for."""

    shapes: Mapping[str, tuple[int, ...]]
    """By input with free dimensions."""
    state: str
    """"serving", or "waiting for a plan"."""
    epoch: Epoch | None = None
    strategy: str = ""
    devices: tuple[str, ...] = ()
    predicted_latency_s: float | None = None


@dataclass(frozen=True)
class ModelCard:
    """One deployment, as clients and people see it."""

    name: str
    state: str
    """"serving", or what is still to happen, in a few words ("planning", "preparing 2/3", "waiting: ...")."""
    inputs: tuple[ValueInfo, ...] = ()
    """Shape: -1 for an axis that may vary; None where not even the rank is known."""
    outputs: tuple[ValueInfo, ...] = ()
    epoch: Epoch | None = None
    """Of the active plan; None while there is none."""
    strategy: str = ""
    devices: tuple[str, ...] = ()
    """Those that compute a part of it."""
    why: str = ""
    """Why the plan is what it is, in a sentence."""
    predicted_latency_s: float | None = None
    trouble: str = ""
    """Why it cannot answer requests now; "" where it can."""
    note: str = ""
    """What became of the plan before, where measurements said that it was worse than one device."""
    transfer_dtype: str = "float32"
    """What some of the data between devices is rounded to."""
    rounding: str = ""
    """How far answers are off by that, in a sentence; "" where nothing is rounded, or it is not known yet."""
    model_digest: str = ""
    set_aside: bool = False
    """Whether no device loads it, because its model ends the processes that compute it."""
    bindings: tuple[BindingStatus, ...] = ()
    """Where the model has free dimensions: the first one, then others that requests brought. What is above is of the
    first."""


@dataclass(frozen=True)
class InferResult:
    """The answer to one request."""

    outputs: Mapping[str, Any]
    """By name: numpy arrays (strings: object arrays), or what ONNX Runtime gives for maps and sequences."""
    epoch: Epoch
    """Of the plan that made it."""
    seconds: float
    """From the request's arrival at the node to its outputs, waiting for a plan included."""
    replays: int = 0
    """How often it was run again because a device or an epoch was lost."""
    request: str = ""
    """What agents called it among themselves."""
    queue_s: float = 0.0
    """The part of `seconds` before the (last) run began."""


class Node(Protocol):
    """The agent, seen from its HTTP side. Async methods run on the server's event loop and do not block it;
    the others answer at once from memory. Errors are those of planner/errors.py."""

    @property
    def name(self) -> str:
        """This device's name in the cluster."""

    @property
    def version(self) -> str: ...

    @property
    def fingerprint(self) -> str:
        """Of the cluster's CA, hex."""

    def live(self) -> bool:
        """Whether this agent works at all."""

    def ready(self, model: str | None) -> tuple[bool, str]:
        """Whether `model` (None: the agent, for requests in general) can be used now, and if not, why."""

    def models(self) -> Sequence[ModelCard]: ...

    def model(self, name: str) -> ModelCard | None:
        """The one of that name, as each request asks; None where there is none."""

    async def infer(
        self, model: str, inputs: Mapping[str, Any], outputs: Sequence[str] | None, deadline_s: float
    ) -> InferResult:
        """Run one request; `outputs` None means all. `deadline_s` counts from now.

        UnknownDeployment; RequestError: no such output, or inputs that do not fit the model; Unavailable:
        nothing can serve it in time."""

    def admit(self, options: DeployOptions) -> None:
        """Looks at options before the model comes.

        UsageError: they name a device that nobody knows; Unavailable: none of the devices that they name is here."""

    async def deploy(
        self, name: str, folder: Path, options: DeployOptions, progress: Progress
    ) -> dict[str, Any]:
        """Deploy the model whose files lie in `folder`: one graph file (`*.onnx`) at its top, with external
        data where the graph says. What is needed is copied or moved out before it returns; the caller
        deletes the folder. It returns when the deployment is acknowledged and serves; the answer is for
        people and scripts, JSON only, and holds at least {"name", "devices", "strategy",
        "predicted_latency_s", "why", "notes"}.

        ModelError, UsageError, Infeasible, Unavailable."""

    async def undeploy(self, name: str) -> None:
        """UnknownDeployment where there is none of that name."""

    async def drain(self, name: str, progress: Progress, *, remove: bool) -> dict[str, Any]:
        """Have plans made without a member, and what it stores stored elsewhere; `remove`: and then have it leave for
        good. `name`: a member's, or a node id. Returns when that is so; {"name", "node", "state"}.

        UsageError: no such device, the last one, or whoever may sign that does not; Unavailable: the leader cannot, or
        nobody is here who may sign it."""

    async def undrain(self, name: str) -> dict[str, Any]:
        """Let it serve again; {"name", "node", "state"}. UsageError: no such device, or it was removed."""

    def status(self) -> dict[str, Any]:
        """{"name", "node", "version", "cluster", "http", "leader", "term", "uptime_s",
        "members": [{"name", "node", "state", "http", "address", "leader"}], "deployments": [...]}:
        "drains": devices that are drained or being removed, "refused": who wanted in and may not, "disk": {"free_bytes",
        "trouble", "damaged"};
        `leader` the leader's name or null, `http` a URL or null, one entry of `members` for this device
        itself too. `deployments` may be left out: the gateway puts the cards of `models()` there."""

    def devices(self) -> dict[str, Any]:
        """cluster.json's form (planner/devices/cluster.py), with extra keys where they are known."""

    def plan(self, name: str) -> dict[str, Any]:
        """The report of the deployment's active plan; under "measured" what requests through this agent took that ran
        alone, and what each device computed for one. UnknownDeployment, or Unavailable where there is no plan."""

    async def doctor(self) -> dict[str, Any]:
        """Of each box that was ever heard of, whether it is a member, why not, and what to do; and what is to be said of
        this one. {"agent", "boxes", "knocks", "checks", "notes"}."""

    async def trace(self, name: str, seconds: float) -> dict[str, Any]:
        """Has members record what they do, for that long at most; who takes part, and who does not and why.

        UnknownDeployment; RequestError: for too long; Unavailable: there is no plan, or a trace is being taken."""

    async def traced(self, name: str) -> dict[str, Any]:
        """Ends that, and gives what was recorded (agent/measure/trace_collector.py). RequestError where nothing is
        being recorded."""


def check_name(name: str) -> str:
    """A deployment's name is part of URLs and of metric labels. UsageError otherwise."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
        raise UsageError(
            f"deployment name {name[:200]!r}: up to 128 letters, digits, '.', '_', '-'; a letter or digit first"
        )
    return name
