"""Messages between agents about the cluster: facts, one frozen dataclass per control message.

Fields have the types that agent/wire/codec.py carries. The rules that act on these messages are in agent/cluster/. Node ids
are 16 hex digits, addresses are "host:port", digests are SHA-256 in hex.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from edgepart.agent.wire.bounds import (
    MOST_ENTRIES,
    MOST_MEMBERS,
    Address,
    Addresses,
    Bytes,
    Count,
    DeploymentName,
    Digest,
    Large,
    Many,
    Name,
    NodeId,
    Nodes,
    Number,
    OneOf,
    PlanName,
    Seconds,
    Sentence,
    Shapes,
    Text,
    WholeNumber,
    Word,
)
from edgepart.agent.wire.codec import OPTIONAL
from edgepart.agent.wire.inference import MOST_KEPT, DeployOptions, Epoch

ALIVE = "alive"
LEAVING = "leaving"
"""Alive and about to stop: the device serves until others have taken over. Sightings say ALIVE instead."""
FLAPPING = "flapping"
"""Alive, but lost several times lately: plans do without it for a while. Sightings say ALIVE instead."""
SUSPECT = "suspect"
DEAD = "dead"
LEFT = "left"
STATUSES = (ALIVE, SUSPECT, DEAD, LEFT)
"""The statuses of a sighting, from the best to the worst: of two sightings of one incarnation the worse one wins."""
Status = Annotated[str, OneOf(STATUSES)]


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message on a link, and the answer to it (`reply`): it introduces the sender."""

    node: NodeId
    name: Name
    """The user's name for the device; it need not be unique (roster.make_unique_names)."""
    boot: Word
    """A random id of the agent's process: another boot id means another process, which has lost everything that the old
    one had prepared."""
    incarnation: Count
    """Grows with each start and each refutation; it is kept on disk."""
    listen: Addresses
    """The addresses where this agent accepts links."""
    http: Address
    """The URL of the agent's HTTP API; empty if it serves none."""
    version: Word
    reply: bool = False


@dataclass(frozen=True, slots=True)
class Sighting:
    """How one member sees a device."""

    node: NodeId
    incarnation: Count
    status: Status
    name: Name
    listen: Addresses


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life that is sent to every linked device at a fixed interval (0.5 s by default), and at once when the
    leader changes."""

    boot: Word
    incarnation: Count
    seen_term: Count
    """The largest term that the sender knows of."""
    leader: NodeId
    """The leader that the sender follows, which may be the sender itself; empty if there is none."""
    term: Count
    """The term of that leader, or 0."""


@dataclass(frozen=True)
class View:
    """How the sender sees every device: sent when a link comes up, when the view changes, and now and then. The properties
    are computed only once, because members of a large cluster read them often."""

    sightings: Annotated[tuple[Sighting, ...], Many(MOST_MEMBERS)]

    @cached_property
    def by_node(self) -> dict[str, Sighting]:
        return {sighting.node: sighting for sighting in self.sightings}

    @cached_property
    def reached(self) -> frozenset[str]:
        """The devices that the view shows as alive."""
        return frozenset(sighting.node for sighting in self.sightings if sighting.status == ALIVE)

    @cached_property
    def away(self) -> frozenset[str]:
        """The devices that the view does not show as alive."""
        return frozenset(sighting.node for sighting in self.sightings if sighting.status != ALIVE)


@dataclass(frozen=True, slots=True)
class AskAbout:
    """The sender cannot reach `node`, and asks whether the receiver can."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Opinion:
    """The answer to AskAbout; the status is ALIVE only if the sender heard the device just now."""

    node: NodeId
    status: Status


LEAVES = "leaves"
"""Stands after the plus in the `Hello.version` of members that understand `Leaving`; other members would end the link."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The sender is about to stop, and serves until others have taken over; `Goodbye` follows."""

    boot: Word


DOORS = "doors"
"""Stands after the plus in the `Hello.version` of members that understand `Doors`; other members would end the link."""


@dataclass(frozen=True, slots=True)
class Doors:
    """Where clients reach the sender besides HTTP: sent to all members when that changes, and when a link comes up."""

    boot: Word
    """The boot id of the sender's process, as in Hello."""
    grpc: Address
    """The address of its gRPC server, as HOST:PORT; empty if it has none."""


STARVES = "starves"
"""Stands after the plus in the `Hello.version` of members that understand `Starved`; other members would end the link."""


@dataclass(frozen=True, slots=True)
class Starved:
    """Whether the sender's threads get the CPU when they need it: sent to all members when that changes and, while the
    sender is starved, now and then and when a link comes up."""

    share: Annotated[float, Number(0.0, 1.0)] = 0.0
    """The time that its threads waited for a CPU, as a share of the time in which they could have run; 0 if the sender is
    not starved."""
    lasting: bool = False
    """Whether the sender has been starved for so long that its measurements count again."""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The sender stops now, on purpose."""

    incarnation: Count


MOST_CARD_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Card:
    """The measured abilities of a device and its links, sent to all members when they change by more than noise."""

    node: NodeId
    document: Annotated[bytes, Many(MOST_CARD_BYTES)]
    """The measurements, for the planner; the cluster logic only checks whether a document is there and has changed."""


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """The version of an entry in a map that members merge: the entry with the larger version wins everywhere."""

    counter: Count
    node: NodeId
    """The device that wrote the entry; it breaks ties."""


SPARES = "spares"
"""The word in `Hello.version` of an agent that reads `Prepare.spare`."""
VERSIONS = "versions"
"""Stands after the plus in the `Hello.version` of members that understand the numbers of model versions: the fields of
`Deployment` from `number` on, and `Prepare.number`. Other members get the same messages without them."""


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A version of a deployment's model that does not serve now, and that a rollback brings back."""

    number: Count
    model: Digest
    model_bytes: Bytes
    options: DeployOptions
    asked: DeployOptions | None = field(default=None, metadata=OPTIONAL)
    """As in `Deployment`."""


CANDIDATES = "candidates"
"""Stands after the plus in the `Hello.version` of members that understand `Deployment.candidacy`. Other members get the
same entries without it; nobody makes a candidate while such a member is there."""


@dataclass(frozen=True, slots=True)
class Candidacy:
    """What makes a deployment the candidate of another one, its parent."""

    parent: DeploymentName
    share: Annotated[int, WholeNumber(0, 100)]
    """How many of a hundred requests for the parent the candidate answers."""
    shadow: bool
    """Whether the candidate gets copies of requests, whose answers are compared with the parent's and given to nobody."""
    version: Version
    """Grows with each change of the share. Of two entries of one version that with the later candidacy wins: so a share can
    be changed without a new plan, which each new version of an entry gets."""


MOST_FAULT = 500
"""The longest reason, in characters, why a model is set aside."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One entry of the versioned map that every member keeps on disk."""

    name: DeploymentName
    model: Digest
    """The digest under which the store keeps the model with its external data."""
    model_bytes: Bytes
    options: DeployOptions
    version: Version
    deleted: bool = False
    """Whether this entry is a tombstone: the deployment was removed."""
    fault: Annotated[str, Text(MOST_FAULT)] = ""
    """Why the deployment is set aside: its model ends the workers that compute it. No device loads it until a user deploys
    it again. Empty if it is not set aside."""
    number: Count = field(default=0, metadata=OPTIONAL)
    """The number of the model's version, which users and clients see: 1, 2, 3... A rollback brings back the number too. 0:
    a member that does not know versions wrote the entry."""
    newest: Count = field(default=0, metadata=OPTIONAL)
    """The largest number that was given under this name; tombstones keep it, so that no number stands for two models."""
    kept: Annotated[tuple[ModelVersion, ...], Many(MOST_KEPT)] = field(default=(), metadata=OPTIONAL)
    """The versions that a rollback can bring back; the one that served last comes first."""
    asked: DeployOptions | None = field(default=None, metadata=OPTIONAL)
    """The options as the user gave them, before the agent that took the model added what they left open; None if it added
    nothing, or if that is not known."""
    candidacy: Candidacy | None = field(default=None, metadata=OPTIONAL)
    """Whose candidate the deployment is; None if it is none."""

    @property
    def models(self) -> tuple[tuple[str, int], ...]:
        """The digest and the bytes of each model that has to be stored for this entry; that of the serving version comes
        first."""
        found = {self.model: self.model_bytes} | {one.model: one.model_bytes for one in self.kept}
        return tuple(found.items())


@dataclass(frozen=True, slots=True)
class Deployments:
    """Entries of the sender's map of deployments: all when a link comes up, then those that change."""

    entries: Annotated[tuple[Deployment, ...], Many(MOST_ENTRIES)]


DRAINS = "signed-drains"
"""Stands after the plus in the `Hello.version` of members that understand the messages about drains below; other members
would end the link."""
IN, DRAINED, REMOVING, REMOVED = "in", "drained", "removing", "removed"
DRAIN_STATES = (IN, DRAINED, REMOVING, REMOVED)
"""IN: the device may serve. DRAINED: plans are made without the device. REMOVING: the same, and the device is removed as
soon as others have taken over. REMOVED: the device is no longer a member. `DRAINED` is also a status of a member in the
planner's view."""


@dataclass(frozen=True, slots=True)
class Drain:
    """One entry of the versioned map of devices that users drain and remove."""

    node: NodeId
    name: Name
    """The name of the device at that time."""
    state: Annotated[str, OneOf(DRAIN_STATES)]
    version: Version
    """Its `node` is the device that the user asked."""
    signature: Annotated[bytes, Many(80)] = b""
    """The signature by the CA's key (drains.py). A REMOVED entry has the signature of REMOVING, because the leader only
    carries out what the user ordered. The signature is empty in an entry that an earlier release left on this device's
    disk; such an entry is kept but sent to nobody."""


@dataclass(frozen=True, slots=True)
class Drains:
    """Entries of the sender's map of drains: all when a link comes up, then those that change."""

    entries: Annotated[tuple[Drain, ...], Many(MOST_ENTRIES)]


@dataclass(frozen=True, slots=True)
class DrainStanding:
    """The leader tells all members how far a drain is, for people and for commands that wait for it."""

    term: Count
    node: NodeId
    version: Version
    """The version of the drain's entry."""
    done: bool
    """Whether no serving plan needs the device, and everything that it stores is stored elsewhere."""
    text: Sentence


LOADING = "loading"
READY = "ready"
FAILED = "failed"


ARRIVALS = "arrivals"
"""Stands after the plus in the `Hello.version` of members that understand what is told of weights on their way:
`Holding.here_bytes`, `Holding.needed_bytes` and `Standing.weights`. Other members get the same messages without them."""


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """How far the weights have come that one device needs for a plan."""

    device: Name
    here_bytes: Bytes
    """The bytes that are on the device's disk."""
    needed_bytes: Bytes


@dataclass(frozen=True, slots=True)
class Holding:
    """A plan that a member has loaded, is loading or could not load."""

    deployment: PlanName
    epoch: Epoch
    state: Annotated[str, OneOf((LOADING, READY, FAILED))]
    active: bool
    error: Sentence = ""
    """Why the plan FAILED to load, for people."""
    continued: Count = field(default=0, metadata=OPTIONAL)
    """About how far sequences have come (`SequenceStep.after`) that were continued on the plan in the last seconds and
    whose states this member keeps: of several the furthest, of none 0."""
    here_bytes: Bytes = field(default=0, metadata=OPTIONAL)
    """How many of `needed_bytes` are on this member's disk."""
    needed_bytes: Bytes = field(default=0, metadata=OPTIONAL)
    """The bytes of the weights that this member needs for the plan; 0 if it needs none, or does not know yet."""


@dataclass(frozen=True, slots=True)
class Report:
    """A member tells the leader its state, at once when it changes and at a fixed interval (1 s by default)."""

    boot: Word
    holdings: Annotated[tuple[Holding, ...], Many(10 * MOST_ENTRIES)]
    models: Annotated[tuple[Digest, ...], Many(10 * MOST_ENTRIES)]
    """Digests of the models that the member stores completely."""
    versions: Annotated[tuple[tuple[DeploymentName, Version], ...], Many(MOST_ENTRIES)]
    """The name and version of each entry in the member's map of deployments."""


@dataclass(frozen=True, slots=True)
class Want:
    """A gateway asks the leader for a plan for these shapes, each second while it holds requests with them."""

    deployment: PlanName
    version: Version
    """The version of the deployment whose plan serves on the gateway."""
    shapes: Shapes
    """The whole shape of each input that has free dimensions."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """The leader tells every member to get this plan ready. Devices of the plan load their programs; other members keep
    the plan because they may be a gateway. The message may be repeated."""

    term: Count
    """The term of the leader that sends this. The epoch has an earlier term if the leader keeps an earlier plan."""
    deployment: PlanName
    version: Version
    epoch: Epoch
    plan: bytes
    names: Annotated[tuple[tuple[Name, NodeId], ...], Many(MOST_MEMBERS)]
    """(device name in the plan, node id) for every device with a program."""
    model: Digest
    sources: Nodes
    """Nodes that store the whole model; weights are fetched from them."""
    latency_s: Seconds
    """The predicted time of one request."""
    shapes: Shapes
    """The shapes of the inputs that the user gave or, for a variant, that a request brought."""
    weighed: bool = False
    """Whether this plan has to beat one that serves now, and there is time for that; its segments are then timed before it
    is READY."""
    memory_bytes: Annotated[tuple[tuple[Name, Large], ...], Many(MOST_MEMBERS)] = ()
    """The predicted peak memory of each device's program, by device name."""
    number: Count = field(default=0, metadata=OPTIONAL)
    """The number of the model's version, as in `Deployment`."""
    spare: bool = field(default=False, metadata=OPTIONAL)
    """Whether the plan serves only if a device is lost; it is then loaded after others."""


@dataclass(frozen=True, slots=True)
class Activate:
    """The leader tells every member that is ready to start new requests on this epoch."""

    term: Count
    deployment: PlanName
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Retire:
    """The leader tells members to drop this plan, which is not used, or no longer used. A plan that serves is dropped only
    if it belongs to a variant, and is kept for a while for the requests that run on it."""

    term: Count
    deployment: PlanName
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class FetchModel:
    """The leader tells a member to store this model, and to fetch it from any of these nodes."""

    term: Count
    model: Digest
    model_bytes: Bytes
    sources: Nodes


MOST_THREADS = 1 << 20
MOST_SECONDS = 1e6
"""The longest credible time of one run of a segment, in seconds: eleven days."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The measured time of a segment on devices of one kind."""

    segment: Digest
    """`Segment.timed_as`."""
    kind: Word
    """The kind of device, as Device.pace of planner/devices/cluster.py gives it."""
    threads: Annotated[int, WholeNumber(1, MOST_THREADS)]
    seconds: Annotated[float, Number(above=0, most=MOST_SECONDS)]
    """The median of several runs or, if the plan did not serve yet, the shortest of its trial runs."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"a segment cannot take {self.seconds} s")


@dataclass(frozen=True, slots=True)
class Timed:
    """The profiles that the sender knows: sent when a link comes up, and when there are new ones."""

    timings: Annotated[tuple[Profile, ...], Many(MOST_ENTRIES)]


MOST_DRIFT = 16.0
"""The largest drift; its inverse is the smallest. Beyond that, the device is stuck or its prediction is wrong."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The ratio of the time that the sender takes to compute this deployment to the calibrated time: sent to all members
    when it changes, and when a link comes up."""

    deployment: PlanName
    factor: Annotated[float, Number(1 / MOST_DRIFT, MOST_DRIFT)]

    def __post_init__(self) -> None:
        if not 1 / MOST_DRIFT <= self.factor <= MOST_DRIFT:
            raise ValueError(f"a device cannot drift by {self.factor}")


@dataclass(frozen=True, slots=True)
class Latency:
    """A gateway tells the leader how long requests took that ran alone."""

    deployment: PlanName
    epoch: Epoch
    seconds: Seconds
    """The median over these requests."""
    requests: Count


REFUSED = "refused"
UNLOADABLE = "ClusterError"
"""The `error_kind` of a standing if no device that a deployment may use can load its part."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The leader tells all members the state of a deployment, for people and for commands that wait for it."""

    term: Count
    deployment: PlanName
    version: Version
    state: Word
    """waiting | storing | planning | preparing | serving | failed. A variant may also be refused; requests then wait for
    it in vain."""
    text: Sentence
    """The state as a sentence, with numbers."""
    acknowledged: bool
    """Whether a plan of this version serves, and the model and the entry would survive the loss of any one device
    (or there is only one device)."""
    epoch: Epoch
    devices: Annotated[tuple[Name, ...], Many(MOST_MEMBERS)]
    """Names of the devices that compute in the active plan."""
    error: Sentence = ""
    error_kind: Word = ""
    """The name of the error's class in planner/errors.py, so that the user's agent can raise it again."""
    note: Sentence = ""
    """The reason why the plan that was predicted to be the best does not serve; empty if it serves."""
    rounding: Sentence = ""
    """How far rounding makes the answers differ; empty if nothing is rounded or the difference is not known yet."""
    weights: Annotated[tuple[DeviceWeights, ...], Many(MOST_MEMBERS)] = field(default=(), metadata=OPTIONAL)
    """While a plan is being prepared: how far the weights of its devices have come, as far as they have told."""
    covered: Annotated[tuple[Name, ...], Many(MOST_MEMBERS)] = field(default=(), metadata=OPTIONAL)
    """The devices for whose loss another plan is loaded and was tried."""


ControlMessage = (
    Hello
    | Heartbeat
    | View
    | AskAbout
    | Opinion
    | Leaving
    | Starved
    | Doors
    | Goodbye
    | Card
    | Drains
    | DrainStanding
    | Deployments
    | Report
    | Want
    | Prepare
    | Activate
    | Retire
    | FetchModel
    | Timed
    | Drift
    | Latency
    | Standing
)
