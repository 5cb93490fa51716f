"""What agents say to each other about the cluster: facts, one frozen dataclass per control message.

Fields are what agent/wire/codec.py carries: str, int, float, bool, bytes, None, tuples, dicts, nested frozen
dataclasses. Nothing here decides; membership.py, election.py, controller.py and follower.py do. Node ids are
16 hex digits, addresses are "host:port", digests are SHA-256 in hex.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from edgepart.agent.wire.inference import DeployOptions, Epoch

ALIVE = "alive"
LEAVING = "leaving"
"""Alive, and about to go: it serves until others have taken over. Only of members; a sighting says ALIVE."""
FLAPPING = "flapping"
"""Alive, and was lost again and again lately: plans do without it for a while. Only of members; a sighting says ALIVE."""
SUSPECT = "suspect"
DEAD = "dead"
LEFT = "left"
STATUSES = (ALIVE, SUSPECT, DEAD, LEFT)
"""From the best to the worst news: of two sightings of one incarnation the worse one wins."""
Status = Annotated[str, OneOf(STATUSES)]


@dataclass(frozen=True, slots=True)
class Hello:
    """First message on a link, and the answer to one (`reply`): who speaks here."""

    node: NodeId
    name: Name
    """What the user calls the device; need not be unique (membership.unique_names)."""
    boot: Word
    """Random per process start: another boot is another process, and all that was prepared in the old one is
    gone."""
    incarnation: Count
    """Grows with each start and each refutation; persisted."""
    listen: Addresses
    """Where this agent takes links."""
    http: Address
    """Where it takes HTTP, as a URL; empty when it does not."""
    version: Word
    reply: bool = False


@dataclass(frozen=True, slots=True)
class Sighting:
    """How one member sees a device."""

    node: NodeId
    incarnation: Count
    status: Status
    """One of STATUSES."""
    name: Name
    listen: Addresses


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """To every linked device each `Profile.heartbeat_s`, and at once when the leader changes."""

    boot: Word
    incarnation: Count
    seen_term: Count
    """The largest term that the sender knows of."""
    leader: NodeId
    """Whom the sender follows, itself if it leads, or empty."""
    term: Count
    """That leader's term, or 0."""


@dataclass(frozen=True)
class View:
    """All that the sender sees: when a link comes up, when its view changes, and now and then. Of what follows from it each
    is worked out once, as members of a large cluster look at it often."""

    sightings: Annotated[tuple[Sighting, ...], Many(MOST_MEMBERS)]

    @cached_property
    def by_node(self) -> dict[str, Sighting]:
        return {sighting.node: sighting for sighting in self.sightings}

    @cached_property
    def reached(self) -> frozenset[str]:
        """Whom it shows as alive."""
        return frozenset(sighting.node for sighting in self.sightings if sighting.status == ALIVE)

    @cached_property
    def away(self) -> frozenset[str]:
        """Whom it shows otherwise."""
        return frozenset(sighting.node for sighting in self.sightings if sighting.status != ALIVE)


@dataclass(frozen=True, slots=True)
class AskAbout:
    """I cannot reach `node`; can you?"""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Opinion:
    """The answer to AskAbout: one of STATUSES; ALIVE only when the device was heard just now."""

    node: NodeId
    status: Status


LEAVES = "leaves"
"""In a member's `Hello.version`, after the plus: it understands `Leaving`. One that does not would end the link."""


def understands_leaving(version: str) -> bool:
    """
    >>> understands_leaving("1.2+traces.leaves"), understands_leaving("1.2+traces")
    (True, False)
    """
    return LEAVES in version.partition("+")[2].split(".")


@dataclass(frozen=True, slots=True)
class Leaving:
    """The sender is about to go, and serves until others do without it; `Goodbye` follows."""

    boot: Word


STARVES = "starves"
"""In a member's `Hello.version`, after the plus: it understands `Starved`. One that does not would end the link."""


@dataclass(frozen=True, slots=True)
class Starved:
    """Whether the sender gets the CPU when it needs it: to all when that is news, and now and then, and when a link comes
    up, while it does not."""

    share: Annotated[float, Number(0.0, 1.0)] = 0.0
    """Of the time that its threads could have run, what they waited for a CPU; 0 where that is as it should be."""
    lasting: bool = False
    """Whether it has been so for so long that what it measures counts."""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The sender leaves on purpose, at once."""

    incarnation: Count


MOST_CARD_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Card:
    """What a device and its links can do, as its probe found; broadcast when it changes (by more than
    noise)."""

    node: NodeId
    document: Annotated[bytes, Many(MOST_CARD_BYTES)]
    """For whoever computes plans; the cluster logic only asks whether it is there and whether it changed."""


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """Of a deployment's entry: the larger one wins everywhere."""

    counter: Count
    node: NodeId
    """Who wrote it; breaks ties."""


MOST_FAULT = 500
"""Characters of why a model is set aside."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One entry of the versioned map that every member keeps on disk."""

    name: DeploymentName
    model: Digest
    """Digest under which the store knows the model, external data included."""
    model_bytes: Bytes
    options: DeployOptions
    version: Version
    deleted: bool = False
    """A tombstone: the name was undeployed."""
    fault: Annotated[str, Text(MOST_FAULT)] = ""
    """Why it is set aside: its model ends the processes that compute it. No device loads it until a user deploys it
    again."""


@dataclass(frozen=True, slots=True)
class Deployments:
    """Entries of the sender's map: all when a link comes up, the changed ones when they change."""

    entries: Annotated[tuple[Deployment, ...], Many(MOST_ENTRIES)]


DRAINS = "signed-drains"
"""In a member's `Hello.version`, after the plus: it understands what follows. One that does not would end the link."""
IN, DRAINED, REMOVING, REMOVED = "in", "drained", "removing", "removed"
DRAIN_STATES = (IN, DRAINED, REMOVING, REMOVED)
"""It may serve; plans are made without it; the same, and it is removed as soon as others have taken over; it is no member
any more. `DRAINED` is also the status of a member in the eyes of whoever plans."""


@dataclass(frozen=True, slots=True)
class Drain:
    """One entry of the versioned map of devices that users drain and remove."""

    node: NodeId
    name: Name
    """What it was called then."""
    state: Annotated[str, OneOf(DRAIN_STATES)]
    """One of DRAIN_STATES."""
    version: Version
    """`node` in it is where a user asked for it."""
    signature: Annotated[bytes, Many(80)] = b""
    """By the CA's key (drains.py). REMOVED has that of REMOVING: the user's word, which the leader carries out. Empty in
    what an earlier version has left on this device's disk: that is kept, and told to nobody."""


@dataclass(frozen=True, slots=True)
class Drains:
    """Entries of the sender's map: all when a link comes up, the changed ones when they change."""

    entries: Annotated[tuple[Drain, ...], Many(MOST_ENTRIES)]


@dataclass(frozen=True, slots=True)
class DrainStanding:
    """How far a drain is, from the leader to all, for people and for whoever waits for it."""

    term: Count
    node: NodeId
    version: Version
    """Of the entry."""
    done: bool
    """Nothing that serves needs it, and what it stores is stored elsewhere."""
    text: Sentence


LOADING = "loading"
READY = "ready"
FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Holding:
    """One plan that a member has, or tries to have."""

    deployment: PlanName
    epoch: Epoch
    state: Annotated[str, OneOf((LOADING, READY, FAILED))]
    """LOADING, READY or FAILED."""
    active: bool
    error: Sentence = ""
    """Why it FAILED, for people."""


@dataclass(frozen=True, slots=True)
class Report:
    """A member's state, to its leader: at once when it changes, and each `Profile.report_s`."""

    boot: Word
    holdings: Annotated[tuple[Holding, ...], Many(10 * MOST_ENTRIES)]
    models: Annotated[tuple[Digest, ...], Many(10 * MOST_ENTRIES)]
    """Digests of the models that it stores whole."""
    versions: Annotated[tuple[tuple[DeploymentName, Version], ...], Many(MOST_ENTRIES)]
    """Its map of deployments, in short."""


@dataclass(frozen=True, slots=True)
class Want:
    """From a gateway to the leader, each second while it holds requests of these shapes: have a plan for them."""

    deployment: PlanName
    version: Version
    """Of the plan that serves there."""
    shapes: Shapes
    """By input with free dimensions, its whole shape."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """From the leader to every member: have this plan ready. Devices load their programs, the others keep the
    plan to be a gateway. The same message again is no harm."""

    term: Count
    """Of the leader that sends it; the epoch may be of an earlier one whose plan it keeps."""
    deployment: PlanName
    version: Version
    epoch: Epoch
    plan: bytes
    names: Annotated[tuple[tuple[Name, NodeId], ...], Many(MOST_MEMBERS)]
    """(device name in the plan, node id) for every device with a program."""
    model: Digest
    sources: Nodes
    """Nodes that store the model whole: weights come from them."""
    latency_s: Seconds
    """Predicted."""
    shapes: Shapes
    """That the user, or for a variant a request, gave the inputs."""
    weighed: bool = False
    """Whether another plan serves meanwhile, which this one has to beat: its segments are timed before it is READY."""
    memory_bytes: Annotated[tuple[tuple[Name, Large], ...], Many(MOST_MEMBERS)] = ()
    """By device name, the most that its program takes, predicted."""


@dataclass(frozen=True, slots=True)
class Activate:
    """From the leader to every member that is ready: new requests start on this epoch."""

    term: Count
    deployment: PlanName
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Retire:
    """From the leader: drop this plan, which will not be (or is no longer) used. A plan that serves is dropped only where
    it is a variant's, and is kept a while for the requests that run on it."""

    term: Count
    deployment: PlanName
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class FetchModel:
    """From the leader: store this model, from any of these nodes."""

    term: Count
    model: Digest
    model_bytes: Bytes
    sources: Nodes


MOST_THREADS = 1 << 20
MOST_SECONDS = 1e6
"""Of one run of a segment: eleven days."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a segment took on a device of some kind."""

    segment: Digest
    """Its digest."""
    kind: Word
    """As planner/devices/cluster.py's Device.pace gives it."""
    threads: Annotated[int, WholeNumber(1, MOST_THREADS)]
    seconds: Annotated[float, Number(above=0, most=MOST_SECONDS)]
    """Median of several runs, or the best of those before the plan served."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"a segment cannot take {self.seconds} s")


@dataclass(frozen=True, slots=True)
class Timed:
    """What the sender knows that segments take: when a link comes up, and when it is news."""

    timings: Annotated[tuple[Profile, ...], Many(MOST_ENTRIES)]


MOST_DRIFT = 16.0
"""And its inverse: what is further off is not a slow device any more, but one that is stuck, or a wrong prediction."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How many times as long as it was calibrated to take the sender computes, as it found with this deployment: to all
    when it is news, and when a link comes up."""

    deployment: PlanName
    factor: Annotated[float, Number(1 / MOST_DRIFT, MOST_DRIFT)]

    def __post_init__(self) -> None:
        if not 1 / MOST_DRIFT <= self.factor <= MOST_DRIFT:
            raise ValueError(f"a device cannot drift by {self.factor}")


@dataclass(frozen=True, slots=True)
class Latency:
    """From a gateway to the leader: what requests took that ran alone."""

    deployment: PlanName
    epoch: Epoch
    seconds: Seconds
    """Median."""
    requests: Count


REFUSED = "refused"
UNLOADABLE = "ClusterError"
"""Kind of a standing's error where no device that a deployment may use can load its part of it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a deployment does, from the leader to all, for people and for whoever waits for a deployment."""

    term: Count
    deployment: PlanName
    version: Version
    state: Word
    """waiting | storing | planning | preparing | serving | failed; a variant's also refused: who waits for it, waits in
    vain"""
    text: Sentence
    """The same in a sentence, with numbers."""
    acknowledged: bool
    """True when a plan of this version serves, and model and entry would survive the loss of any one device
    (or there is only one)."""
    epoch: Epoch
    devices: Annotated[tuple[Name, ...], Many(MOST_MEMBERS)]
    """Names of the devices that compute, of the active plan."""
    error: Sentence = ""
    error_kind: Word = ""
    """Class name in planner/errors.py, so that the user's agent can raise it again."""
    note: Sentence = ""
    """Why the plan that serves is another than was predicted to be the best."""
    rounding: Sentence = ""
    """How far its answers are off because of what is rounded on its way; "" where nothing is, or it is not known yet."""


ControlMessage = (
    Hello
    | Heartbeat
    | View
    | AskAbout
    | Opinion
    | Leaving
    | Starved
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
