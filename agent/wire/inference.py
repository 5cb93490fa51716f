"""What agents say to each other: facts, one dataclass per message, and how each becomes a frame's header.

A message travels as one frame (agent/wire/frames.py): its kind, its fields as msgpack, and for some a raw payload.
docs/protocol.md tells who sends which, when.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from edgepart.agent.wire.bounds import (
    LARGEST,
    MOST_NAMES,
    Count,
    Many,
    Number,
    OneOf,
    PlanName,
    Shapes,
    Text,
    WholeNumber,
    Word,
)
from edgepart.planner.plans.reduced_precision import EXACT, KINDS
from edgepart.planner.vocabulary import AXES, OBJECTIVES

MOST_BINDINGS = 64
"""That a user can ask for."""
MOST_SEARCH_BUDGET_S = 600.0
"""That a user can ask for: meanwhile the leader plans nothing else but what is urgent."""

NODE_BITS = 24
"""Low bits of a term that come from who makes it: two sides of a split cannot make the same term, nor can two starts of a
device of which the second knows less than the first (its state was restored from a copy)."""


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """Which plan of a deployment: it only grows, and frames of a left epoch are dropped."""

    term: Count
    """Of the leader that made the plan; persisted before its first message, never reused."""
    number: Count
    """Counts the plans of one term."""

    def __str__(self) -> str:
        """As people read it: which term, without who made it, and which plan of that."""
        return f"{self.term >> NODE_BITS}.{self.number}"


NO_EPOCH = Epoch(0, 0)


@dataclass(frozen=True, slots=True)
class Tensors:
    """One transfer of one request; the payload holds its pieces."""

    deployment: PlanName
    epoch: Epoch
    request: Word
    """`<gateway's node id>/<random boot id>/<count>`: names the gateway that the outputs go to."""
    transfer: int
    """`Transfer.number` of the plan."""
    arrays: tuple[Any, ...]
    """Per piece of the transfer, in its order: what agent/wire/tensors.py needs to read the array from the payload."""
    exact: bool = False
    """Whether nothing of this request is to be rounded, whatever the plan says: what a rounded one is compared with."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Sent to a request's gateway: this device cannot finish it."""

    deployment: PlanName
    epoch: Epoch
    request: Word
    stale: bool
    """True: the device has left that epoch (or does not know it yet); run the request again on the current one."""
    error: str
    """For people."""
    crashed: bool = False
    """Whether the process that computed it ended over it: it may be tried once more, and no further."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """From a gateway to every device of the plan: forget the request (its deadline passed, it is replayed)."""

    deployment: PlanName
    epoch: Epoch
    request: Word


@dataclass(frozen=True, slots=True)
class DeployOptions:
    """What the user asked for."""

    shapes: Shapes = field(default_factory=dict)
    objective: Annotated[str, OneOf(OBJECTIVES)] = "latency"
    strategy: Annotated[str, Text(128, 1)] = "auto"
    axis: Annotated[str, OneOf(AXES)] | None = None
    devices: Annotated[tuple[Annotated[str, Text(128, 1)], ...], Many(MOST_NAMES)] = ()
    """Names; empty means all."""
    memory_limit_bytes: Annotated[int, WholeNumber(1, LARGEST)] | None = None
    """Per device."""
    bindings: Annotated[int, WholeNumber(0, MOST_BINDINGS)] = 8
    """How many other shapes than the first the cluster keeps plans for (agent/cluster/leader/variants.py). More: fewer
    requests wait for a plan; fewer: less memory for sessions, and less to plan again after a loss. 0: the first shapes
    only."""
    search_budget_s: Annotated[float, Number(0, MOST_SEARCH_BUDGET_S, above=0)] | None = None
    """For how long the leader may search for a plan, about; None leaves it to the leader (agent/planwork/plan_job.py).
    More finds better plans and has them later."""
    transfer_dtype: Annotated[str, OneOf(KINDS)] = EXACT
    """What float32 numbers may be rounded to on their way from device to device (planner/plans/reduced_precision.py)."""
