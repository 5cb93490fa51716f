"""What goes into the cluster logic and what comes out: facts. The shell (agent/service.py) turns what happens
into events and obeys the effects in their order. No effect waits for the disk: TermKept and DeploymentsKept say
when what a Persist* effect told is there, and the core tells nobody before what must be on disk first.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgepart.agent.wire.control import (
    Card,
    ControlMessage,
    Deployment,
    Drain,
    Profile,
    Standing,
    Starved,
    Version,
)
from edgepart.agent.wire.inference import DeployOptions, Epoch

# Events: links and discovery


@dataclass(frozen=True, slots=True)
class LinkUp:
    """Frames can be sent to `node` (authenticated). Also the answer to a Connect whose link is up already."""

    node: str
    via: str = ""
    """The address that was dialled, empty when the other side dialled."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A connection to or from `node` was closed, in either direction."""

    node: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """The answer to a Connect that came to nothing."""

    node: str
    addresses: tuple[str, ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class DeviceSeen:
    """A hint where a device may be: mDNS, --peer, the saved list. Untrusted; leads to a Connect at most."""

    node: str
    """Empty when unknown (a static peer)."""
    addresses: tuple[str, ...]
    lasting: bool = False
    """True for --peer: tried for ever."""


@dataclass(frozen=True, slots=True)
class AddressesChanged:
    """This device is reached elsewhere from now on: another network, another lease."""

    listen: tuple[str, ...]
    http: str


@dataclass(frozen=True, slots=True)
class Received:
    node: str
    """From the verified certificate."""
    message: ControlMessage


# Events: from this device's own doors


@dataclass(frozen=True, slots=True)
class CardReady:
    """This device's probe is done, or found something clearly different from before."""

    document: bytes


@dataclass(frozen=True, slots=True)
class ModelsStored:
    """All models that the store holds whole, whenever that changes."""

    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanLoaded:
    """The answer to LoadPlan; an `error` says why it cannot run here."""

    deployment: str
    epoch: Epoch
    error: str = ""


@dataclass(frozen=True, slots=True)
class ModelCrashed:
    """A model ends the processes that compute it: it is to be set aside everywhere."""

    deployment: str
    model: str
    """Its digest."""
    why: str


@dataclass(frozen=True, slots=True)
class DeployRequested:
    """A user deployed through this agent; the model is in its store."""

    name: str
    model: str
    model_bytes: int
    options: DeployOptions


@dataclass(frozen=True, slots=True)
class UndeployRequested:
    name: str
    version: Version | None = None
    """Only if this is still the entry's version: to take back a deployment that failed."""


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """A user wants a device drained, removed, or back."""

    entry: Drain
    """What `Draining.proposed` gave, signed."""


@dataclass(frozen=True, slots=True)
class TermKept:
    """The answer to PersistTerm: this term or a larger one is on disk, or the disk does not take it now."""

    term: int


@dataclass(frozen=True, slots=True)
class DeploymentsKept:
    """The answer to PersistDeployments, once it could be obeyed: what is on disk now."""

    versions: tuple[tuple[str, Version], ...]
    """By name, tombstones included."""


@dataclass(frozen=True, slots=True)
class BindingWanted:
    """This gateway holds requests of these shapes, or had some just now."""

    deployment: str
    version: Version
    shapes: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class PlanKey:
    """What a plan was computed for; equal keys would give equal plans."""

    deployment: str
    version: Version
    devices: tuple[tuple[str, str, str], ...]
    """(node, name in the plan, digest of its card), sorted by node."""
    disappointed: str = ""
    """Digest of a plan that was slower than one device, where one was."""
    drifts: tuple[tuple[str, float], ...] = ()
    """(node, drift) of those that compute faster or slower than they were calibrated to, sorted by node."""
    refused: tuple[tuple[str, str], ...] = ()
    """Of plans that were tried and gave wrong answers, the structure (planner/plans/plan.py) and what was wrong."""


@dataclass(frozen=True, slots=True)
class PlanComputed:
    """The answer to ComputePlan."""

    key: PlanKey
    plan: bytes
    names: tuple[str, ...]
    """Devices of the plan that have a program."""
    latency_s: float
    """Predicted, of the new plan; where throughput is the objective, the seconds between two requests."""
    current_latency_s: float
    """Predicted now, on the same cluster, of `ComputePlan.current`, likewise; inf when there was none or it cannot
    run."""
    quick: bool = False
    """As in the order: a plan that was made in haste is compared with a thorough one once it serves."""
    single_s: float = float("inf")
    """Predicted, of the best single device; inf where none has the memory, and where throughput is the objective."""
    note: str = ""
    """What became of the plan before, where it was slower than one device."""
    memory_bytes: tuple[tuple[str, int], ...] = ()
    """By device name, the most that its program takes, predicted."""
    chosen: bytes = b""
    """What the plan was made from (planner/search/checkpoint.py), to start from when it is refined."""
    tolerance: float | None = None
    """What its answers may be off by (agent/verify/same_answer.py, tolerance_for)."""
    structure: str = ""
    """As in planner/plans/plan.py."""
    is_model_itself: bool = False
    """Whether its answers are the model's by themselves, so that it need not be tried."""


@dataclass(frozen=True, slots=True)
class PlanFailed:
    """The other answer to ComputePlan."""

    key: PlanKey
    error: str
    kind: str
    """Class name in planner/errors.py."""
    final: bool
    """True: the same key would fail again (Infeasible, a bad model); False: worth another try."""


@dataclass(frozen=True, slots=True)
class SegmentsTimed:
    """This device has measured segments."""

    timings: tuple[Profile, ...]


@dataclass(frozen=True, slots=True)
class DriftMeasured:
    """With this deployment's segments, this device takes so many times as long as it was calibrated to take."""

    deployment: str
    factor: float


@dataclass(frozen=True, slots=True)
class StarvationSeen:
    """News of whether this device gets the CPU when it needs it."""

    starved: Starved


@dataclass(frozen=True, slots=True)
class LatencyMeasured:
    """Requests of this gateway that ran alone on a plan."""

    deployment: str
    epoch: Epoch
    seconds: float
    requests: int


@dataclass(frozen=True, slots=True)
class LeaveAnnounced:
    """The agent is going to stop on purpose, as soon as others do without it; LeaveRequested follows."""


@dataclass(frozen=True, slots=True)
class RoundingMeasured:
    """How far answers by a plan are off because of what is rounded on its way."""

    deployment: str
    epoch: Epoch
    text: str
    """For people."""


@dataclass(frozen=True, slots=True)
class PlanTried:
    """The answer to TryPlan."""

    deployment: str
    epoch: Epoch
    verdict: str
    """RIGHT, WRONG, SUSPECT or UNTRIED."""
    text: str = ""
    """What was wrong, or why it could not be tried; "" where it is right."""


RIGHT = "right"
"""It gives the model's answers, or, where no device could hold the model alone, some of the right shapes."""
WRONG = "wrong"
"""It does not give the model's answers."""
SUSPECT = "suspect"
"""It fails, or gives what is no number, and it is not known whether the model itself would."""
UNTRIED = "untried"
"""It could not be tried."""


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """The agent is stopping on purpose."""


Event = (
    LinkUp
    | LinkDown
    | ConnectFailed
    | DeviceSeen
    | AddressesChanged
    | Received
    | CardReady
    | ModelsStored
    | PlanLoaded
    | ModelCrashed
    | DeployRequested
    | UndeployRequested
    | DrainRequested
    | DeploymentsKept
    | TermKept
    | BindingWanted
    | PlanComputed
    | PlanFailed
    | SegmentsTimed
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
    """Try these addresses once and answer LinkUp or ConnectFailed; a link that is up already is LinkUp at
    once."""

    node: str
    """Expected in the certificate; empty: whoever answers."""
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close all connections with `node`, both directions; no LinkDown need follow."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class SendMessage:
    node: str
    message: ControlMessage


@dataclass(frozen=True, slots=True)
class Member:
    """One device that is in."""

    node: str
    name: str
    """Unique among the members (membership.unique_names)."""
    boot: str
    status: str
    """ALIVE, LEAVING, FLAPPING, or SUSPECT until that is settled."""
    listen: tuple[str, ...]
    http: str
    version: str
    note: str = ""
    """Why it is not planned with, where it could be."""


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """Who is in now, this device included, sorted by node id. Who is not listed is lost: gateways replay."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    leader: str
    """Node id; empty while nobody leads."""
    term: int


@dataclass(frozen=True, slots=True)
class PersistTerm:
    """Write it down and answer TermKept; nobody leads in a term before that."""

    term: int


@dataclass(frozen=True, slots=True)
class PersistIncarnation:
    incarnation: int


@dataclass(frozen=True, slots=True)
class PersistDeployments:
    """The whole map, tombstones included (deployments.to_json). DeploymentsKept follows; reports say what that said."""

    entries: tuple[Deployment, ...]


@dataclass(frozen=True, slots=True)
class PersistDrains:
    """The whole map (drains.to_json)."""

    entries: tuple[Drain, ...]


@dataclass(frozen=True, slots=True)
class Discharged:
    """This device was removed from the cluster: the agent is to stop for good."""

    why: str


@dataclass(frozen=True, slots=True)
class Distrusted:
    """A member said what cannot be; nothing followed from it. For people: it lies, or is of another version."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class PersistProfiles:
    """All profiles; losing the last ones does no harm."""

    timings: tuple[Profile, ...]


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Get the weights of this device's program, build and warm its sessions, keep the plan; answer
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
    """Time its segments before it is loaded."""


@dataclass(frozen=True, slots=True)
class SwitchTo:
    """From now on requests of this deployment start on this epoch."""

    deployment: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SwitchOff:
    """No plan of this variant serves any more; its requests wait for another."""

    deployment: str


@dataclass(frozen=True, slots=True)
class DropPlan:
    """Forget this plan and free its sessions (also when it is still loading)."""

    deployment: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class StoreModel:
    """Fetch a model from any of these nodes unless that is under way already; ModelsStored follows."""

    model: str
    model_bytes: int
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ComputePlan:
    """Plan `deployment` on these devices, in the background; answer PlanComputed or PlanFailed with the same
    key. A newer ComputePlan for the same deployment with `urgent` makes an older one pointless."""

    key: PlanKey
    deployment: Deployment
    cards: tuple[Card, ...]
    """Of the devices in the key, in its order."""
    current: bytes
    """The plan that serves now, to be compared, or empty."""
    urgent: bool
    """False: a contingency plan or a comparison, at low priority."""
    quick: bool = False
    """True: requests wait for it, or would; a good plan soon is worth more than the best one later."""
    profiles: tuple[Profile, ...] = ()
    """What segments took on real devices."""
    measured_s: float = 0.0
    """What requests take on `current`, where that was measured."""
    taken_bytes: tuple[tuple[str, int], ...] = ()
    """By node, the memory that other plans take there, which this one has to do without."""
    chosen: bytes = b""
    """What `current` was made from, where that is known."""
    refines: bool = False
    """Whether nothing is new but what was measured."""


@dataclass(frozen=True, slots=True)
class TryPlan:
    """Run this plan, which all of its devices have ready, once on made-up inputs, and compare; answer PlanTried."""

    deployment: str
    epoch: Epoch
    model: str
    """Digest."""
    model_bytes: int
    tolerance: float | None
    """As in PlanComputed."""
    trusted: Epoch
    """Of the plan that serves, where it gave right answers; else NO_EPOCH."""


@dataclass(frozen=True, slots=True)
class StandingChanged:
    """News of a deployment, from the leader (wherever that is)."""

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
    | PersistDrains
    | Discharged
    | Distrusted
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
