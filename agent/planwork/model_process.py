"""Model process: does work on models in a process beside the agent, one piece at a time. Door: a process and a pipe.

The code that loads models takes 30 MB, and cutting weights touches files as large as the model: a resident agent should
keep neither in memory. The process is started when it is first needed. It ends when it has had no work for a while, or
when the agent ends and thereby closes the pipe.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from edgepart.agent.host.child_process import BESIDE_NICENESS, start_child
from edgepart.agent.storage.store import Source, Store
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import EdgepartError, InternalError, Unavailable

log = logging.getLogger(__name__)

IDLE_S = 20.0
"""Seconds without work after which the process ends. A longer time more often saves starting it again, which takes about
a second; a shorter one returns its memory sooner."""

P = ParamSpec("P")
T = TypeVar("T")


class ModelProcess:
    """Does work in the process for any thread; the caller waits for the answer."""

    def __init__(self) -> None:
        self._lock = Lock()
        """Guards the pipe: a thread holds this lock while its work is done."""
        self._life = Lock()
        """Guards starting and killing the process, because a process that is only half started cannot be killed."""
        self._process: BaseProcess | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._stopped = False

    def do(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Call `work` in the process and return its result; the function, its arguments and the result are pickled.
        Raises what `work` raises, InternalError if that is an unexpected error, and Unavailable if the process ended
        before it had an answer."""
        with self._lock:
            for _ in range(2):  # The first process may just have ended because it had no work.
                pipe = self._ensure_running()
                try:
                    pipe.send((work, args, named))
                    done, result = pipe.recv()
                    break
                except (EOFError, OSError):
                    self._pipe = None
            else:
                raise Unavailable("the process that works on models ended before it had an answer")
        if not done:
            raise result
        answer: T = result
        return answer

    def stop(self) -> None:
        """Stop the work under way, and do none from now on."""
        with self._life:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def _ensure_running(self) -> Connection[Any, Any]:
        with self._life:
            if self._stopped:
                raise Unavailable("this agent stops")
            if self._pipe is None:
                self._process, self._pipe = start_child(_work, name="edgepart-aside")
            return self._pipe


def _work(orders: Connection[Any, Any]) -> None:
    """Run the process: do work until none comes for IDLE_S, or the agent is gone."""
    os.nice(BESIDE_NICENESS)
    try:
        while orders.poll(IDLE_S):
            work, args, named = orders.recv()
            try:
                answer = True, work(*args, **named)
            except (EdgepartError, OSError, MemoryError) as error:
                answer = False, error
            except Exception as error:
                log.exception("%s failed inside", work.__name__)
                answer = (
                    False,
                    InternalError(f"{work.__name__} failed inside ({error!r}); the log says where"),
                )
            orders.send(answer)
    except (EOFError, OSError):
        return


def examine_model(
    path: Path, options: DeployOptions
) -> tuple[tuple[str, ...], tuple[Path, ...], DeployOptions]:
    """Notes about a model, its files, and the options with all that they leave open: the shapes that are assumed, and the
    states. Raises ModelError and UsageError."""
    from edgepart.planner.model.load import model_files
    from edgepart.planner.model.stateful import load_with_states

    graph, assumed = load_with_states(path, options.shapes, options.states, options.context)
    states = tuple((state.output, state.input) for state in graph.states)
    # Planning takes None as none, and agents of an earlier release can read that.
    found = replace(options, shapes={**options.shapes, **assumed}, states=states or None)
    return graph.notes, model_files(path), found


def cut_weights(store: Path, wanted: Sequence[tuple[str, Source]]) -> None:
    """Make sure that the store in the folder `store` has these blobs: cut those that are missing from their models.
    Raises what Store.cut raises."""
    _open_store(store).cut(wanted)


@cache
def _open_store(store: Path) -> Store:
    return Store(store, alone=False)
