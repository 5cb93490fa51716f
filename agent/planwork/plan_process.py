"""Plan process: computes plans in a process beside the agent. Door: processes, pipes and sockets.

Planning takes seconds of pure Python. In the agent's own process it would slow down every heartbeat and every request, and
could not be stopped for something more urgent. The process is started when it is first needed, and ends with the agent.

Each order has a line of its own, a pair of sockets: the agent keeps one end, and the planning process gets the other. The
order goes over the line, then its answer. Whoever hangs up gives the order up.

The planning process never searches. Where an order comes to its search, the process forks, and the child searches, answers
and ends. So orders that take no search are answered meanwhile; a search that is given up costs neither the imports (about
a second) nor the loaded models; and its memory goes back to the system when it ends. The fork is safe because no other
thread of the planning process holds a lock: one waits for the agent's end, and those of libraries wait for work, which only
searches would give them.

Searches for contingency plans and comparisons have a lower priority. Plans that a deployment waits for have not, nor those
that take no search: beside programs that compute all the time, a process of low priority gets next to nothing.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
from functools import partial
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from edgepart.agent.cluster.state.events import ComputePlan, PlanComputed, PlanFailed
from edgepart.agent.host.child_process import ChildProcess, start_child
from edgepart.agent.host.garbage_collection import collect_rarely
from edgepart.agent.host.system import lower_priority
from edgepart.agent.storage.store import Store
from edgepart.planner.errors import Unavailable

if TYPE_CHECKING:
    from edgepart.agent.planwork.plan_job import PlanComputer

    Line = Connection[Any, Any]

log = logging.getLogger(__name__)

NICENESS = 10
"""How much lower the priority of contingency plans and comparisons is than the agent's, which answers heartbeats and
requests meanwhile."""
HASTY_NICENESS = 5
"""The same for a quick comparison, for which a device that has joined waits to take part, or requests that one device
answers alone since another was lost. With more, it gets next to nothing of a busy leader; with less, requests that the
leader computes take longer meanwhile."""
TAKEN = "taken"
"""What the process says as soon as it has an order. Where it has ended instead, as it had none, another one is started."""
IDLE_S = 30.0
"""Seconds without an order after which the process ends, so that models can use its memory. A longer time more often saves
starting it again."""

Answer = PlanComputed | PlanFailed


class PlanProcess:
    """Computes plans for any thread; the caller waits for the answer. There are as many searches at a time as callers that
    wait for one."""

    def __init__(self, store: Path, here: str) -> None:
        """`store` is the folder of models; `here` is this device's node id."""
        self._arguments = (store, here)
        self._lock = Lock()
        self._process: ChildProcess | None = None
        self._pipe: Connection[Any, Any] | None = None
        """The way to the process for its ends of lines."""
        self._lines: dict[Line, ComputePlan] = {}
        """Our ends of lines, with the orders whose answers are waited for."""
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
            ours, theirs = Pipe()
            process, pipe = self._begin(order, ours)
            taken = False
            try:
                with theirs:
                    send_handle(pipe, theirs.fileno(), process.pid)
                ours.send(order)
                taken = ours.recv() == TAKEN
                answer: Answer = ours.recv()
                return answer
            except (EOFError, OSError) as error:
                if not taken and self._is_wanted(order):
                    process.join()
                    if process.exitcode == 0:
                        continue  # It had just ended because it had no orders: start another one.
                raise Unavailable("the planning process ended before it had a plan") from error
            finally:
                with self._lock:
                    del self._lines[ours]
                    ours.close()

    def abort(self, order: ComputePlan) -> None:
        """Stop computing this order, and no other, even if it has yet to begin. For any thread."""
        with self._lock:
            self._unwanted = order
            for line, one in self._lines.items():
                if one is order:
                    _hang_up(line)

    def stop(self) -> None:
        """Stop computing, and compute nothing from now on."""
        with self._lock:
            self._stopped = True
            for line in self._lines:
                _hang_up(line)
            if self._process is not None:
                self._process.kill()
                self._process.join()
            self._process = None

    def _begin(self, order: ComputePlan, line: Line) -> tuple[ChildProcess, Connection[Any, Any]]:
        """The process for an order over this line, started if it does not run. Raises Unavailable if nobody wants it."""
        with self._lock:
            if not self._is_wanted(order):
                raise Unavailable("planning was given up before it began")
            running = self._ensure_running()
            self._lines[line] = order
            return running

    def _is_wanted(self, order: ComputePlan) -> bool:
        return not self._stopped and self._unwanted is not order

    def _ensure_running(self) -> tuple[ChildProcess, Connection[Any, Any]]:
        if self._pipe is None or self._process is None or not self._process.is_alive():
            self._process, self._pipe = start_child(run_plan_process, *self._arguments, name="edgepart-plan")
        return self._process, self._pipe


def _hang_up(line: Line) -> None:
    """End the line for both ends, also where one waits for the other."""
    with socket.fromfd(line.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as ending:
        ending.shutdown(socket.SHUT_RDWR)


def run_plan_process(lines: Connection[Any, Any], store: Path, here: str) -> None:
    """Run the process: answer orders until none comes for IDLE_S and no search is under way, or the agent is gone."""
    # Imported here because it imports the whole planner, which does not belong in the agent's own process.
    from edgepart.agent.planwork.plan_job import PlanComputer

    collect_rarely()
    computing = PlanComputer(Store(store, alone=False).model_path, here)
    try:
        while (comes := lines.poll(IDLE_S)) or _is_searching():
            if comes:
                _answer(lines, Connection(recv_handle(lines)), computing)
                gc.collect()  # What the order left is freed, in hundredths of a second.
    except (EOFError, OSError):
        return


def _is_searching() -> bool:
    """Whether a child of this process searches."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _answer(lines: Connection[Any, Any], line: Line, computing: PlanComputer) -> None:
    """Answer the order that comes over the line, or have a child do so that makes the search."""
    here = os.getpid()
    try:
        with line:
            order = line.recv()
            line.send(TAKEN)
            answer = computing.compute(order, partial(_is_for_child, order, line, lines))
            if answer is not None:
                line.send(answer)
    except (EOFError, OSError):
        log.debug("nobody waits for a plan any more")
    finally:
        if os.getpid() != here:
            os._exit(0)


def _is_for_child(order: ComputePlan, line: Line, lines: Connection[Any, Any]) -> bool:
    """Fork; True in the child, which goes on with the order. It ends when the agent hangs up or is gone."""
    if os.fork():
        return False
    lines.close()  # Else the agent could not see that the planning process has ended.
    lower_priority(niceness(order))
    Thread(target=_end_with_line, args=[line.fileno()], name="line", daemon=True).start()
    return True


def _end_with_line(line: int) -> None:
    os.read(line, 1)  # until the agent, which sends nothing more, hangs up
    os._exit(1)


def niceness(order: ComputePlan) -> int:
    """How much lower the priority of an order's search is than the agent's."""
    if order.urgent:
        return 0
    return HASTY_NICENESS if order.hasty else NICENESS
