"""Plan process: computes plans in a process beside the agent. Door: a process and a pipe.

Planning takes seconds of pure Python. In the agent's own process it would slow down every heartbeat and every request, and
could not be stopped for something more urgent. The process is started when it is first needed, and ends with the agent,
which closes the pipe. Contingency plans and comparisons are computed at a lower priority. Plans that a deployment waits for
are not, nor those on one device alone, which take no search: beside programs that compute all the time, a process of low
priority gets next to nothing.
"""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from edgepart.agent.cluster.state.events import ComputePlan, PlanComputed, PlanFailed
from edgepart.agent.host.child_process import ChildProcess, start_child
from edgepart.agent.host.garbage_collection import collect_rarely
from edgepart.agent.host.system import lower_priority
from edgepart.agent.storage.store import Store
from edgepart.planner.errors import Unavailable

if TYPE_CHECKING:
    from edgepart.agent.planwork.plan_job import PlanComputer

NICENESS = 10
"""How much lower the priority of contingency plans and comparisons is than the agent's, which answers heartbeats and
requests meanwhile."""
HASTY_NICENESS = 5
"""The same for a quick comparison, for which a device that has joined waits to take part, or requests that one device
answers alone since another was lost. With more, it gets next to nothing of a busy leader; with less, requests that the
leader computes take longer meanwhile."""
IDLE_S = 30.0
"""Seconds without an order after which the process ends, so that models can use its memory. A longer time more often saves
starting it again."""

Answer = PlanComputed | PlanFailed


class PlanProcess:
    """Computes one plan at a time."""

    def __init__(self, store: Path, here: str) -> None:
        """`store` is the folder of models; `here` is this device's node id."""
        self._arguments = (store, here)
        self._lock = Lock()
        self._process: ChildProcess | None = None
        self._pipe: Connection[ComputePlan, Answer] | None = None
        self._current: ComputePlan | None = None
        self._unwanted: ComputePlan | None = None
        self._stopped = False

    def get_ready(self) -> None:
        """Start the process if it does not run: an order is likely to follow, and would have to wait for that."""
        with self._lock:
            if not self._stopped:
                self._ensure_running()

    def compute(self, order: ComputePlan) -> Answer:
        """Wait for the answer to `order`. Raises Unavailable if the order was aborted, or the process died."""
        while True:
            with self._lock:
                if self._stopped or self._unwanted is order:
                    raise Unavailable("planning was given up before it began")
                process, pipe = self._ensure_running()
                self._current = order
            try:
                pipe.send(order)
                return pipe.recv()
            except (EOFError, OSError) as error:
                process.join()
                if process.exitcode != 0:
                    raise Unavailable("the planning process ended before it had a plan") from error
                # The process had just ended because it had no orders: start another one.
            finally:
                with self._lock:
                    self._current = None

    def abort(self, order: ComputePlan) -> None:
        """Stop computing this order, and no other, even if it has yet to begin. For any thread."""
        with self._lock:
            self._unwanted = order
            if self._current is order:
                self._kill()

    def stop(self) -> None:
        """Stop computing, and compute nothing from now on."""
        with self._lock:
            self._stopped = True
            self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = None

    def _ensure_running(self) -> tuple[ChildProcess, Connection[ComputePlan, Answer]]:
        if self._pipe is None or self._process is None or not self._process.is_alive():
            self._process, self._pipe = start_child(run_plan_process, *self._arguments, name="edgepart-plan")
        return self._process, self._pipe


def run_plan_process(orders: Connection[Answer, ComputePlan], store: Path, here: str) -> None:
    """Run the process: answer orders until none comes for IDLE_S, or the agent is gone."""
    # Imported here because it imports the whole planner, which does not belong in the agent's own process.
    from edgepart.agent.planwork.plan_job import PlanComputer

    collect_rarely()
    computing = PlanComputer(Store(store, alone=False).model_path, here)
    try:
        while orders.poll(IDLE_S):
            orders.send(_compute(computing, orders.recv()))
            gc.collect()  # Nothing waits for this process now; the search's garbage is freed.
    except (EOFError, OSError):
        return


def _compute(computing: PlanComputer, order: ComputePlan) -> Answer:
    """Compute a plan, in a thread of lower priority unless the order is urgent or takes no search. On Linux each thread has
    its own priority, and only root may raise it again."""
    if order.urgent or order.key.alone:
        return computing.compute(order)
    niceness = HASTY_NICENESS if order.quick and order.current else NICENESS
    with ThreadPoolExecutor(1, initializer=lower_priority, initargs=(niceness,)) as thread:
        return thread.submit(computing.compute, order).result()
