"""Worker: the process that computes a device's part of one deployment. Door: ONNX Runtime's sessions
(agent/execution/runtime).

A model that crashes ONNX Runtime, loops without end or takes memory without bound harms this process only: the agent, its
links and all other deployments go on. The worker knows no network and no cluster; orders.py defines the messages that it
gets. process.py starts it as `python -m edgepart.agent.workers.worker`; it ends when the agent does.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, assert_never

import numpy as np
import onnxruntime as ort

from edgepart.agent.engines.provider_sessions import LOG_FATAL_ONLY
from edgepart.agent.execution.compile.cache import Compiled
from edgepart.agent.execution.compile.compiler import Compiler
from edgepart.agent.execution.runtime.loaded_models import BoundRun
from edgepart.agent.execution.runtime.loaded_segments import LoadedSegment
from edgepart.agent.execution.runtime.sessions import PreparedProgram, Sessions
from edgepart.agent.host.process_memory import give_back, limit_own_memory, share_heaps
from edgepart.agent.host.system import lower_priority
from edgepart.agent.storage.store import Store
from edgepart.agent.wire.dtypes import element_name
from edgepart.agent.wire.tensors import pack_arrays, unpack_arrays
from edgepart.agent.workers import orders
from edgepart.agent.workers.channel import Channel
from edgepart.agent.workers.shared_memory import MappedMemory
from edgepart.planner.errors import EdgepartError, InternalError, RequestError

BOUND_RUNS_KEPT = 256
"""Number of bound runs that are kept, because binding takes about as long as a tiny operator."""
log = logging.getLogger(__name__)

OOM_SCORE_ADJ = 900
"""The worker's oom_score_adj (-1000 to 1000), so that the kernel ends a worker before its agent if memory runs out."""


class WorkerPrograms:
    """The programs of one worker process."""

    def __init__(
        self,
        settings: orders.WorkerSettings,
        told: Connection[Any, Any],
        runs: Channel,
        memory: MappedMemory,
    ) -> None:
        self._told = told
        self._runs = runs
        self._memory = memory
        self._limit_bytes = settings.memory_bytes
        self._mapped_bytes = 0
        """Bytes of the weights of the programs that are being prepared: files that sessions map while they are made."""
        self._waiting: SimpleQueue[orders.PrepareProgram | orders.TimeSegment | orders.Continue] = (
            SimpleQueue()
        )
        self._programs: dict[int, PreparedProgram] = {}
        self._kept: dict[tuple[int, int, tuple[int, ...]], BoundRun] = {}
        """Bound runs by program, segment and offsets, the oldest first."""
        compiled = Compiled(settings.compiled, settings.compiled_bytes)
        store = Store(settings.store, alone=False)
        self._sessions = Sessions(
            settings.threads,
            lambda ref: store.file(ref.digest),
            compiler=Compiler(compiled, settings.threads) if settings.compiled_bytes else None,
            rest=self._rest,
        )
        self._options = ort.RunOptions()
        self._options.log_severity_level = LOG_FATAL_ONLY
        self._lock = Lock()
        self._running = -1
        self._stopped = -1
        """The number of the run that the agent stopped last."""

    def serve(self) -> None:
        """Obey orders and compute runs until the agent closes its end of the connections."""
        try:
            self._told.send_bytes(orders.answer_to_bytes(orders.READY))
            Thread(target=self._take_orders, name="orders", daemon=True).start()
            Thread(target=self._prepare_all, name="prepare", daemon=True).start()
            while True:
                self._runs.send(self._run(orders.run_from_bytes(self._runs.receive())))
        except (EOFError, OSError):
            return

    # Orders

    def _take_orders(self) -> None:
        try:
            while True:
                self._take(pickle.loads(self._told.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)  # The agent is gone: nothing needs what is still being computed here.

    def _take(self, order: orders.Order) -> None:
        match order:
            case orders.PrepareProgram() | orders.TimeSegment() | orders.Continue():
                self._waiting.put(order)
            case orders.ReleaseProgram(number):
                if (prepared := self._programs.pop(number, None)) is not None:
                    for key in [key for key in list(self._kept) if key[0] == number]:
                        self._kept.pop(key, None)
                    self._sessions.release(prepared)
            case orders.StopRun(run):
                with self._lock:
                    self._stopped = run
                    if run == self._running:
                        self._options.terminate = True
            case orders.ReturnFreedMemory():
                give_back()
            case _:
                assert_never(order)

    def _prepare_all(self) -> None:
        while True:
            self._obey(self._waiting.get())

    def _obey(self, order: orders.PrepareProgram | orders.TimeSegment | orders.Continue) -> None:
        try:
            answer = self._prepare(order) if isinstance(order, orders.PrepareProgram) else self._time(order)
        except EdgepartError as error:
            answer = orders.error_to_answer(error)
        except Exception as error:
            log.exception("a worker's order failed inside")
            answer = orders.error_to_answer(error)
        self._told.send_bytes(orders.answer_to_bytes(*answer))

    def _prepare(self, order: orders.PrepareProgram) -> tuple[Any, ...]:
        sizes = {ref.digest: ref.nbytes for segment in order.program.segments for ref in segment.weights}
        before = self._mapped_bytes
        self._mapped_bytes += sum(sizes.values())
        self._limit_again()
        try:
            prepared = self._sessions.prepare(order.program, order.transfers)
        finally:
            self._mapped_bytes = before
            self._limit_again()
        self._programs[order.number] = prepared
        dtypes = {tensor: element_name(dtype) for tensor, dtype in prepared.dtypes.items()}
        types = tuple(map(_types, prepared.loaded))
        return orders.PREPARED, dtypes, prepared.kept.block, tuple(prepared.kept.tensors), types

    def _rest(self, took_s: float) -> None:
        """Wait after each session until the agent says to go on: it knows whether this device computes for requests, and
        may want another program first."""
        self._told.send_bytes(orders.answer_to_bytes(orders.MADE, took_s))
        while not isinstance(order := self._waiting.get(), orders.Continue):
            self._obey(order)
        self._limit_again()

    def _limit_again(self) -> None:
        """Limit the memory of this process anew: a session that was made has started threads."""
        if self._limit_bytes is not None:
            limit_own_memory(self._limit_bytes, self._mapped_bytes)

    def _time(self, order: orders.TimeSegment | orders.Continue) -> tuple[Any, ...]:
        if isinstance(order, orders.Continue):
            raise InternalError("a worker was told to go on with nothing")
        prepared = self._programs.get(order.number)
        took_s = prepared.best_s(order.segment, order.budget_s) if prepared is not None else None
        return orders.TIMED, took_s

    # Runs

    def _run(self, order: orders.RunSegment | orders.ArrayRun) -> bytes:
        with self._lock:
            self._running, self._options.terminate = order.run, order.run == self._stopped
        answer: tuple[Any, ...] = (orders.DONE,)
        try:
            try:
                self._compute(order)
            except RequestError as error:
                if not self._leave_engine(order):
                    raise
                self._compute(order)  # If the CPU fails too, the request's inputs are to blame.
                answer = orders.DONE, str(error)
        except Exception as error:
            if not isinstance(error, EdgepartError):
                log.exception("a run failed inside")
            answer = orders.error_to_answer(error)
        with self._lock:
            self._running = -1
            if order.run == self._stopped:
                answer = orders.error_to_answer(
                    RequestError("the run was stopped: nobody waits for it any more")
                )
        return orders.DONE_BYTES if len(answer) == 1 else orders.answer_to_bytes(*answer)

    def _compute(self, order: orders.RunSegment | orders.ArrayRun) -> None:
        if isinstance(order, orders.ArrayRun):
            self._bound(order).run(self._options)
        else:
            loaded = self._programs[order.program].loaded[order.segment]
            self._pack(loaded.run(self._inputs(order), self._options))

    def _leave_engine(self, order: orders.RunSegment | orders.ArrayRun) -> bool:
        """Have the CPU compute a segment from now on; return whether an engine did before, and the run was not stopped."""
        prepared = self._programs[order.program]
        if not prepared.loaded[order.segment].segment.engine or order.run == self._stopped:
            return False
        for key in [key for key in list(self._kept) if key[:2] == (order.program, order.segment)]:
            self._kept.pop(key, None)
        self._programs[order.program] = self._sessions.leave_engine(prepared, order.segment)
        return True

    def _bound(self, order: orders.ArrayRun) -> BoundRun:
        """The run bound to the order's offsets. Bound runs are kept, as the same offsets are used again and again."""
        key = order.program, order.segment, order.offsets
        bound = self._kept.get(key)
        if bound is None:
            loaded = self._programs[order.program].loaded[order.segment]
            ports = *loaded.segment.inputs, *loaded.segment.outputs
            types = _types(loaded) or ()
            arrays = [
                self._memory.array(at, port.piece.region.shape, np.dtype(name))
                for at, port, name in zip(order.offsets, ports, types, strict=True)
            ]
            count = len(loaded.segment.inputs)
            bound = self._kept[key] = loaded.bind(arrays[:count], arrays[count:])
            if len(self._kept) > BOUND_RUNS_KEPT:
                del self._kept[next(iter(self._kept))]
        return bound

    def _inputs(self, order: orders.RunSegment) -> Sequence[Any]:
        offset, nbytes, metas = order.packed
        return unpack_arrays(metas, self._memory.span(offset, nbytes))

    def _pack(self, values: Sequence[Any]) -> None:
        """Write outputs whose size was not known before the run into the room that the agent then makes for them. Raises
        RequestError if the agent has no room."""
        metas, buffers = pack_arrays(values)
        nbytes = sum(buffer.nbytes for buffer in buffers)
        self._runs.send(orders.answer_to_bytes(orders.WANTS, nbytes, metas))
        offset = int.from_bytes(self._runs.receive(), "little", signed=True)
        if offset < 0:
            raise RequestError(f"its outputs take {nbytes:,} bytes, for which this device has no room")
        target = self._memory.span(offset, nbytes)
        at = 0
        for buffer in buffers:
            target[at : at + buffer.nbytes] = buffer
            at += buffer.nbytes


def _types(loaded: LoadedSegment) -> tuple[str, ...] | None:
    """numpy's names of the types of a segment's inputs and outputs; None if `ArrayRun` cannot be used for the segment."""
    ports = [(port, loaded.dtypes[port.name]) for port in (*loaded.segment.inputs, *loaded.segment.outputs)]
    if not loaded.plain or not all(orders.has_known_array(port, dtype) for port, dtype in ports):
        return None
    return tuple(dtype.str for _, dtype in ports if dtype is not None)


def _limit(settings: orders.WorkerSettings) -> None:
    """Limit the memory of this process. Over the limit ONNX Runtime is refused memory, and the request that asked for it
    fails."""
    share_heaps()
    if settings.niceness:
        lower_priority(settings.niceness)
    if settings.memory_bytes is not None:
        limit_own_memory(settings.memory_bytes)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(OOM_SCORE_ADJ))
    except OSError as error:
        log.info("the kernel may end this agent before its worker if memory runs out: %s", error)


def main() -> None:
    """Run the worker. Its arguments are three file descriptors (orders, runs, shared memory); its settings arrive as the
    first message."""
    told, runs, memory = (int(text) for text in sys.argv[1:4])
    with Connection(told) as orders_in:
        settings, log_settings = pickle.loads(orders_in.recv_bytes())
        log_settings.apply("worker")
        _limit(settings)
        WorkerPrograms(settings, orders_in, Channel(socket.socket(fileno=runs)), MappedMemory(memory)).serve()


if __name__ == "__main__":
    main()
