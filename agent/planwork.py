"""Planwork: a process beside the agent that computes plans. Door: a process and a pipe.

Planning is seconds of pure Python; in the agent's own process it would slow down every heartbeat and every request, and
could not be stopped when something more urgent comes up. The process is started when it is first needed, is nicer to the
machine than the agent, and ends with the agent: its pipe then ends.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock

from edgepart.agent.computing import Computing
from edgepart.agent.events import ComputePlan, PlanComputed, PlanFailed
from edgepart.agent.store import Store
from edgepart.planner.errors import Unavailable

NICENESS = 10

Answer = PlanComputed | PlanFailed


class Planwork:
    """Computes one plan at a time."""

    def __init__(self, store: Path, here: str) -> None:
        """`store` is the folder that models lie in; `here` is this device's node id."""
        self._arguments = (store, here)
        self._context = multiprocessing.get_context("spawn")
        self._lock = Lock()
        self._process: BaseProcess | None = None
        self._pipe: Connection[ComputePlan, Answer] | None = None

    def compute(self, order: ComputePlan) -> Answer:
        """Blocks until the answer is there. Unavailable where `abort` was called meanwhile, or the process died."""
        with self._lock:
            pipe = self._running()
        try:
            pipe.send(order)
            return pipe.recv()
        except (EOFError, OSError) as error:
            raise Unavailable("the planning process ended before it had a plan") from error

    def abort(self) -> None:
        """Give up what is being computed; the next order starts afresh. Any thread."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.join()
            self._process = None

    def _running(self) -> Connection[ComputePlan, Answer]:
        if self._pipe is None or self._process is None or not self._process.is_alive():
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=work, args=(theirs, *self._arguments), name="edgepart-plan", daemon=True
            )
            process.start()
            # Only the process holds its end now, so that its death ends our reading.
            theirs.close()
            self._process, self._pipe = process, ours
        return self._pipe


def work(orders: Connection[Answer, ComputePlan], store: Path, here: str) -> None:
    """The process: answers orders until the agent is gone."""
    os.nice(NICENESS)
    computing = Computing(Store(store).model_path, here)
    while True:
        try:
            order = orders.recv()
        except (EOFError, OSError):
            return
        orders.send(computing.compute(order))
