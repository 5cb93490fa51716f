"""Supervisor: starts, uses and restarts the worker processes of this device, one for each deployment. Door: processes,
their connections, shared memory.

A worker that ends is started again, with all of its programs. Its end is blamed on what it was doing: a run (WorkerDied),
which is tried once more, or the loading of a program, which is tried once more with no run beside it and then given up
(CrashError). Requests that only waited continue, as their values lie in the agent's memory.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from edgepart.agent.cluster.state.bindings import is_variant, parent_of
from edgepart.agent.engines.catalogue import kind_of
from edgepart.agent.engines.verdicts import CRASHES, FAILS, HANGS, EngineVerdict
from edgepart.agent.execution.copies import Scratch
from edgepart.agent.execution.nchwc_array import KeptBlocked
from edgepart.agent.execution.prepared import LoadUrgency, describe_segment
from edgepart.agent.wire.dtypes import element_dtype
from edgepart.agent.wire.tensors import Value, pack_arrays, unpack_arrays
from edgepart.agent.workers import orders
from edgepart.agent.workers.load_turns import LoadTurns
from edgepart.agent.workers.process import Death, WorkerEnded, WorkerProcess
from edgepart.agent.workers.shared_memory import SharedMemory
from edgepart.planner.errors import (
    CrashError,
    EdgepartError,
    RequestError,
    Unavailable,
    WorkerDied,
)
from edgepart.planner.plans.plan import Program, Segment, Transfer
from edgepart.planner.region import Array

log = logging.getLogger(__name__)

CRASHES_TOLERATED = 3
"""A model that crashed this often while it served is set aside. A larger number lets a model continue that rarely crashes,
at the cost of as many pauses."""
GRACE_S = 2.0
"""Seconds between asking a run to end and ending its worker. Operators cannot be interrupted: a longer time more often
saves loading the programs again, a shorter one lets the device compute for other requests sooner."""
ABANDONED_S = 20.0
"""Seconds for which an abandoned plan may still be loaded. A shorter time lets the device load other plans sooner; a longer
one more often saves starting the worker again."""
JOIN_S = 10.0
"""The most seconds to wait, when the agent stops, for a worker that was just being started and has been killed."""
NOT_COMPUTED_HERE = "this deployment is not computed here any more"
ENGINE_HANGS_S, ENGINE_HANGS_TIMES = 10.0, 20.0
"""An engine whose run had to be ended is refused for the segment if the run took so many seconds, and so many times what
was predicted: engines cannot be interrupted, and a run that is only long is no fault."""
RETRY_S = (0.5, 5.0)
"""The first and the longest pause before a worker that could not be started is tried again, in seconds."""


@dataclass(frozen=True, slots=True)
class EngineWatch:
    """What workers ask and tell of engines."""

    settle: Callable[[Program], Program] = lambda program: program
    """Returns the program with the CPU in place of engines that are refused."""
    noted: Callable[[Segment, EngineVerdict], None] = lambda segment, verdict: None
    """Is called, in any thread, when an engine failed a segment; `settle` knows of it from then on."""


@dataclass(frozen=True, slots=True)
class _Busy:
    """What a worker's process computes now."""

    number: int
    """The run's number; -1 if a segment is timed."""
    made: RemoteProgram
    segment: int
    began_s: float


@dataclass(eq=False)
class RemoteProgram:
    """A program whose sessions are in a worker."""

    program: Program
    """Its segments name the engines that compute them now, which may be fewer than the plan's."""
    transfers: tuple[Transfer, ...]
    number: int
    worker: Worker
    dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    kept: KeptBlocked = field(default_factory=KeptBlocked)
    types: tuple[tuple[np.dtype[Any], ...] | None, ...] = ()
    """The types of each segment's inputs and outputs; None for a segment for which `ArrayRun` cannot be used."""
    fault: str = ""
    """The reason why the program cannot be run any more; "" if it can."""
    places: dict[tuple[int, int], tuple[weakref.ref[Array], int]] = field(default_factory=dict)
    """By segment and number of an input, the array in shared memory that was given last, and its offset. The states of a
    sequence are the same arrays in each step, and some sixty of them for a language model."""

    def run(
        self,
        segment: int,
        inputs: Sequence[Value],
        wanted: Callable[[], bool] = lambda: True,
        overwrites: Sequence[tuple[int, int]] = (),
    ) -> list[Value]:
        """The same as `RunnableProgram.run`."""
        return self.worker.run(self, segment, inputs, wanted, overwrites)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """The same as `RunnableProgram.empty`."""
        return self.worker.memory.empty(shape, dtype)

    def stop(self) -> None:
        self.worker.stop_run(self)

    def scratch(self) -> Scratch:
        return Scratch(lambda nbytes: self.worker.memory.empty((nbytes,), np.dtype(np.uint8)))

    def best_s(self, segment: int, budget_s: float) -> float | None:
        return self.worker.time(self, segment, budget_s) if budget_s > 0 else None


class Worker:
    """The worker of one deployment, which outlives the processes that it starts. Thread-safe."""

    def __init__(
        self,
        name: str,
        settings: orders.WorkerSettings,
        shared_bytes: int,
        crashed: Callable[[str], None],
        engines: EngineWatch,
    ) -> None:
        """`crashed` is called, once, with the reason why the model is to be set aside."""
        self._engines = engines
        self.name = name
        self.memory = SharedMemory(shared_bytes)
        self.deaths = 0
        """Number of this worker's processes that ended without being told to."""
        self._settings = settings
        self._crashed = crashed
        self._crashes = 0
        self._programs: dict[int, RemoteProgram] = {}
        self._ordering = threading.RLock()
        """Guards the exchange of orders and the start of a process."""
        self._running = threading.Lock()
        """Guards runs, of which there is one at a time."""
        self._state = threading.Lock()
        """Guards the attributes below. Threads hold it for moments only."""
        self._process: WorkerProcess | None = None
        self._starting: WorkerProcess | None = None
        """The process that is being started and loads the programs of the last one again."""
        self._run: _Busy | None = None
        self._timing: _Busy | None = None
        self._loading: RemoteProgram | None = None
        self._explained: WorkerProcess | None = None
        """The process whose end is put down to the program that was loaded last."""
        self._ambiguous = False
        """Whether something other than a run may be the cause if the process ends now."""
        self._closed = threading.Event()
        self._closing: tuple[WorkerProcess, ...] = ()
        self._numbers = itertools.count(1)

    # Programs

    def get_ready(self) -> None:
        """Start the process if there is none. What that fails with, the next program that is prepared meets again."""
        try:
            with self._ordering:
                self._alive()
        except (EdgepartError, WorkerEnded) as error:
            log.info("the worker of %s is not started in advance: %s", self.name, error)

    def prepare(
        self, number: int, program: Program, transfers: Sequence[Transfer], rest: Callable[[float], None]
    ) -> RemoteProgram:
        """Load the program's sessions. Raises InternalError if they cannot be made, CrashError if making them ends the
        process, and Unavailable if there is no worker now."""
        made = RemoteProgram(program, tuple(transfers), number, self)
        with self._ordering:
            try:
                with self._blame_ambiguous():
                    self._load_on_engines(self._alive(), made, rest)
            except WorkerEnded as end:
                if end.process is self._explained:
                    raise Unavailable("the worker ended while it loaded another plan first") from end
                self._explained = end.process
                death = self._handle_death(end.process)
                if death.ordered and self._engines.settle(made.program) == made.program:
                    raise Unavailable(f"the worker {death}") from end
                if death.is_crash:
                    self._refuse_all(made, CRASHES, f"the worker {death} while sessions were made")
                # Either a run or the loading ended the worker; loading again with no run beside it shows which.
                with self._running:
                    try:
                        self._load(self._alive(), made, rest)
                    except WorkerEnded as again:
                        raise self._loading_error(made, self._handle_death(again.process)) from again
            with self._state:
                self._programs[number] = made
        return made

    def _load_on_engines(
        self, process: WorkerProcess, made: RemoteProgram, rest: Callable[[float], None]
    ) -> None:
        """Load the program; if an engine that was admitted fails or hangs now, load it without that engine."""
        made.program = self._engines.settle(made.program)
        engines = [one.engine for one in made.program.segments if one.engine]
        waiting = threading.Timer(
            sum(kind_of(one).trial_s for one in engines), self._end_hanging, [process, made]
        )
        waiting.daemon = True
        if engines:
            waiting.start()
        try:
            self._load(process, made, rest)
        except EdgepartError as error:
            if not self._refuse_all(made, FAILS, str(error)):
                raise
            self._load(process, made, rest)
        finally:
            waiting.cancel()

    def _end_hanging(self, process: WorkerProcess, made: RemoteProgram) -> None:
        if self._loading is made:
            self._refuse_all(made, HANGS, "its sessions were not made in the time that its trials may take")
            process.kill("an engine gave no answer while sessions were made")

    def _refuse_all(self, made: RemoteProgram, outcome: str, why: str) -> bool:
        """Blame the engines of a program that could not be loaded: those whose segment `why` names, or else all. Returns
        whether there are any."""
        used = [one for one in made.program.segments if one.engine]
        named = [one for one in used if describe_segment(one) in why]
        for segment in named or used:
            self._engines.noted(segment, EngineVerdict(segment.engine, segment.digest, outcome, why))
        return bool(used)

    def abandon(self) -> None:
        """End the loading of the present program after ABANDONED_S, as nothing waits for it any longer."""
        with self._state:
            process, made = self._process, self._loading
        if process is not None and made is not None:
            waiting = threading.Timer(ABANDONED_S, self._end_loading, [process, made])
            waiting.daemon = True
            waiting.start()

    def _end_loading(self, process: WorkerProcess, made: RemoteProgram) -> None:
        if self._loading is made:
            process.kill("a plan that nobody waits for was still being loaded")

    def release(self, made: RemoteProgram) -> None:
        """Forget a program."""
        with self._state:
            self._programs.pop(made.number, None)
            process = self._process
            made.fault = made.fault or "its plan is not loaded here any more"
        if process is not None:
            process.tell(orders.ReleaseProgram(made.number))

    def time(self, made: RemoteProgram, segment: int, budget_s: float) -> float | None:
        """The same as `RunnableProgram.best_s`. It is also None if the worker ended meanwhile: the first request will
        say why."""
        with self._ordering:
            process = self._alive()
            self._timing = _Busy(-1, made, segment, time.monotonic())
            try:
                with self._blame_ambiguous():
                    answer = process.ask(orders.TimeSegment(made.number, segment, budget_s))
            except WorkerEnded as end:
                self._handle_death(end.process)
                return None
            finally:
                self._timing = None
        if answer[0] == orders.FAILED:
            raise orders.answer_to_error(answer)
        seconds: float | None = answer[1]
        return seconds

    def close(self) -> None:
        """End the process, even during a run."""
        with self._state:
            self._closed.set()
            self._closing = tuple(one for one in (self._process, self._starting) if one is not None)
            self._process = None
        for process in self._closing:
            process.kill(NOT_COMPUTED_HERE)
        self.memory.close()

    def join(self) -> None:
        """Wait, after `close`, until the process is gone, even if it was just being started."""
        for process in self._closing:
            process.death()
        if self._ordering.acquire(timeout=JOIN_S):
            self._ordering.release()

    def give_back(self) -> None:
        """Return memory that neither the worker nor its values need to the operating system."""
        self.memory.give_back()
        with self._state:
            process = self._process
        if process is not None:
            process.tell(orders.ReturnFreedMemory())

    @property
    def pid(self) -> int | None:
        """The id of the worker's process; None if there is none."""
        with self._state:
            return self._process.pid if self._process is not None else None

    @property
    def own_bytes(self) -> int:
        """Bytes of memory that the worker's process shares with no other; 0 if there is no process."""
        with self._state:
            process = self._process
        return process.own_bytes() if process is not None else 0

    @contextmanager
    def _blame_ambiguous(self) -> Iterator[None]:
        before, self._ambiguous = self._ambiguous, True
        try:
            yield
        finally:
            self._ambiguous = before

    def _load(self, process: WorkerProcess, made: RemoteProgram, rest: Callable[[float], None]) -> None:
        before, self._loading = self._loading, made
        try:
            self._prepare_sessions(process, made, rest)
        finally:
            self._loading = before

    def _prepare_sessions(
        self, process: WorkerProcess, made: RemoteProgram, rest: Callable[[float], None]
    ) -> None:
        made.program = self._engines.settle(made.program)
        answer = process.ask(orders.PrepareProgram(made.number, made.program, made.transfers))
        while answer[0] == orders.MADE:
            rest(answer[1])
            answer = process.ask(orders.Continue())
        if answer[0] == orders.FAILED:
            raise orders.answer_to_error(answer)
        _, dtypes, block, tensors, types = answer
        found = {tensor: element_dtype(name) for tensor, name in dtypes.items()}
        made.dtypes = {tensor: dtype for tensor, dtype in found.items() if dtype is not None}
        made.kept = KeptBlocked(block, frozenset(tensors))
        made.types = tuple(None if one is None else tuple(map(np.dtype, one)) for one in types)

    def _loading_error(self, made: RemoteProgram, death: Death) -> EdgepartError:
        """The error for a program during whose loading two processes ended, the second one with nothing else to do."""
        if not death.is_crash:
            return Unavailable(f"the worker {death} while it loaded a plan")
        segments = ", ".join(describe_segment(one) for one in made.program.segments[:3])
        made.fault = f"crashes ONNX Runtime while it is loaded (the worker {death}): {segments}"
        self._crashed(made.fault)
        return CrashError(made.fault)

    # The process

    def _alive(self) -> WorkerProcess:
        """The process; if there is none, it is started and loads all programs. The caller holds `_ordering`."""
        while True:
            with self._state:
                if self._closed.is_set():
                    raise Unavailable(f"{self.name} is not computed here any more")
                if self._process is not None:
                    return self._process
                memory = os.dup(
                    self.memory.file
                )  # A descriptor of its own, as `close` may close the other meanwhile.
            try:
                process = WorkerProcess(self.name, self._settings, memory, self._ended)
            finally:
                os.close(memory)
            with self._state:
                self._starting = process
            try:
                if self._closed.is_set():
                    process.kill(NOT_COMPUTED_HERE)
                process.await_ready()
                loaded = self._load_all(process)
            finally:
                with self._state:
                    self._starting = None
            with self._state:
                if loaded and not self._closed.is_set():
                    self._process = process
                    return process
            process.kill(NOT_COMPUTED_HERE)
            process.death()

    def _load_all(self, process: WorkerProcess) -> bool:
        """Load all programs, and return whether the process survived that. A program that crashed it is dropped. Raises
        Unavailable if the process was killed, for example because memory ran out: the caller decides when to try again."""
        with self._state:
            programs = list(self._programs.values())
        for made in programs:
            try:
                self._load(process, made, lambda _: None)
            except WorkerEnded as end:
                death = process.death()
                log.error("worker of %s %s while it loaded its programs again", self.name, death)
                error = self._loading_error(made, death)
                if death.is_crash:
                    with self._state:
                        self._programs.pop(made.number, None)
                elif not death.ordered:
                    raise error from end
                return False
            except EdgepartError as error:
                made.fault = str(error)
        return True

    def _ended(self, process: WorkerProcess) -> None:
        """Handle the end of the process. The thread that waits for the process calls this."""
        self._handle_death(process)

    def _handle_death(self, process: WorkerProcess) -> Death:
        """Handle the end of a process: start another one, in a thread. Returns how it ended."""
        death = process.death()
        with self._state:
            mine = self._process is process
            if mine:
                self._process = None
        if mine and not self._closed.is_set():
            self._blame_engine(death)
            self.deaths += not death.ordered
            log.log(
                logging.INFO if death.ordered else logging.ERROR,
                "worker of %s %s; it is started again",
                self.name,
                death,
            )
            threading.Thread(target=self._revive, name="edgepart-revive", daemon=True).start()
        return death

    def _blame_engine(self, death: Death) -> None:
        """Note that an engine crashed the process, before another process loads its programs."""
        busy = self._run or self._timing
        if busy is not None and death.is_crash and (one := busy.made.program.segments[busy.segment]).engine:
            self._engines.noted(one, EngineVerdict(one.engine, one.digest, CRASHES, f"the worker {death}"))

    def _revive(self) -> None:
        wait_s = RETRY_S[0]
        while not self._closed.is_set():
            try:
                with self._ordering:
                    self._alive()
                return
            except EdgepartError as error:
                log.warning("no worker for %s: %s; trying again in %g s", self.name, error, wait_s)
            self._closed.wait(wait_s)
            wait_s = min(2 * wait_s, RETRY_S[1])

    # Runs

    def run(
        self,
        made: RemoteProgram,
        segment: int,
        inputs: Sequence[Value],
        wanted: Callable[[], bool],
        overwrites: Sequence[tuple[int, int]] = (),
    ) -> list[Value]:
        """The same as `RunnableProgram.run`."""
        while True:
            process = self._await_process(wanted)
            with self._running:
                if not self._is_current(process):
                    continue  # The process ended while this run waited for its turn.
                if made.fault:
                    raise Unavailable(f"this program cannot be run: {made.fault}")
                number = next(self._numbers)
                self._run = _Busy(number, made, segment, time.monotonic())
                try:
                    if not wanted():
                        raise Unavailable("the run was stopped before it began")
                    return self._exchange(process, number, made, segment, inputs, dict(overwrites))
                except WorkerEnded as end:
                    raise self._run_error(made, segment, end) from end
                finally:
                    self._run = None

    def stop_run(self, made: RemoteProgram) -> None:
        """The same as `RunnableProgram.stop`."""
        with self._state:
            process, run = self._process, self._run
        if process is None or run is None or run.made is not made:
            return
        process.tell(orders.StopRun(run.number))
        grace = threading.Timer(GRACE_S, self._end_run, [process, run.number])
        grace.daemon = True
        grace.start()

    def _end_run(self, process: WorkerProcess, number: int) -> None:
        with self._state:
            run = self._run
        if run is None or run.number != number:
            return
        one, took_s = run.made.program.segments[run.segment], time.monotonic() - run.began_s
        if one.engine and took_s > max(ENGINE_HANGS_S, ENGINE_HANGS_TIMES * one.compute_s):
            why = f"a run took more than {took_s:.0f} s and had to be ended"
            self._engines.noted(one, EngineVerdict(one.engine, one.digest, HANGS, why))
        process.kill("a run that nobody waits for did not end")

    def _is_current(self, process: WorkerProcess) -> bool:
        with self._state:
            return self._process is process

    def _await_process(self, wanted: Callable[[], bool]) -> WorkerProcess:
        """The process, which is started if there is none. Raises Unavailable if it cannot be started, or if the run is no
        longer `wanted`."""
        with self._state:
            process = self._process
        if process is not None:
            return process
        with self._ordering:
            if not wanted():
                raise Unavailable("the run was stopped before it began")
            return self._alive()

    def _exchange(
        self,
        process: WorkerProcess,
        number: int,
        made: RemoteProgram,
        segment: int,
        inputs: Sequence[Value],
        overwrites: Mapping[int, int],
    ) -> list[Value]:
        types = made.types[segment]
        try:
            if types is not None:
                placed = self._place(made, segment, inputs, types)
                if placed is not None:
                    return self._run_on_arrays(process, number, made, segment, placed, types, overwrites)
            body, metas = self._pack_inputs(inputs)
        except MemoryError as error:
            what = describe_segment(made.program.segments[segment])
            raise RequestError(f"this device has not the memory for {what}: {error}") from error
        packed = self.memory.offset(body) or 0, body.nbytes, metas
        answer = process.exchange(orders.RunSegment(number, made.number, segment, packed).to_bytes())
        if answer[0] != orders.WANTS:
            raise orders.answer_to_error(answer)
        outputs, answer = self._receive_outputs(process, answer[1], answer[2])
        self._hear_of_engine(made, segment, answer)
        return outputs

    def _place(
        self, made: RemoteProgram, segment: int, inputs: Sequence[Value], types: Sequence[np.dtype[Any]]
    ) -> list[tuple[Array, int]] | None:
        """The inputs in shared memory, and their offsets there; those that are elsewhere are copied. None if a value is no
        plain array. Raises RequestError if an array is of another type or shape than the segment's."""
        one, memory, known = made.program.segments[segment], self.memory, made.places
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
        made: RemoteProgram,
        segment: int,
        placed: Sequence[tuple[Array, int]],
        types: Sequence[np.dtype[Any]],
        overwrites: Mapping[int, int],
    ) -> list[Value]:
        """Run on arrays of known types and shapes in shared memory. The worker writes the outputs into arrays there, which
        are returned."""
        one, memory = made.program.segments[segment], self.memory
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
        answer = process.exchange(orders.ArrayRun(number, made.number, segment, tuple(offsets)).to_bytes())
        if answer[0] != orders.DONE:
            raise orders.answer_to_error(answer)
        self._hear_of_engine(made, segment, answer)
        return outputs

    def _hear_of_engine(self, made: RemoteProgram, segment: int, answer: Sequence[Any]) -> None:
        """Note that an engine failed in a run that the CPU then made, if the answer says so."""
        if len(answer) > 1:
            one = made.program.segments[segment]
            self._engines.noted(one, EngineVerdict(one.engine, one.digest, FAILS, str(answer[1])))
            made.program = self._engines.settle(made.program)

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

    def _run_error(self, made: RemoteProgram, segment: int, end: WorkerEnded) -> EdgepartError:
        engine = made.program.segments[segment].engine
        ambiguous, death = self._ambiguous, self._handle_death(end.process)
        what = describe_segment(made.program.segments[segment])
        if death.ordered:
            return RequestError(f"{what} was stopped: {death.why}")
        if not death.is_crash or ambiguous:
            return Unavailable(f"the worker {death} while it computed {what}")
        if (
            engine
        ):  # It is refused from now on: the run is made again by the CPU, and the model is not to blame.
            return WorkerDied(f"the worker {death} while it computed {what} on {engine}")
        self._crashes += 1
        if self._crashes == CRASHES_TOLERATED:
            self._crashed(
                f"crashes ONNX Runtime ({CRASHES_TOLERATED} times while it served; the last worker {death}): {what}"
            )
        return WorkerDied(f"the worker {death} while it computed {what}")


def _go_on(took_s: float) -> None:
    """Rest for no time."""


class Workers:
    """All workers of this device. Thread-safe. `prepare` takes long: call it from a thread of its own."""

    def __init__(
        self,
        settings: orders.WorkerSettings,
        shared_bytes: int,
        rest: Callable[[float], None] = lambda took_s: None,
        crashed: Callable[[str, str, str], None] = lambda deployment, model, why: None,
        engines: EngineWatch | None = None,
    ) -> None:
        """`shared_bytes` is the most bytes that the values of one deployment may take. `rest` is called after each session
        with the seconds that making it took. `crashed(deployment, digest of its model, why)` is called for a model that
        ends its workers."""
        self._settings = settings
        self._shared_bytes = shared_bytes
        self._rest = rest
        self._crashed = crashed
        self._engines = engines or EngineWatch()
        self._workers: dict[tuple[str, str], Worker] = {}
        self._users: dict[tuple[str, str], int] = {}
        """Number of programs that each worker has, or is about to have."""
        self._keys: dict[int, tuple[str, str]] = {}
        self._lock = threading.Lock()
        self._turns = LoadTurns()
        """The turns of programs: making a session takes twice its weights for a moment, so sessions are made one at a
        time."""
        self._numbers = itertools.count(1)
        self._stopped = False

    def prepare(
        self,
        deployment: str,
        model: str,
        program: Program,
        transfers: Sequence[Transfer],
        *,
        urgency: LoadUrgency = LoadUrgency.COMING,
    ) -> RemoteProgram:
        """The same as `Loader.prepare`."""
        key = parent_of(deployment), model
        worker, number = self._enter(key), next(self._numbers)
        # Requests wait for a plan of their shapes; nobody has asked for what is deployed only now.
        hurries = urgency is LoadUrgency.AWAITED and is_variant(deployment)
        rest = _go_on if hurries else partial(self._rest_between, urgency)
        try:
            made = self._turns.take(lambda: worker.prepare(number, program, transfers, rest), urgency)
        except BaseException:
            self._leave(key)
            raise
        with self._lock:
            self._keys[number] = key
        return made

    def _rest_between(self, urgency: LoadUrgency, took_s: float) -> None:
        """Between two sessions of a program, load what is more urgent, and let requests compute."""
        self._turns.let_pass(urgency)
        self._rest(took_s)
        self._turns.let_pass(urgency)

    @contextmanager
    def getting_ready(self, deployment: str, model: str) -> Iterator[None]:
        """The same as `Loader.getting_ready`."""
        key = parent_of(deployment), model
        worker = self._enter(key)
        threading.Thread(target=worker.get_ready, name="get ready", daemon=True).start()
        try:
            yield
        finally:
            self._leave(key)

    def _enter(self, key: tuple[str, str]) -> Worker:
        """The worker, made if there is none, with one program more. Raises Unavailable if the agent stops."""
        with self._lock:
            if self._stopped:
                raise Unavailable("this agent stops")
            worker = self._workers.get(key)
            if worker is None:
                worker = self._workers[key] = Worker(
                    key[0],
                    self._settings,
                    self._shared_bytes,
                    lambda why: self._crashed(*key, why),
                    replace(self._engines, noted=lambda *told: self._note_engine(key[1], *told)),
                )
            self._users[key] = self._users.get(key, 0) + 1
            return worker

    def _note_engine(self, model: str, segment: Segment, verdict: EngineVerdict) -> None:
        self._engines.noted(segment, replace(verdict, model=model))

    def release(self, prepared: Any) -> None:
        """The same as `Loader.release`."""
        with self._lock:
            key = self._keys.pop(prepared.number, None)
        if key is not None:
            prepared.worker.release(prepared)
            self._leave(key)

    def abandon(self, deployment: str, model: str) -> None:
        """The same as `Loader.abandon`."""
        with self._lock:
            worker = self._workers.get((parent_of(deployment), model))
        if worker is not None:
            worker.abandon()

    def stop(self) -> None:
        """End all workers. No further one can be started."""
        with self._lock:
            self._stopped = True
            workers = list(self._workers.values())
            self._workers.clear()
        for worker in workers:
            worker.close()
        for worker in workers:
            worker.join()

    def processes(self) -> list[int]:
        """The ids of the worker processes that run now."""
        return [pid for worker in self._all_workers() if (pid := worker.pid) is not None]

    def own_bytes(self) -> int:
        """Bytes of memory of all worker processes together, without memory shared with this process or each other."""
        return sum(worker.own_bytes for worker in self._all_workers())

    def give_back(self) -> None:
        for worker in self._all_workers():
            worker.give_back()

    def deaths(self) -> Mapping[str, int]:
        """The number of worker processes that ended without being told to, by deployment."""
        return {worker.name: worker.deaths for worker in self._all_workers()}

    def _all_workers(self) -> list[Worker]:
        with self._lock:
            return list(self._workers.values())

    def _leave(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._users[key] -= 1
            worker = self._workers.pop(key, None) if self._users[key] == 0 else None
            if worker is not None:
                del self._users[key]
        if worker is not None:
            worker.close()
