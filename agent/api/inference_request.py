"""An inference request and its answer, as the doors for clients and the agent pass them to each other. Facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgepart.agent.wire.inference import Epoch


@dataclass(frozen=True, slots=True)
class SequenceTurn:
    """The sequence of which a request is the next step, in Triton's words."""

    id: str
    """The client's id of the sequence."""
    start: bool = False
    """Whether this is the first step."""
    end: bool = False
    """Whether this is the last step."""


@dataclass(frozen=True, slots=True)
class AskedInference:
    """A request, as Node.infer takes it."""

    inputs: Mapping[str, Any]
    outputs: Sequence[str] | None
    deadline_s: float
    sequence: SequenceTurn | None = None


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
