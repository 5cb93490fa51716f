"""Worker orders: what an agent and a worker process say to each other. Facts, and their bytes.

Two connections lead to each worker. Over the first one go its settings, which "ready" answers, and orders, of which one
at a time is answered, and those that are not answered at all; over the second one runs, one at a time. The agent's orders
are pickled, as they hold programs; what a worker answers is MessagePack, as a model that ONNX Runtime stumbles over may
have made it. Values lie in shared memory.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from edgepart.agent.wire.dtypes import is_native
from edgepart.planner.errors import EdgepartError, InternalError, ModelError, RequestError
from edgepart.planner.plans.plan import Port, Program, Transfer


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker is started with."""

    store: Path
    """The folder of models and weights."""
    compiled: Path
    """The folder of optimised segments."""
    compiled_bytes: int
    """That may lie there; 0: segments are not compiled."""
    threads: int
    """Of each session."""
    memory_bytes: int | None = None
    """Of its own that the process may take; None sets no limit."""


@dataclass(frozen=True, slots=True)
class PrepareProgram:
    """Make a program's sessions. Answered by ("made", seconds) after each session, upon which GoOn is awaited, and at last
    by ("prepared", ...) or ("failed", kind, text)."""

    number: int
    """What the program is called from now on."""
    program: Program
    transfers: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class GoOn:
    """The agent has rested after a session was made."""


@dataclass(frozen=True, slots=True)
class Time:
    """Run a segment on made-up inputs. Answered by ("timed", seconds or None)."""

    number: int
    segment: int
    budget_s: float


@dataclass(frozen=True, slots=True)
class Release:
    """Forget a program. Not answered."""

    number: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End this run, also where it is only about to begin. Not answered."""

    run: int


@dataclass(frozen=True, slots=True)
class GiveBack:
    """What was freed becomes the machine's again. Not answered."""


Order = PrepareProgram | GoOn | Time | Release | Stop | GiveBack

DONE, WANTS, FAILED = "done", "wants", "failed"
"""What a run is answered by: all outputs are at their places; packed outputs want so many bytes; it did not work."""
READY, MADE, PREPARED, TIMED = "ready", "made", "prepared", "timed"


@dataclass(frozen=True, slots=True)
class RunSegment:
    """One segment of one program, with any values; what its outputs are is told when they are there."""

    run: int
    """Grows with each run."""
    program: int
    segment: int
    packed: tuple[int, int, tuple[Any, ...]]
    """Offset, bytes and metas (tensors.py) of the inputs."""

    def to_bytes(self) -> bytes:
        packed: bytes = msgpack.packb((self.run, self.program, self.segment, self.packed))
        return _GENERAL + packed


_USUAL, _GENERAL = b"\0", b"\1"
"""What a run's message begins with."""
_HEAD = struct.Struct("<cQIIH")


@dataclass(frozen=True, slots=True)
class UsualRun:
    """A run whose inputs and outputs are all plain arrays, of the types and shapes that the plan says. Most runs are, so
    that this message is to be quick."""

    run: int
    program: int
    segment: int
    offsets: tuple[int, ...]
    """Of the inputs, then of the outputs."""

    def to_bytes(self) -> bytes:
        count = len(self.offsets)
        head = _HEAD.pack(_USUAL, self.run, self.program, self.segment, count)
        return head + struct.pack(f"<{count}Q", *self.offsets)


def run_from_bytes(data: bytes) -> RunSegment | UsualRun:
    """What an agent sent."""
    if data[:1] == _GENERAL:
        return RunSegment(*msgpack.unpackb(data[1:], use_list=False, strict_map_key=False))
    _, run, program, segment, count = _HEAD.unpack_from(data)
    return UsualRun(run, program, segment, struct.unpack_from(f"<{count}Q", data, _HEAD.size))


DONE_BYTES = msgpack.packb((DONE,))


def answer_to_bytes(*answer: Any) -> bytes:
    packed: bytes = msgpack.packb(answer)
    return packed


def answer_from_bytes(data: bytes) -> tuple[Any, ...]:
    """InternalError where it is none."""
    if data == DONE_BYTES:
        return (DONE,)
    try:
        answer = msgpack.unpackb(data, use_list=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise InternalError(f"a worker's answer cannot be read: {error}") from error
    if not isinstance(answer, tuple) or not answer:
        raise InternalError("a worker's answer is no sequence")
    return answer


KINDS: dict[str, type[EdgepartError]] = {
    cls.__name__: cls for cls in (RequestError, ModelError, InternalError)
}


def failure(error: Exception) -> tuple[str, str, str]:
    """An answer that says what went wrong."""
    kind = next((name for name, cls in KINDS.items() if isinstance(error, cls)), InternalError.__name__)
    text = str(error) if isinstance(error, EdgepartError) else f"{type(error).__name__}: {error}"
    return FAILED, kind, text


def to_error(answer: Sequence[Any]) -> EdgepartError:
    """The error that `failure` told of."""
    _, kind, text = answer
    return KINDS.get(kind, InternalError)(text)


def is_plain(value: Any) -> bool:
    """Whether it is an array that can be used where it lies: contiguous, of numbers that numpy knows."""
    return (
        type(value) is np.ndarray
        and value.dtype.kind in "biufc"
        and value.dtype.isnative
        and value.flags.c_contiguous
    )


def is_usual(port: Port, dtype: np.dtype[Any] | None) -> bool:
    """Whether what goes through a port is an array whose type and shape are known before a run."""
    return port.piece.region.rank > 0 and dtype is not None and dtype.kind in "biufc" and is_native(dtype)
