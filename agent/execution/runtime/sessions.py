"""Sessions: makes, shares and runs the ONNX Runtime sessions of the programs that this device holds. A door: this room is
the only one that runs sessions, and with compiler.py the only one that makes them.

Segments whose plan names an engine get sessions on it (agent/engines); all others, which this text is about, on the CPU.

With a compiler (compiler.py), segments are optimised once and kept on disk, and tensors that go from segment to segment
stay in the order that convolutions compute in. Without one, and where compiling fails, a session is made of the segment as
it is in the plan (shared_segments.py), and gets its weights apart from the model (segment_weights.py).
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

import numpy as np

from edgepart.agent.execution.copies import Scratch
from edgepart.agent.execution.nchwc_array import PLAIN, KeptBlocked
from edgepart.agent.execution.nchwc_choice import ports_of
from edgepart.agent.execution.runtime.loaded_segments import LoadedSegment, make_up_inputs
from edgepart.agent.execution.runtime.segment_weights import HeldWeights, WeightSource
from edgepart.agent.execution.runtime.shared_segments import NotCompiled, SegmentCompiler, SharedSegments
from edgepart.agent.host.process_memory import give_back
from edgepart.agent.wire.tensors import Value
from edgepart.planner.plans.plan import Program, Transfer
from edgepart.planner.region import Array

log = logging.getLogger(__name__)

TIMED_RUNS = 3
"""Number of runs by which a segment is timed before its plan serves; the best time counts."""


@dataclass(eq=False)
class PreparedProgram:
    """A program whose sessions are made. It can be run as long as anything refers to it, also after `Sessions.release`."""

    program: Program
    loaded: tuple[LoadedSegment, ...]
    dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    """The dtype of each of the plan's tensors that a segment here reads or writes. Sequences, maps and optionals are
    missing."""
    kept: KeptBlocked = PLAIN
    """The tensors that its segments read and write blocked."""

    def run(
        self,
        segment: int,
        inputs: Sequence[Value],
        wanted: Callable[[], bool] = lambda: True,
        overwrites: Sequence[tuple[int, int]] = (),
    ) -> list[Value]:
        """Run segment number `segment` on a value for each input port, and return one for each output port. Raises
        RequestError. `wanted` is not called: it is for programs whose runs may have to wait (segment_runs.py). Nothing is
        overwritten."""
        return self.loaded[segment].run(inputs)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """The same as `RunnableProgram.empty`."""
        return np.empty(shape, dtype)

    def stop(self) -> None:
        """Does nothing: a run in this process cannot be ended."""

    def scratch(self) -> Scratch:
        """Memory in which a run's inputs are put together."""
        return Scratch()

    def best_s(self, segment: int, budget_s: float) -> float | None:
        """Seconds that a segment takes on made-up inputs, the best of TIMED_RUNS runs or of those that fit into
        `budget_s`; None if no time is left or inputs cannot be made up."""
        inputs = make_up_inputs(self.loaded[segment]) if budget_s > 0 else None
        if inputs is None:
            return None
        best, began_s = float("inf"), time.perf_counter()
        for _ in range(TIMED_RUNS):
            run_s = time.perf_counter()
            self.loaded[segment].run(inputs)
            best = min(best, time.perf_counter() - run_s)
            if time.perf_counter() >= began_s + budget_s:
                break
        return best


class Sessions:
    """Makes, shares and frees sessions. Thread-safe; programs are prepared one after the other, or one while another one
    rests."""

    def __init__(
        self,
        threads: int,
        weights: WeightSource,
        *,
        level: Any = None,
        warmed: bool = True,
        compiler: SegmentCompiler | None = None,
        rest: Callable[[float], None] = lambda took_s: None,
    ) -> None:
        """`level` is an ort.GraphOptimizationLevel; None is ONNX Runtime's default, which is also the compiler's.
        Sessions that are not `warmed` are ready sooner, and slower in their first run. `rest` is called after each session
        with the seconds that making it took, and may wait, so that requests served meanwhile get their share of the
        device."""
        self._rest = rest
        self._unwanted: deque[Sequence[LoadedSegment]] = deque()
        self._compiler = compiler
        self._weights = HeldWeights(weights)
        self._segments = SharedSegments(self._weights, compiler, threads, level, warmed=warmed)
        self._lock = RLock()
        """Reentrant, as another program may be prepared during `rest`."""

    def prepare(self, program: Program, transfers: Sequence[Transfer] = ()) -> PreparedProgram:
        """Make the sessions of all segments, and warm them up. `transfers` are the plan's; without them nothing is kept
        blocked. Raises InternalError, which names the segment that ONNX Runtime refuses; then nothing is held."""
        try:
            with self._lock:
                held, kept = self._prepare(program, transfers)
        finally:
            give_back()
            self._drop_unwanted()
        # Pairs with the program's own segments, as the segment of a shared session may name other tensors.
        pairs = zip(program.segments, held, strict=True)
        ports = [(port, one) for segment, one in pairs for port in (*segment.inputs, *segment.outputs)]
        found = {port.piece.tensor: one.dtypes[port.name] for port, one in ports}
        dtypes = {tensor: dtype for tensor, dtype in found.items() if dtype is not None}
        if self._compiler is not None:
            log.info("a program of %d segments: %s", len(held), _forms(held, kept))
        return PreparedProgram(program, tuple(held), dtypes, kept)

    def leave_engine(self, prepared: PreparedProgram, number: int) -> PreparedProgram:
        """The program with a session on the CPU in place of the one that segment `number` has on an engine, which is
        released. Raises InternalError if the CPU refuses the segment."""
        left = prepared.loaded[number]
        segment = replace(left.segment, engine="")
        with self._lock:
            held = self._segments.hold(segment, frozenset())
        self._unwanted.append((left,))
        self._drop_unwanted()

        def put(items: tuple[Any, ...], one: Any) -> tuple[Any, ...]:
            return (*items[:number], one, *items[number + 1 :])

        program = replace(prepared.program, segments=put(prepared.program.segments, segment))
        return replace(prepared, program=program, loaded=put(prepared.loaded, held))

    def release(self, prepared: PreparedProgram) -> None:
        """Forget a program: sessions that no other program uses are freed as soon as no run uses them. Never waits: if a
        program is being prepared, the thread that prepares it frees the sessions afterwards."""
        self._unwanted.append(prepared.loaded)
        self._drop_unwanted()

    def _prepare(
        self, program: Program, transfers: Sequence[Transfer]
    ) -> tuple[list[LoadedSegment], KeptBlocked]:
        kept = PLAIN
        if self._compiler is not None and transfers:
            kept = self._compiler.keep(program, transfers, self._weights.read)
        try:
            held = self._hold_all(program, kept)
        except NotCompiled as error:
            log.warning("%s; nothing is kept in blocks between this program's segments", error)
            held, kept = self._hold_all(program, PLAIN), PLAIN
        if self._compiler is not None:
            self._compiler.make_room()
        return held, kept

    def _drop_unwanted(self) -> None:
        while self._unwanted and self._lock.acquire(blocking=False):
            try:
                self._segments.drop(self._unwanted.popleft())
                give_back()
            except IndexError:  # Another thread took the last one.
                return
            finally:
                self._lock.release()

    @property
    def held(self) -> tuple[int, int]:
        """The numbers of distinct sessions and of distinct weights that are held now."""
        return len(self._segments), len(self._weights)

    def _hold_all(self, program: Program, kept: KeptBlocked) -> list[LoadedSegment]:
        held: list[LoadedSegment] = []
        try:
            for segment in program.segments:
                began_s = time.perf_counter()
                held.append(self._segments.hold(segment, ports_of(segment, kept)))
                self._rest(time.perf_counter() - began_s)
        except BaseException:
            self._segments.drop(held)
            raise
        return held


def _forms(held: Sequence[LoadedSegment], kept: KeptBlocked) -> str:
    """The number of sessions of each form, and the number of tensors kept in blocks, in words."""
    counted = Counter("compiled" if one.form.startswith("compiled") else one.form for one in held)
    forms = ", ".join(f"{count} {form}" for form, count in counted.items())
    return f"{forms}; {len(kept.tensors)} tensors stay in blocks of {kept.block} channels between them"
