"""Events and effects: the inputs and outputs of the core. Facts. agent/driver.py turns what happens into
events, and carries out the effects in their order. No effect waits for the disk: TermKept and DeploymentsKept
say when the contents of PersistTerm and PersistDeployments are on disk. Until then the core tells no other
device of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgepart.agent.wire.control import (
    Card,
    ControlMessage,
    Deployment,
    Drain,
    Prepare,
    Profile,
    Standing,
    Starved,
    Version,
)
from edgepart.agent.wire.inference import NO_EPOCH, DeployOptions, Epoch
from edgepart.agent.wire.trials import TrialShare

# Events: links and discovery


@dataclass(frozen=True, slots=True)
class LinkUp:
    """Frames can be sent to `node`, which is authenticated. Also the answer to a Connect whose link is up
    already."""

    node: str
    via: str = ""
    """The address that was dialled; "" if the other side dialled."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A connection to or from `node` was closed, in either direction."""

    node: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """The answer to a Connect that failed."""

    node: str
    addresses: tuple[str, ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class DeviceSeen:
    """A hint where a device may be, from mDNS, --peer or the saved list. The hint is untrusted, and leads to
    a Connect at most."""

    node: str
    """The node id; "" if it is not known (a static peer)."""
    addresses: tuple[str, ...]
    lasting: bool = False
    """Whether to try for ever, as for --peer."""


@dataclass(frozen=True, slots=True)
class AddressesChanged:
    """This device has other addresses from now on, in another network or after another lease."""

    listen: tuple[str, ...]
    http: str


@dataclass(frozen=True, slots=True)
class DoorsOpened:
    """Clients reach this device's gRPC server at this address from now on; "" if it has none."""

    grpc: str


@dataclass(frozen=True, slots=True)
class MessageReceived:
    node: str
    """The sender's node id, from its verified certificate."""
    message: ControlMessage


# Events: from this device's own doors


@dataclass(frozen=True, slots=True)
class CardReady:
    """This device's probe is done, or has measured something clearly different from before."""

    document: bytes


@dataclass(frozen=True, slots=True)
class ModelsStored:
    """All models that the store holds completely, told whenever that changes."""

    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanLoaded:
    """The answer to LoadPlan. `error` says why the plan cannot run here; "" if it can."""

    deployment: str
    epoch: Epoch
    error: str = ""


@dataclass(frozen=True, slots=True)
class ModelCrashed:
    """A model ends the processes that compute it, and has to be set aside on all devices."""

    deployment: str
    model: str
    """The model's digest."""
    why: str


@dataclass(frozen=True, slots=True)
class DeployRequested:
    """A user deployed through this agent; the model is in its store."""

    name: str
    model: str
    model_bytes: int
    options: DeployOptions
    asked: DeployOptions | None = None
    """The options as the user gave them, as in Deployment."""


@dataclass(frozen=True, slots=True)
class RollbackRequested:
    """A user wants an earlier version of a model to serve again."""

    name: str
    to: int | None = None
    """The number of that version; None: the last one before the version that serves."""


@dataclass(frozen=True, slots=True)
class CandidateRequested:
    """A user deployed a candidate through this agent; the model is in its store."""

    parent: str
    """The name of the deployment that the candidate may replace."""
    model: str
    model_bytes: int
    options: DeployOptions
    asked: DeployOptions | None
    """The options as the user gave them, as in Deployment."""
    share: TrialShare


@dataclass(frozen=True, slots=True)
class ShareRequested:
    """A user wants a deployment's candidate to have another share of the requests."""

    parent: str
    share: TrialShare


@dataclass(frozen=True, slots=True)
class PromoteRequested:
    """A user wants a deployment's candidate to serve in place of the version that does."""

    parent: str


@dataclass(frozen=True, slots=True)
class RestoreRequested:
    """A deployment failed: its entry before, which was that of another version, holds again."""

    before: Deployment


@dataclass(frozen=True, slots=True)
class UndeployRequested:
    name: str
    version: Version | None = None
    """Undeploy only if the entry still has this version, to take back a deployment that failed; None: any
    version."""


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """A user wants to drain a device, remove it, or take it back."""

    entry: Drain
    """The entry that `Draining.propose` returned, signed."""


@dataclass(frozen=True, slots=True)
class TermKept:
    """The answer to PersistTerm: this term or a larger one is on disk, or the disk cannot be written now."""

    term: int


@dataclass(frozen=True, slots=True)
class DeploymentsKept:
    """The answer to PersistDeployments, given once the map could be written."""

    versions: tuple[tuple[str, Version], ...]
    """The version of each entry that is on disk now, by name, tombstones included."""


@dataclass(frozen=True, slots=True)
class BindingWanted:
    """This gateway holds requests of these shapes, or held some a moment ago."""

    deployment: str
    version: Version
    shapes: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class PlanKey:
    """The conditions for which a plan was computed; equal keys would give equal plans."""

    deployment: str
    version: Version
    devices: tuple[tuple[str, str, str], ...]
    """(node, name in the plan, digest of its card), sorted by node."""
    disappointed: str = ""
    """The digest of a plan that was slower than one device; "" if there was none."""
    drifts: tuple[tuple[str, float], ...] = ()
    """(node, drift) of devices that compute faster or slower than they were calibrated to, sorted by node."""
    refused: tuple[tuple[str, str], ...] = ()
    """(structure, fault) of each plan that was tried and gave wrong answers. The structure is that of
    planner/plans/plan.py."""
    alone: bool = False
    """Whether the plan runs on one of these devices alone, the best one, whatever the options say."""
    heir_of: Epoch = NO_EPOCH
    """The epoch of the plan that serves, whose states are mirrored, if this one is for a loss; NO_EPOCH for other plans."""


@dataclass(frozen=True, slots=True)
class PlanComputed:
    """The answer to ComputePlan."""

    key: PlanKey
    plan: bytes
    names: tuple[str, ...]
    """The devices that have a program in the plan, by name."""
    latency_s: float
    """The predicted latency of the new plan; the seconds between two requests if throughput is the
    objective."""
    current_latency_s: float
    """The same figure for `ComputePlan.current`, predicted now on the same cluster; inf if there was none, or
    if it cannot run."""
    quick: bool = False
    """Whether this is a quick plan. It is then compared with a thorough one once it serves."""
    single_s: float = float("inf")
    """The predicted latency of the best single device; inf if none has the memory, or if throughput is the
    objective."""
    note: str = ""
    """A note on the plan that this one replaces or refines because of measurements; "" for other plans."""
    memory_bytes: tuple[tuple[str, int], ...] = ()
    """The most memory that each program takes, predicted, by device name."""
    chosen: bytes = b""
    """The choices from which the plan was made (planner/search/checkpoint.py); a refinement starts from
    them."""
    tolerance: float | None = None
    """How far the plan's answers may be off (agent/verify/same_answer.py, tolerance_for)."""
    structure: str = ""
    """The plan's structure, as in planner/plans/plan.py."""
    is_model_itself: bool = False
    """Whether the plan runs the model itself, so that it need not be tried."""
    step_bytes: float = 0.0
    """The bytes by which states of a sequence grow in a step, on all devices together, if states can go from device to
    device; 0 if they cannot, or there are none."""


@dataclass(frozen=True, slots=True)
class PlanFailed:
    """The answer to ComputePlan if there is no plan."""

    key: PlanKey
    error: str
    kind: str
    """The name of the error's class in planner/errors.py."""
    final: bool
    """Whether the same key would fail again (Infeasible, a bad model); else another try may help."""


@dataclass(frozen=True, slots=True)
class SegmentsTimed:
    """This device has measured segments."""

    timings: tuple[Profile, ...]


@dataclass(frozen=True, slots=True)
class WeightsArrived:
    """More of the weights that this device needs for a plan is on its disk."""

    deployment: str
    epoch: Epoch
    here_bytes: int
    needed_bytes: int


@dataclass(frozen=True, slots=True)
class SequencesContinued:
    """The plans on which sequences were continued on this device in the last seconds."""

    plans: Mapping[tuple[str, Epoch], int]
    """By deployment and epoch, about how far the sequence has come that has come furthest, as in SequenceStep."""


@dataclass(frozen=True, slots=True)
class DriftMeasured:
    """A device takes `factor` times as long for this deployment's segments as it was calibrated to take."""

    deployment: str
    factor: float


@dataclass(frozen=True, slots=True)
class StarvationSeen:
    """News of whether this device is starved of the CPU."""

    starved: Starved


@dataclass(frozen=True, slots=True)
class LatencyMeasured:
    """The latency of requests of this gateway that ran alone on a plan."""

    deployment: str
    epoch: Epoch
    seconds: float
    requests: int


@dataclass(frozen=True, slots=True)
class LeaveAnnounced:
    """The agent is going to stop on purpose, as soon as the other members do without it. LeaveRequested
    follows."""


@dataclass(frozen=True, slots=True)
class RoundingMeasured:
    """How far the answers of a plan are off because data is rounded on its way."""

    deployment: str
    epoch: Epoch
    text: str
    """The message, for people."""


@dataclass(frozen=True, slots=True)
class PlanTried:
    """The answer to TryPlan."""

    deployment: str
    epoch: Epoch
    verdict: str
    """One of RIGHT, WRONG, SUSPECT and UNTRIED."""
    text: str = ""
    """The fault, or why the plan could not be tried; "" if the plan is right."""


RIGHT = "right"
"""The plan gives the model's answers; if no device could hold the model alone, answers of the right
shapes."""
WRONG = "wrong"
"""The plan does not give the model's answers."""
SUSPECT = "suspect"
"""The plan fails, or its answers hold NaN or infinity, and it is not known whether the model's own answers
would."""
UNTRIED = "untried"
"""The plan could not be tried."""


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """The agent is stopping on purpose."""


Event = (
    LinkUp
    | LinkDown
    | ConnectFailed
    | DeviceSeen
    | AddressesChanged
    | DoorsOpened
    | MessageReceived
    | CardReady
    | ModelsStored
    | PlanLoaded
    | WeightsArrived
    | ModelCrashed
    | DeployRequested
    | RollbackRequested
    | CandidateRequested
    | ShareRequested
    | PromoteRequested
    | RestoreRequested
    | UndeployRequested
    | DrainRequested
    | DeploymentsKept
    | TermKept
    | BindingWanted
    | PlanComputed
    | PlanFailed
    | SegmentsTimed
    | SequencesContinued
    | DriftMeasured
    | StarvationSeen
    | LatencyMeasured
    | LeaveAnnounced
    | RoundingMeasured
    | PlanTried
    | LeaveRequested
)

# Effects


@dataclass(frozen=True, slots=True)
class Connect:
    """Try these addresses once, and answer LinkUp or ConnectFailed. If the link is up already, answer LinkUp
    at once."""

    node: str
    """The node id that the certificate has to name; "": any."""
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close all connections with `node` in both directions; no LinkDown has to follow."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class SendMessage:
    node: str
    message: ControlMessage


@dataclass(frozen=True, slots=True)
class Member:
    """One member of the cluster."""

    node: str
    name: str
    """The device's name, unique among the members (roster.make_unique_names)."""
    boot: str
    status: str
    """ALIVE, LEAVING, FLAPPING or, until the suspicion is settled, SUSPECT."""
    listen: tuple[str, ...]
    http: str
    version: str
    note: str = ""
    """Why plans do without the member although it is alive; "" if they do not."""
    grpc: str | None = None
    """The address of the member's gRPC server, "" if it has none; None if it has not said."""


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """The members now, this device included, sorted by node id. A device that is not listed is lost, and
    gateways replay what ran on it."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    leader: str
    """The leader's node id; "" while nobody leads."""
    term: int


@dataclass(frozen=True, slots=True)
class PersistTerm:
    """Write the term to disk and answer TermKept; nobody leads in a term before that."""

    term: int


@dataclass(frozen=True, slots=True)
class PersistIncarnation:
    incarnation: int


@dataclass(frozen=True, slots=True)
class PersistDeployments:
    """Write the whole map of deployments, tombstones included (deployments.to_json), and answer
    DeploymentsKept. Reports to the leader name the versions that DeploymentsKept names."""

    entries: tuple[Deployment, ...]


@dataclass(frozen=True, slots=True)
class PersistPlan:
    """Write the plan by which a deployment is served from now on; losing it only costs a search."""

    deployment: str
    order: Prepare | None
    """The order that brought the plan; None if the deployment is gone, and what was written is to be deleted."""


@dataclass(frozen=True, slots=True)
class PersistDrains:
    """Write the whole map of drains (drains.to_json)."""

    entries: tuple[Drain, ...]


@dataclass(frozen=True, slots=True)
class RemovedFromCluster:
    """This device was removed from the cluster, and its agent has to stop for good."""

    why: str


@dataclass(frozen=True, slots=True)
class MemberDistrusted:
    """A member told something impossible, which is ignored and reported to people: the member lies, or runs
    another version."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class PersistProfiles:
    """Write all profiles; losing the last ones does no harm."""

    timings: tuple[Profile, ...]


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Fetch the weights of this device's program, build and warm up its sessions, keep the plan, and answer
    PlanLoaded."""

    deployment: str
    version: Version
    epoch: Epoch
    plan: bytes
    names: tuple[tuple[str, str], ...]
    """(device name in the plan, node id)."""
    model: str
    sources: tuple[str, ...]
    weighed: bool = False
    """Whether to time the segments before the plan counts as loaded."""
    number: int = 0
    """The number of the model's version, as in Prepare."""
    spare: bool = False
    """Whether to load other plans first, as in Prepare."""


@dataclass(frozen=True, slots=True)
class SwitchTo:
    """Start requests of this deployment on this epoch from now on."""

    deployment: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SwitchOff:
    """No plan of this variant serves any more; its requests wait for another plan."""

    deployment: str


@dataclass(frozen=True, slots=True)
class DropPlan:
    """Forget this plan and free its sessions, also while it is still loading."""

    deployment: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class StoreModel:
    """Fetch a model from any of these nodes, unless that is under way already. ModelsStored follows."""

    model: str
    model_bytes: int
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ComputePlan:
    """Plan `deployment` on these devices in the background, and answer PlanComputed or PlanFailed with the
    same key. A newer ComputePlan for the same deployment with `urgent` makes an older one pointless."""

    key: PlanKey
    deployment: Deployment
    cards: tuple[Card, ...]
    """The cards of the devices in the key, in the key's order."""
    current: bytes
    """The plan that serves now, to be compared with the new one; empty if there is none."""
    urgent: bool
    """Whether a deployment has to wait for the plan. Otherwise the plan is a contingency plan or a
    comparison, at low priority."""
    quick: bool = False
    """Whether requests wait for the plan, or would wait: then a good plan soon is worth more than the best
    plan later."""
    profiles: tuple[Profile, ...] = ()
    """The known times of segments on real devices."""
    measured_s: float = 0.0
    """Seconds that requests take on `current`; 0 if that was not measured."""
    taken_bytes: tuple[tuple[str, int], ...] = ()
    """The bytes of memory that other plans take on each node, and that this plan cannot have."""
    chosen: bytes = b""
    """The choices from which `current` was made, as in PlanComputed; empty if they are not known."""
    refines: bool = False
    """Whether only measurements are new since `current` was planned."""
    awaited: bool = False
    """Whether requests wait for the plan now. It is then on one device alone if any has room, which takes no
    search."""
    serving: bytes = b""
    """The plan that serves, if this one is for the loss of one of its devices and its states are mirrored; `chosen` are its
    choices then. A plan by which states stay where they are comes before others that are about as fast."""

    @property
    def prompt(self) -> bool:
        """Whether the plan is to be on one device alone if any has room, and so takes no search."""
        return self.awaited or self.key.alone

    @property
    def hasty(self) -> bool:
        """Whether this is a quick comparison: a device that has joined waits to take part, or requests that one device
        answers alone since another was lost."""
        return self.quick and bool(self.current)


@dataclass(frozen=True, slots=True)
class TryPlan:
    """Run this plan once on made-up inputs, compare its answers, and answer PlanTried. All devices of the
    plan have it ready."""

    deployment: str
    epoch: Epoch
    model: str
    """The model's digest."""
    model_bytes: int
    tolerance: float | None
    """The tolerance of PlanComputed."""
    trusted: Epoch
    """The epoch of the serving plan, if its answers were right; else NO_EPOCH."""


@dataclass(frozen=True, slots=True)
class StandingChanged:
    """The leader says how a deployment stands now."""

    standing: Standing


Effect = (
    Connect
    | Disconnect
    | SendMessage
    | MembersChanged
    | LeaderChanged
    | PersistTerm
    | PersistIncarnation
    | PersistDeployments
    | PersistPlan
    | PersistDrains
    | RemovedFromCluster
    | MemberDistrusted
    | PersistProfiles
    | LoadPlan
    | SwitchTo
    | SwitchOff
    | DropPlan
    | StoreModel
    | ComputePlan
    | TryPlan
    | StandingChanged
)
