"""Records: what a client's calls return. Facts, and the file that a trace is written to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepart.planner.errors import RequestError, UsageError
from edgepart.planner.region import Array

if TYPE_CHECKING:
    from edgepart.client.trace_records import Trace


@dataclass(frozen=True, eq=False)
class Answer(Mapping[str, Array]):
    """The answer to one request: a mapping from the names of outputs to numpy arrays, and how it came about."""

    outputs: Mapping[str, Array]
    epoch: str
    """The plan that served, as `edgepart status` shows it."""
    seconds: float
    """The time that the agent measured, from the request's arrival to its answer."""
    replays: int
    """Number of times that agents ran the request again, because a device was lost."""
    retries: int
    """Number of times that this client sent the request again, to the same agent or to another."""
    url: str = ""
    """The agent that answered."""

    @property
    def array(self) -> Array:
        """The output, if the model has one only. Raises RequestError if it has several."""
        if len(self.outputs) != 1:
            raise RequestError(f"the model has outputs {list(self.outputs)}: name one, as in answer[NAME]")
        return next(iter(self.outputs.values()))

    def __getitem__(self, name: str) -> Array:
        return self.outputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)


@dataclass(frozen=True)
class Deployed:
    """A deployment that an agent has accepted."""

    name: str
    document: Mapping[str, Any]
    """What the agent reports, as `edgepart deploy --json` prints it."""

    @property
    def quantised(self) -> str:
        """What became of weights that were quantised, and how far answers are off; "" if none were."""
        return str(self.document.get("quantised", ""))

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that compute it; () if nobody waited until it served."""
        return tuple(self.document.get("devices") or ())

    @property
    def predicted_latency_s(self) -> float | None:
        found = self.document.get("predicted_latency_s")
        return None if found is None else float(found)

    @property
    def why(self) -> str:
        """Why the plan is as it is."""
        return str(self.document.get("why") or "")


@dataclass(frozen=True)
class TraceHandle:
    """A trace that is being recorded."""

    model: str
    url: str
    """The agent that began the trace, and has it."""
    devices: tuple[str, ...]
    """The devices that record."""
    missing: Mapping[str, str]
    """Maps each device that does not record to the reason."""


class TraceRecording:
    """A trace that is being recorded, or that was."""

    def __init__(self, handle: TraceHandle) -> None:
        self.handle = handle
        self._trace: Trace | None = None

    @property
    def trace(self) -> Trace:
        """What was recorded. Raises UsageError while the recording goes on."""
        if self._trace is None:
            raise UsageError("the trace is still being recorded: leave the `with` block first")
        return self._trace

    def end(self, trace: Trace) -> None:
        self._trace = trace

    def save(self, path: str | Path) -> None:
        """Writes the trace for https://ui.perfetto.dev. Raises UsageError while the recording goes on."""
        from edgepart.client.perfetto import trace_events

        Path(path).write_text(json.dumps(trace_events(self.trace), allow_nan=False))
