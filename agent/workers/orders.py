"""Worker orders: the messages between an agent and its worker processes. Facts, and their bytes.

Each worker has two connections. The first carries its settings, which the worker answers with "ready", and then orders:
some are answered, one at a time, and the rest are not. The second carries runs, one at a time. Orders of the agent are
pickled, because they hold programs. Answers of a worker are MessagePack, because a model may have taken over the process
that sends them. Values lie in shared memory.
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
    """The settings with which a worker starts."""

    store: Path
    """The folder of models and weights."""
    compiled: Path
    """The folder of optimised segments."""
    compiled_bytes: int
    """The most bytes that may lie in `compiled`; 0: segments are not compiled."""
    threads: int
    """Threads of each session."""
    memory_bytes: int | None = None
    """The most memory of its own that the process may take, in bytes; None sets no limit."""
    niceness: int = 0
    """By how much the priority of the process is lower than the agent's."""


@dataclass(frozen=True, slots=True)
class PrepareProgram:
    """Make a program's sessions. The worker answers ("made", seconds) after each session, and then waits for Continue; at
    the end it answers ("prepared", ...) or ("failed", kind, text)."""

    number: int
    """The program's number, by which later orders name it."""
    program: Program
    transfers: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class Continue:
    """Make the next session: the agent has rested after the last one."""


@dataclass(frozen=True, slots=True)
class TimeSegment:
    """Run a segment on made-up inputs. Answered by ("timed", seconds or None)."""

    number: int
    segment: int
    budget_s: float


@dataclass(frozen=True, slots=True)
class ReleaseProgram:
    """Forget a program. Not answered."""

    number: int


@dataclass(frozen=True, slots=True)
class StopRun:
    """End this run, even if it has yet to begin. Not answered."""

    run: int


@dataclass(frozen=True, slots=True)
class ReturnFreedMemory:
    """Return freed memory to the operating system. Not answered."""


Order = PrepareProgram | Continue | TimeSegment | ReleaseProgram | StopRun | ReturnFreedMemory

DONE, WANTS, FAILED = "done", "wants", "failed"
"""Answers to a run: all outputs are at their offsets; the packed outputs need a number of bytes; the run failed."""
READY, MADE, PREPARED, TIMED = "ready", "made", "prepared", "timed"


@dataclass(frozen=True, slots=True)
class RunSegment:
    """Run a segment on values of any kind. The worker describes the outputs when it has computed them."""

    run: int
    """The run's number, which grows with each run."""
    program: int
    segment: int
    packed: tuple[int, int, tuple[Any, ...]]
    """Offset, number of bytes and metas (tensors.py) of the inputs."""

    def to_bytes(self) -> bytes:
        packed: bytes = msgpack.packb((self.run, self.program, self.segment, self.packed))
        return _GENERAL + packed


_USUAL, _GENERAL = b"\0", b"\1"
"""The first byte of a run's message, which says which kind it is."""
_HEAD = struct.Struct("<cQIIH")


@dataclass(frozen=True, slots=True)
class ArrayRun:
    """Run a segment whose inputs and outputs are all plain arrays of the types and shapes in the plan. Most runs are of
    this kind, so this message must be fast to make and to read."""

    run: int
    program: int
    segment: int
    offsets: tuple[int, ...]
    """The offsets in shared memory, in bytes, at which the inputs and then the outputs begin."""

    def to_bytes(self) -> bytes:
        count = len(self.offsets)
        head = _HEAD.pack(_USUAL, self.run, self.program, self.segment, count)
        return head + struct.pack(f"<{count}Q", *self.offsets)


def run_from_bytes(data: bytes) -> RunSegment | ArrayRun:
    """The run that an agent sent."""
    if data[:1] == _GENERAL:
        return RunSegment(*msgpack.unpackb(data[1:], use_list=False, strict_map_key=False))
    _, run, program, segment, count = _HEAD.unpack_from(data)
    return ArrayRun(run, program, segment, struct.unpack_from(f"<{count}Q", data, _HEAD.size))


DONE_BYTES = msgpack.packb((DONE,))


def answer_to_bytes(*answer: Any) -> bytes:
    packed: bytes = msgpack.packb(answer)
    return packed


def answer_from_bytes(data: bytes) -> tuple[Any, ...]:
    """The answer that a worker sent. Raises InternalError if these are not the bytes of an answer."""
    if data == DONE_BYTES:
        return (DONE,)
    try:
        answer = msgpack.unpackb(data, use_list=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise InternalError(f"a worker's answer cannot be read: {error}") from error
    if not isinstance(answer, tuple) or not answer:
        raise InternalError("a worker's answer is no sequence")
    return answer


ERROR_KINDS: dict[str, type[EdgepartError]] = {
    cls.__name__: cls for cls in (RequestError, ModelError, InternalError)
}


def error_to_answer(error: Exception) -> tuple[str, str, str]:
    """The answer that reports this error."""
    kind = next((name for name, cls in ERROR_KINDS.items() if isinstance(error, cls)), InternalError.__name__)
    text = str(error) if isinstance(error, EdgepartError) else f"{type(error).__name__}: {error}"
    return FAILED, kind, text


def answer_to_error(answer: Sequence[Any]) -> EdgepartError:
    """The error that `error_to_answer` packed."""
    _, kind, text = answer
    return ERROR_KINDS.get(kind, InternalError)(text)


def is_plain(value: Any) -> bool:
    """Whether the value is an array that can be used where it lies: contiguous, of numbers that numpy knows."""
    return (
        type(value) is np.ndarray
        and value.dtype.kind in "biufc"
        and value.dtype.isnative
        and value.flags.c_contiguous
    )


def has_known_array(port: Port, dtype: np.dtype[Any] | None) -> bool:
    """Whether the port's values are arrays of numbers whose type and shape are known before a run."""
    return port.piece.region.rank > 0 and dtype is not None and dtype.kind in "biufc" and is_native(dtype)
