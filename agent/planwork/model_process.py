"""Aside: work on models in a process beside the agent, one piece at a time. Door: a process and a pipe.

Loading a model takes what loads models (30 MB), and cutting weights touches files as large as the model: a resident agent
should not keep either. The process is started when it is first needed and ends when nothing was asked of it for a while,
or when the agent does: its pipe then ends.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from edgepart.agent.host.child_process import started
from edgepart.agent.storage.store import Source, Store
from edgepart.planner.errors import EdgepartError, InternalError, Unavailable

log = logging.getLogger(__name__)

IDLE_S = 20.0
"""Longer spares starting it again, about a second each time; shorter gives its memory back sooner."""

P = ParamSpec("P")
T = TypeVar("T")


class Aside:
    """Does work for any thread; whoever asks waits for the answer."""

    def __init__(self) -> None:
        self._lock = Lock()
        """Held while work is done."""
        self._life = Lock()
        """Held while the process is started or ended: one that is only half started cannot be killed."""
        self._process: BaseProcess | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._stopped = False

    def do(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """What `work` gives there; it and all else is pickled. Raises what it raises; Unavailable where the process
        ended instead."""
        with self._lock:
            for _ in range(2):  # It may just have ended because nothing was asked of it.
                pipe = self._running()
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
        """Give up what is being done, for good."""
        with self._life:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def _running(self) -> Connection[Any, Any]:
        with self._life:
            if self._stopped:
                raise Unavailable("this agent stops")
            if self._pipe is None:
                self._process, self._pipe = started(_work, name="edgepart-aside")
            return self._pipe


def _work(orders: Connection[Any, Any]) -> None:
    """The process."""
    os.nice(5)
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


def examine(
    path: Path, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[str, ...], tuple[Path, ...], dict[str, tuple[int, ...]]]:
    """Notes about a model, its files, and the shapes that are assumed of inputs that `shapes` does not have. ModelError,
    UsageError."""
    from edgepart.planner.model.assumed_shapes import load_assuming
    from edgepart.planner.model.load import model_files

    graph, assumed = load_assuming(path, shapes)
    return graph.notes, model_files(path), assumed


def cut(store: Path, wanted: Sequence[tuple[str, Source]]) -> None:
    """Have these blobs in the store that lies in `store`, cut from their models if need be. Errors are Store.cut's."""
    _opened(store).cut(wanted)


@cache
def _opened(store: Path) -> Store:
    return Store(store, alone=False)
