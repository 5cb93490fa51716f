"""A model's card: what clients and people are told of a deployment, of its bindings and of its candidate. Facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgepart.agent.wire.control import DeviceWeights
from edgepart.agent.wire.inference import Epoch
from edgepart.planner.plans.plan import ValueInfo


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
