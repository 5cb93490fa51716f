"""What agents say to each other about the cluster: facts, one frozen dataclass per control message.

Fields are what agent/wire.py carries: str, int, float, bool, bytes, None, tuples, dicts, nested frozen
dataclasses. Nothing here decides; membership.py, election.py, controller.py and follower.py do. Node ids are
16 hex digits, addresses are "host:port", digests are SHA-256 in hex.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from edgepart.agent.messages import DeployOptions, Epoch

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


@dataclass(frozen=True, slots=True)
class Hello:
    """First message on a link, and the answer to one (`reply`): who speaks here."""

    node: str
    name: str
    """What the user calls the device; need not be unique (membership.unique_names)."""
    boot: str
    """Random per process start: another boot is another process, and all that was prepared in the old one is
    gone."""
    incarnation: int
    """Grows with each start and each refutation; persisted."""
    listen: tuple[str, ...]
    """Where this agent takes links."""
    http: str
    """Where it takes HTTP, as a URL; empty when it does not."""
    version: str
    reply: bool = False


@dataclass(frozen=True, slots=True)
class Sighting:
    """How one member sees a device."""

    node: str
    incarnation: int
    status: str
    """One of STATUSES."""
    name: str
    listen: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """To every linked device each `Profile.heartbeat_s`, and at once when the leader changes."""

    boot: str
    incarnation: int
    seen_term: int
    """The largest term that the sender knows of."""
    leader: str
    """Whom the sender follows, itself if it leads, or empty."""
    term: int
    """That leader's term, or 0."""


@dataclass(frozen=True)
class View:
    """All that the sender sees: when a link comes up, when its view changes, and now and then. Of what follows from it each
    is worked out once, as members of a large cluster look at it often."""

    sightings: tuple[Sighting, ...]

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

    node: str


@dataclass(frozen=True, slots=True)
class Opinion:
    """The answer to AskAbout: one of STATUSES; ALIVE only when the device was heard just now."""

    node: str
    status: str


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

    boot: str


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The sender leaves on purpose, at once."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Card:
    """What a device and its links can do, as its probe found; broadcast when it changes (by more than
    noise)."""

    node: str
    document: bytes
    """For whoever computes plans; the cluster logic only asks whether it is there and whether it changed."""


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """Of a deployment's entry: the larger one wins everywhere."""

    counter: int
    node: str
    """Who wrote it; breaks ties."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One entry of the versioned map that every member keeps on disk."""

    name: str
    model: str
    """Digest under which the store knows the model, external data included."""
    model_bytes: int
    options: DeployOptions
    version: Version
    deleted: bool = False
    """A tombstone: the name was undeployed."""


@dataclass(frozen=True, slots=True)
class Deployments:
    """Entries of the sender's map: all when a link comes up, the changed ones when they change."""

    entries: tuple[Deployment, ...]


DRAINS = "drains"
"""In a member's `Hello.version`, after the plus: it understands what follows. One that does not would end the link."""
IN, DRAINED, REMOVING, REMOVED = "in", "drained", "removing", "removed"
DRAIN_STATES = (IN, DRAINED, REMOVING, REMOVED)
"""It may serve; plans are made without it; the same, and it is removed as soon as others have taken over; it is no member
any more. `DRAINED` is also the status of a member in the eyes of whoever plans."""


@dataclass(frozen=True, slots=True)
class Drain:
    """One entry of the versioned map of devices that users drain and remove."""

    node: str
    name: str
    """What it was called then."""
    state: str
    """One of DRAIN_STATES."""
    version: Version


@dataclass(frozen=True, slots=True)
class Drains:
    """Entries of the sender's map: all when a link comes up, the changed ones when they change."""

    entries: tuple[Drain, ...]


@dataclass(frozen=True, slots=True)
class DrainStanding:
    """How far a drain is, from the leader to all, for people and for whoever waits for it."""

    term: int
    node: str
    version: Version
    """Of the entry."""
    done: bool
    """Nothing that serves needs it, and what it stores is stored elsewhere."""
    text: str


LOADING = "loading"
READY = "ready"
FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Holding:
    """One plan that a member has, or tries to have."""

    deployment: str
    epoch: Epoch
    state: str
    """LOADING, READY or FAILED."""
    active: bool
    error: str = ""
    """Why it FAILED, for people."""


@dataclass(frozen=True, slots=True)
class Report:
    """A member's state, to its leader: at once when it changes, and each `Profile.report_s`."""

    boot: str
    holdings: tuple[Holding, ...]
    models: tuple[str, ...]
    """Digests of the models that it stores whole."""
    versions: tuple[tuple[str, Version], ...]
    """Its map of deployments, in short."""


@dataclass(frozen=True, slots=True)
class Want:
    """From a gateway to the leader, each second while it holds requests of these shapes: have a plan for them."""

    deployment: str
    version: Version
    """Of the plan that serves there."""
    shapes: dict[str, tuple[int, ...]]
    """By input with free dimensions, its whole shape."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """From the leader to every member: have this plan ready. Devices load their programs, the others keep the
    plan to be a gateway. The same message again is no harm."""

    term: int
    """Of the leader that sends it; the epoch may be of an earlier one whose plan it keeps."""
    deployment: str
    version: Version
    epoch: Epoch
    plan: bytes
    names: tuple[tuple[str, str], ...]
    """(device name in the plan, node id) for every device with a program."""
    model: str
    sources: tuple[str, ...]
    """Nodes that store the model whole: weights come from them."""
    latency_s: float
    """Predicted."""
    shapes: dict[str, tuple[int, ...]]
    """That the user, or for a variant a request, gave the inputs."""
    weighed: bool = False
    """Whether another plan serves meanwhile, which this one has to beat: its segments are timed before it is READY."""
    memory_bytes: tuple[tuple[str, int], ...] = ()
    """By device name, the most that its program takes, predicted."""


@dataclass(frozen=True, slots=True)
class Activate:
    """From the leader to every member that is ready: new requests start on this epoch."""

    term: int
    deployment: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Retire:
    """From the leader: drop this plan, which will not be (or is no longer) used. A plan that serves is dropped only where
    it is a variant's, and is kept a while for the requests that run on it."""

    term: int
    deployment: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class FetchModel:
    """From the leader: store this model, from any of these nodes."""

    term: int
    model: str
    model_bytes: int
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """What a segment took on a device of some kind."""

    segment: str
    """Its digest."""
    kind: str
    """As planner/cluster.py's Device.pace gives it."""
    threads: int
    seconds: float
    """Median of several runs, or the best of those before the plan served."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"a segment cannot take {self.seconds} s")


@dataclass(frozen=True, slots=True)
class Timed:
    """What the sender knows that segments take: when a link comes up, and when it is news."""

    timings: tuple[Profile, ...]


MOST_DRIFT = 16.0
"""And its inverse: what is further off is not a slow device any more, but one that is stuck, or a wrong prediction."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How many times as long as it was calibrated to take the sender computes, as it found with this deployment: to all
    when it is news, and when a link comes up."""

    deployment: str
    factor: float

    def __post_init__(self) -> None:
        if not 1 / MOST_DRIFT <= self.factor <= MOST_DRIFT:
            raise ValueError(f"a device cannot drift by {self.factor}")


@dataclass(frozen=True, slots=True)
class Latency:
    """From a gateway to the leader: what requests took that ran alone."""

    deployment: str
    epoch: Epoch
    seconds: float
    """Median."""
    requests: int


REFUSED = "refused"
UNLOADABLE = "ClusterError"
"""Kind of a standing's error where no device that a deployment may use can load its part of it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a deployment does, from the leader to all, for people and for whoever waits for a deployment."""

    term: int
    deployment: str
    version: Version
    state: str
    """waiting | storing | planning | preparing | serving | failed; a variant's also refused: who waits for it, waits in
    vain"""
    text: str
    """The same in a sentence, with numbers."""
    acknowledged: bool
    """True when a plan of this version serves, and model and entry would survive the loss of any one device
    (or there is only one)."""
    epoch: Epoch
    devices: tuple[str, ...]
    """Names of the devices that compute, of the active plan."""
    error: str = ""
    error_kind: str = ""
    """Class name in planner/errors.py, so that the user's agent can raise it again."""
    note: str = ""
    """Why the plan that serves is another than was predicted to be the best."""
    rounding: str = ""
    """How far its answers are off because of what is rounded on its way; "" where nothing is, or it is not known yet."""


ControlMessage = (
    Hello
    | Heartbeat
    | View
    | AskAbout
    | Opinion
    | Leaving
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
