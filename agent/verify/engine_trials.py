"""Engine trials: has segments tried on their engines in a process beside the agent, with a limit of time. Door: a process
and a pipe.

An engine that crashes or hangs takes down that process only, and what it was doing is known. The process is started when
it is needed, and ends when it has had nothing to do for a while, as engines hold much memory.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any

import msgpack

from edgepart.agent.engines.catalogue import kind_of
from edgepart.agent.engines.verdicts import (
    CRASHES,
    FAILS,
    HANGS,
    EngineVerdict,
    verdict_from_json,
    verdicts_to_json,
)
from edgepart.agent.host.child_process import BESIDE_NICENESS, ChildProcess, start_child
from edgepart.agent.host.system import lower_priority
from edgepart.agent.storage.store import Store
from edgepart.planner.errors import FrameError, Unavailable
from edgepart.planner.plans.plan import Segment

log = logging.getLogger(__name__)

IDLE_S = 10.0
"""Seconds without a question after which the process ends."""
ENDING_S = 0.5
"""Seconds to wait for a process that ends by itself before it is killed."""


class EngineTrials:
    """Tries one segment at a time. Its methods block; call them from threads."""

    def __init__(self, store: Path, threads: int, limit_s: float | None = None) -> None:
        """`store` is the folder of weights. `limit_s` replaces the seconds that each kind of engine may take."""
        self._store = store
        self._threads = threads
        self._limit_s = limit_s
        self._trying = Lock()
        self._lock = Lock()
        self._process: ChildProcess | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._stopped = False

    def verdict(self, segment: Segment) -> EngineVerdict:
        """The verdict about the segment on its engine. Raises Unavailable if it cannot be found now: the agent stops, the
        process was killed because memory ran out, or no process can be started."""
        limit_s = kind_of(segment.engine).trial_s if self._limit_s is None else self._limit_s
        with self._trying:
            for _ in range(2):  # A process that was just ending because it was idle is replaced by another.
                process, pipe = self._ensure_running()
                stage = None
                try:
                    pipe.send(segment)
                    while pipe.poll(limit_s):
                        said = _read(pipe.recv_bytes())
                        if isinstance(said, EngineVerdict):
                            return replace(said, engine=segment.engine, segment=segment.digest)
                        stage = said
                    self._end()
                    return self._hung(segment, stage, limit_s)
                except (EOFError, OSError):
                    self._end()
                    if stage is not None or process.exitcode != 0:
                        return self._ended(segment, stage, process.exitcode or 0)
        raise Unavailable(f"no process tries segments on {segment.engine} now")

    def stop(self) -> None:
        """End the process, and try nothing more."""
        with self._lock:
            self._stopped = True
        self._end()

    def _hung(self, segment: Segment, stage: str | None, limit_s: float) -> EngineVerdict:
        if stage == segment.engine:
            why = f"it gave no answer within {limit_s:g} s"
            return EngineVerdict(segment.engine, segment.digest, HANGS, why)
        why = f"it cannot be compared with the CPU, which gave no answer within {limit_s:g} s"
        return EngineVerdict(segment.engine, segment.digest, FAILS, why)

    def _ended(self, segment: Segment, stage: str | None, status: int) -> EngineVerdict:
        if self._stopped or status == -signal.SIGKILL:
            raise Unavailable("the process that tries segments on engines was ended")
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        if stage == segment.engine:
            return EngineVerdict(segment.engine, segment.digest, CRASHES, f"it ended its process with {how}")
        why = f"it cannot be compared with the CPU, which ended its process with {how} on made-up inputs"
        return EngineVerdict(segment.engine, segment.digest, FAILS, why)

    def _ensure_running(self) -> tuple[ChildProcess, Connection[Any, Any]]:
        with self._lock:
            if self._stopped:
                raise Unavailable("this agent stops")
            if self._process is None or self._pipe is None or not self._process.is_alive():
                try:
                    self._process, self._pipe = start_child(
                        run_engine_trials, self._store, self._threads, IDLE_S, name="edgepart-engines"
                    )
                except OSError as error:
                    raise Unavailable(f"no process can be started that tries engines: {error}") from error
            return self._process, self._pipe

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.join(ENDING_S)
            process.kill()
            process.join()


def _read(data: bytes) -> EngineVerdict | str:
    """What the process said: a verdict, or which session runs. Raises OSError if that cannot be read: an engine may have
    damaged it."""
    try:
        said = msgpack.unpackb(data, use_list=False)
        return said if isinstance(said, str) else verdict_from_json(said)
    except (ValueError, msgpack.UnpackException, FrameError) as error:
        raise OSError(f"what a trial of an engine said cannot be read: {error}") from error


def run_engine_trials(questions: Connection[Any, Any], store: Path, threads: int, idle_s: float) -> None:
    """Run the process: try segments until none comes for `idle_s`, or the agent is gone."""
    # Imported here because these import ONNX Runtime, which does not belong in the agent's own process.
    from edgepart.agent.execution.runtime.segment_weights import Weight, read_weights
    from edgepart.agent.verify.engine_trial import try_engine

    lower_priority(BESIDE_NICENESS)
    held = Store(store, alone=False)

    def weights(segment: Segment) -> Mapping[str, Weight]:
        return read_weights(segment, lambda ref: held.file(ref.digest))

    def stage(name: str) -> None:
        questions.send_bytes(msgpack.packb(name))

    try:
        while questions.poll(idle_s):
            segment: Segment = questions.recv()
            try:
                found = try_engine(segment, weights, threads, stage)
            except Exception as error:  # An engine's Python front may raise anything.
                log.exception("a trial of %s failed inside", segment.engine)
                found = EngineVerdict(
                    segment.engine, segment.digest, FAILS, f"{type(error).__name__}: {error}"
                )
            questions.send_bytes(msgpack.packb(*verdicts_to_json([found])))
    except (EOFError, OSError):
        return
