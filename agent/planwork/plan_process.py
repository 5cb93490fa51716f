"""Planwork: a process beside the agent that computes plans. Door: a process and a pipe.

Planning is seconds of pure Python; in the agent's own process it would slow down every heartbeat and every request, and
could not be stopped when something more urgent comes up. The process is started when it is first needed, is nicer to the
machine than the agent, and ends with the agent: its pipe then ends.
"""

from __future__ import annotations

import gc
import os
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock

from edgepart.agent.cluster.state.events import ComputePlan, PlanComputed, PlanFailed
from edgepart.agent.host.child_process import started
from edgepart.agent.planwork.garbage_collection import collect_seldom
from edgepart.agent.storage.store import Store
from edgepart.planner.errors import Unavailable

NICENESS = 10
IDLE_S = 30.0
"""After so long without an order the process ends: its memory is the models' again. Longer spares its start."""

Answer = PlanComputed | PlanFailed


class Planwork:
    """Computes one plan at a time."""

    def __init__(self, store: Path, here: str) -> None:
        """`store` is the folder that models lie in; `here` is this device's node id."""
        self._arguments = (store, here)
        self._lock = Lock()
        self._process: BaseProcess | None = None
        self._pipe: Connection[ComputePlan, Answer] | None = None
        self._current: ComputePlan | None = None
        self._unwanted: ComputePlan | None = None
        self._stopped = False

    def compute(self, order: ComputePlan) -> Answer:
        """Blocks until the answer is there. Unavailable where it was aborted meanwhile, or the process died."""
        while True:
            with self._lock:
                if self._stopped or self._unwanted is order:
                    raise Unavailable("planning was given up before it began")
                process, pipe = self._running()
                self._current = order
            try:
                pipe.send(order)
                return pipe.recv()
            except (EOFError, OSError) as error:
                process.join()
                if process.exitcode != 0:
                    raise Unavailable("the planning process ended before it had a plan") from error
                # It had just ended because nothing was asked of it.
            finally:
                with self._lock:
                    self._current = None

    def abort(self, order: ComputePlan) -> None:
        """Give up this order, and no other, also when it is only about to begin. Any thread."""
        with self._lock:
            self._unwanted = order
            if self._current is order:
                self._kill()

    def stop(self) -> None:
        """Give up what is being computed, for good."""
        with self._lock:
            self._stopped = True
            self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = None

    def _running(self) -> tuple[BaseProcess, Connection[ComputePlan, Answer]]:
        if self._pipe is None or self._process is None or not self._process.is_alive():
            self._process, self._pipe = started(work, *self._arguments, name="edgepart-plan")
        return self._process, self._pipe


def work(orders: Connection[Answer, ComputePlan], store: Path, here: str) -> None:
    """The process: answers orders until none comes for IDLE_S, or the agent is gone."""
    from edgepart.agent.planwork.plan_job import (
        Computing,  # The whole planner: not in the agent's own process.
    )

    os.nice(NICENESS)
    collect_seldom()
    computing = Computing(Store(store, alone=False).model_path, here)
    try:
        while orders.poll(IDLE_S):
            orders.send(computing.compute(orders.recv()))
            gc.collect()  # Now nobody waits for it, and what the search has left is given back.
    except (EOFError, OSError):
        return
