"""Program exchange: what an agent and a worker's processes tell each other of one program. The agent has the program's
sessions made, and sends values into its runs and gets others back. Door: a process, shared memory.

It knows neither whose turn it is nor what the end of a process means: who calls it has seen to that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgepart.agent.engines.verdicts import FAILS
from edgepart.agent.execution.nchwc_array import KeptBlocked
from edgepart.agent.execution.prepared import describe_segment
from edgepart.agent.wire.dtypes import element_dtype
from edgepart.agent.wire.tensors import Value, pack_arrays, unpack_arrays
from edgepart.agent.workers import orders
from edgepart.agent.workers.engine_watch import EngineWatch
from edgepart.agent.workers.process import WorkerProcess
from edgepart.agent.workers.shared_memory import SharedMemory
from edgepart.planner.errors import RequestError
from edgepart.planner.plans.plan import Program, Transfer
from edgepart.planner.region import Array


@dataclass(eq=False)
class ProgramExchange:
    """One program and its exchange with the processes of its worker, which follow each other."""

    number: int
    program: Program
    """Its segments name the engines that compute them now, which may be fewer than the plan's."""
    transfers: tuple[Transfer, ...]
    memory: SharedMemory
    engines: EngineWatch
    dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict, init=False)
    kept: KeptBlocked = field(default_factory=KeptBlocked, init=False)
    fault: str = field(default="", init=False)
    """The reason why the program cannot be run any more; "" if it can."""
    _types: tuple[tuple[np.dtype[Any], ...] | None, ...] = field(default=(), init=False)
    """The types of each segment's inputs and outputs; None for a segment for which `ArrayRun` cannot be used."""
    _places: dict[tuple[int, int], tuple[weakref.ref[Array], int]] = field(default_factory=dict, init=False)
    """By segment and number of an input, the array in shared memory that was given last, and its offset. The states of a
    sequence are the same arrays in each step, and some sixty of them for a language model."""

    def settle(self) -> None:
        """Have the CPU compute in place of engines that are refused."""
        self.program = self.engines.settle(self.program)

    def load(self, process: WorkerProcess, rest: Callable[[float], None]) -> None:
        """Have the process make the program's sessions. `rest` is called after each one, with the seconds that it took.
        Raises InternalError if they cannot be made, and WorkerEnded."""
        self.settle()
        answer = process.ask(orders.PrepareProgram(self.number, self.program, self.transfers))
        while answer[0] == orders.MADE:
            rest(answer[1])
            answer = process.ask(orders.Continue())
        if answer[0] == orders.FAILED:
            raise orders.answer_to_error(answer)
        _, dtypes, block, tensors, types = answer
        found = {tensor: element_dtype(name) for tensor, name in dtypes.items()}
        self.dtypes = {tensor: dtype for tensor, dtype in found.items() if dtype is not None}
        self.kept = KeptBlocked(block, frozenset(tensors))
        self._types = tuple(None if one is None else tuple(map(np.dtype, one)) for one in types)

    def run(
        self,
        process: WorkerProcess,
        number: int,
        segment: int,
        inputs: Sequence[Value],
        overwrites: Mapping[int, int],
    ) -> list[Value]:
        """Have the process compute a segment, as run `number`, and return the outputs. Raises RequestError, InternalError
        and WorkerEnded."""
        types = self._types[segment]
        try:
            if types is not None:
                placed = self._place(segment, inputs, types)
                if placed is not None:
                    return self._run_on_arrays(process, number, segment, placed, types, overwrites)
            body, metas = self._pack_inputs(inputs)
        except MemoryError as error:
            what = describe_segment(self.program.segments[segment])
            raise RequestError(f"this device has not the memory for {what}: {error}") from error
        packed = self.memory.offset(body) or 0, body.nbytes, metas
        answer = process.exchange(orders.RunSegment(number, self.number, segment, packed).to_bytes())
        if answer[0] != orders.WANTS:
            raise orders.answer_to_error(answer)
        outputs, answer = self._receive_outputs(process, answer[1], answer[2])
        self._hear_of_engine(segment, answer)
        return outputs

    # Plain arrays, whose types and shapes are known

    def _place(
        self, segment: int, inputs: Sequence[Value], types: Sequence[np.dtype[Any]]
    ) -> list[tuple[Array, int]] | None:
        """The inputs in shared memory, and their offsets there; those that are elsewhere are copied. None if a value is no
        plain array. Raises RequestError if an array is of another type or shape than the segment's."""
        one, memory, known = self.program.segments[segment], self.memory, self._places
        placed: list[tuple[Array, int]] = []
        for n, (port, dtype, array) in enumerate(zip(one.inputs, types, inputs, strict=False)):
            last = known.get((segment, n))
            if last is not None and (same := last[0]()) is not None and same is array:
                placed.append((same, last[1]))
                continue
            if not orders.is_plain(array):
                return None
            if array.dtype != dtype or array.shape != port.piece.region.shape:
                raise RequestError(
                    f"{describe_segment(one)} was given {port.piece.tensor} as {array.dtype}{list(array.shape)}, "
                    f"not {dtype}{list(port.piece.region.shape)}"
                )
            if (at := memory.offset(array)) is None:
                array = memory.copy(array)
                at = memory.offset(array) or 0
            else:
                known[segment, n] = weakref.ref(array), at
            placed.append((array, at))
        return placed

    def _run_on_arrays(
        self,
        process: WorkerProcess,
        number: int,
        segment: int,
        placed: Sequence[tuple[Array, int]],
        types: Sequence[np.dtype[Any]],
        overwrites: Mapping[int, int],
    ) -> list[Value]:
        """Run on arrays of known types and shapes in shared memory. The worker writes the outputs into arrays there, which
        are returned."""
        one, memory = self.program.segments[segment], self.memory
        here, offsets = [array for array, _ in placed], [at for _, at in placed]
        written_over = {output: place for place, output in overwrites.items()}
        outputs: list[Array] = []
        for n, (port, dtype) in enumerate(zip(one.outputs, types[len(placed) :], strict=True)):
            if (place := written_over.get(n)) is not None:
                array, at = here[place], offsets[place]
            else:
                array = memory.empty(port.piece.region.shape, dtype)
                at = memory.offset(array) or 0
            outputs.append(array)
            offsets.append(at)
        answer = process.exchange(orders.ArrayRun(number, self.number, segment, tuple(offsets)).to_bytes())
        if answer[0] != orders.DONE:
            raise orders.answer_to_error(answer)
        self._hear_of_engine(segment, answer)
        return outputs

    # Values of any kind

    def _pack_inputs(self, inputs: Sequence[Value]) -> tuple[Array, tuple[Any, ...]]:
        """Values of any kind, packed into shared memory, and their metas (tensors.py). Raises MemoryError."""
        metas, buffers = pack_arrays(inputs)
        body = self.memory.empty((sum(buffer.nbytes for buffer in buffers),), np.dtype(np.uint8))
        at = 0
        for buffer in buffers:
            body[at : at + buffer.nbytes] = np.frombuffer(buffer, np.uint8)
            at += buffer.nbytes
        return body, metas

    def _receive_outputs(
        self, process: WorkerProcess, nbytes: int, metas: tuple[Any, ...]
    ) -> tuple[list[Value], tuple[Any, ...]]:
        """The outputs that the worker has computed, for which it first gets room in shared memory, and its last answer."""
        try:
            body = self.memory.empty((nbytes,), np.dtype(np.uint8))
        except MemoryError:
            offset = -1
        else:
            offset = self.memory.offset(body) or 0
        answer = process.exchange(offset.to_bytes(8, "little", signed=True))
        if answer[0] == orders.FAILED:
            raise orders.answer_to_error(answer)
        return unpack_arrays(metas, body.data), answer

    def _hear_of_engine(self, segment: int, answer: Sequence[Any]) -> None:
        """Note that an engine failed in a run that the CPU then made, if the answer says so."""
        if len(answer) > 1:
            self.engines.blame(self.program.segments[segment], FAILS, str(answer[1]))
            self.settle()
