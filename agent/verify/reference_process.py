"""Reference process: runs models as they are in their files, in a process beside the agent. Door: a process and a pipe.

A model that has not run yet may crash its process, take all memory, or never end. So this process does nothing else, and
has limits of memory and time. It is started when it is needed, keeps the last session for a while, as other shapes of the
same model may come, and ends with the agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any

import msgpack

from edgepart.agent.host.child_process import BESIDE_NICENESS, ChildProcess, start_child
from edgepart.agent.host.process_memory import limit_own_memory
from edgepart.agent.host.system import lower_priority
from edgepart.agent.storage.store import Store
from edgepart.agent.wire.tensors import pack_arrays, unpack_arrays
from edgepart.planner.errors import EdgepartError, FrameError, RequestError, Unavailable
from edgepart.planner.plans.plan import KeptState

ENDING_S = 0.2
"""Seconds to wait for a process that ends by itself before it is killed."""
IDLE_S = 10.0
"""Seconds without a question after which the process ends and returns its memory."""


class ReferenceProcess:
    """Asks the process one question at a time. Its methods block; call them from threads."""

    def __init__(self, store: Path, idle_s: float = IDLE_S) -> None:
        """`store` is the folder of models. The process ends after `idle_s` seconds without a question."""
        self._store = store
        self._idle_s = idle_s
        self._asking = Lock()
        self._lock = Lock()
        self._process: ChildProcess | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._stopped = False

    def answer(
        self,
        model: str,
        steps: Sequence[Mapping[str, Any]],
        memory_bytes: int,
        within_s: float,
        states: Sequence[KeptState] = (),
    ) -> dict[str, Any]:
        """The answer of the model with that digest to the last of these steps of one sequence, without random outputs and
        without `states`, which are zeros at first. Raises RequestError if it does not take these inputs, or not with
        `memory_bytes`, or ends its process; Unavailable if it takes longer than `within_s` seconds."""
        with self._asking:
            while True:
                process, pipe = self._ensure_running()
                try:
                    pipe.send((model, [dict(inputs) for inputs in steps], memory_bytes, tuple(states)))
                    if not pipe.poll(within_s):
                        self._end()
                        raise Unavailable(f"one session over the model took longer than {within_s:g} s")
                    return _read(pipe.recv_bytes())
                except (EOFError, OSError) as error:
                    self._end()
                    # With exit code 0 the process had just ended because it had no questions: try again.
                    if process.exitcode != 0:
                        text = "the model ended the process that ran it on made-up inputs"
                        raise RequestError(text) from error

    def stop(self) -> None:
        """End the process, and answer no more questions."""
        with self._lock:
            self._stopped = True
        self._end()

    def _ensure_running(self) -> tuple[ChildProcess, Connection[Any, Any]]:
        with self._lock:
            if self._stopped:
                raise Unavailable("this agent stops")
            if self._process is None or self._pipe is None or not self._process.is_alive():
                self._process, self._pipe = start_child(
                    run_reference_process, self._store, self._idle_s, name="edgepart-reference"
                )
            return self._process, self._pipe

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.join(ENDING_S)
            process.kill()
            process.join()


def _read(data: bytes) -> dict[str, Any]:
    """The outputs in an answer of the process. Raises RequestError if it says that the model failed, and FrameError if it
    cannot be read: a model may have damaged the process."""
    try:
        fault, names, metas, payload = msgpack.unpackb(data, use_list=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise FrameError(f"what one session over the model answered cannot be read: {error}") from error
    if fault:
        raise RequestError(fault)
    return dict(zip(names, unpack_arrays(metas, memoryview(payload)), strict=True))


def run_reference_process(questions: Connection[Any, Any], store: Path, idle_s: float) -> None:
    """Run the process: answer questions until none comes for `idle_s`, or the agent is gone."""
    # Imported here because these import ONNX Runtime, which does not belong in the agent's own process.
    from edgepart.agent.verify.reference import Served, answer_last, load_served, shapes_of

    lower_priority(BESIDE_NICENESS)
    models = Store(store, alone=False)
    made: tuple[tuple[str, frozenset[str], bool], Served] | None = None
    try:
        while questions.poll(idle_s):
            model, steps, memory_bytes, states = questions.recv()
            try:
                limit_own_memory(memory_bytes)
                shapes = {
                    **shapes_of(steps[0]),
                    **{one.input.name: one.input.shape or () for one in states},
                }
                key = model, frozenset(shapes), any(one.in_place for one in states)
                if made is None or made[0] != key:
                    made = key, load_served(models.model_path(model), shapes)
                answer = _pack("", answer_last(made[1], steps, states))
            except (EdgepartError, MemoryError) as error:
                answer = _pack(str(error) or "it was refused more memory", {})
            questions.send_bytes(answer)
    except (EOFError, OSError):
        return


def _pack(fault: str, outputs: Mapping[str, Any]) -> bytes:
    metas, buffers = pack_arrays(list(outputs.values()))
    packed: bytes = msgpack.packb((fault, list(outputs), metas, b"".join(buffers)))
    return packed
