"""Executor: runs this device's programs. A door: its compute threads (compute_threads.py), which sleep until there is work,
and the clock.

Reader threads and the local gateway call `deliver` with the arrays of arriving frames, which the executor keeps and nobody
may change afterwards. Which request computes next, the queue decides (request_queue.py). Messages are sent with a function
that the caller gives. It must not wait for the other side: it writes what the kernel takes at once, and leaves the rest to
another thread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from threading import RLock

import numpy as np

from edgepart.agent.cluster.state.bindings import parent_of
from edgepart.agent.execution.carried_states import CarriedStates
from edgepart.agent.execution.compute_threads import ComputeThreads, DataFrom
from edgepart.agent.execution.counters import Counters
from edgepart.agent.execution.device_programs import DevicePrograms
from edgepart.agent.execution.lanes import Lane
from edgepart.agent.execution.outgoing import SendValues, hand_back, post
from edgepart.agent.execution.prepared import RunnableProgram
from edgepart.agent.execution.request_queue import QueueLimits, RequestQueue
from edgepart.agent.execution.sequences import KeptSequences
from edgepart.agent.execution.step_actions import StepActions
from edgepart.agent.execution.tasks import StepKind, make_installed
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.wire.inference import Epoch, Tensors
from edgepart.agent.wire.reduced_precision import restore_array
from edgepart.agent.wire.tensors import Value, value_bytes
from edgepart.planner.plans.plan import Program, Transfer


class Executor:
    """The programs installed on this device, their requests under way, and the compute threads. Thread-safe."""

    def __init__(
        self,
        send: SendValues,
        limits: QueueLimits | None = None,
        recorder: Recorder | None = None,
        data_from: DataFrom = lambda node: None,
    ) -> None:
        """`data_from` has the connections on which transfers come, which compute threads may read themselves."""
        recorder = recorder or Recorder()
        lanes: dict[str, Lane] = {}
        self._send = send
        self._lock = RLock()
        self._counters = Counters()
        self._programs = DevicePrograms()
        self._sequences = KeptSequences()
        self._requests = RequestQueue(
            limits or QueueLimits(), self._programs, self._sequences, self._counters, lanes, time.monotonic
        )
        actions = StepActions(
            self._lock, send, recorder, self._counters, self._requests.tasks, self._programs.installed
        )
        self._threads = ComputeThreads(self._lock, lanes, self._requests, actions, send, recorder, data_from)
        self.carried = CarriedStates(
            self._lock,
            self._sequences,
            self._programs.usual,
            self._programs.batches.get,
            self._requests.busy_sequences,
            time.monotonic,
        )
        """What other devices get and bring of the states that are kept here."""

    def start(self) -> None:
        self._threads.start()

    def stop(self, wait_s: float = 3.0) -> None:
        """Wait until the steps under way end, for `wait_s` seconds at most. Requests that are not done are dropped; their
        gateways see this device leave."""
        self._threads.stop(wait_s)

    # Programs

    def expect(self, deployment: str, epoch: Epoch) -> None:
        """Keep the frames of an epoch whose program is being prepared, until `install` or `retire`."""
        with self._lock:
            self._programs.expect((deployment, epoch))

    def install(
        self,
        deployment: str,
        epoch: Epoch,
        prepared: RunnableProgram,
        transfers: Sequence[Transfer],
        nodes: Mapping[str, str],
        others: Mapping[StepKind, tuple[RunnableProgram, Sequence[Transfer]]] | None = None,
        batch: Program | None = None,
    ) -> None:
        """Take requests of that epoch from now on. `transfers` are the plan's; `nodes` has the node id of each device
        name. `others` are the programs and the transfers of other kinds of steps than the usual ones. With `batch`, which
        makes steps in several sequences and which `add` may install later, sequences lie side by side from the begin.
        Raises InternalError if a program's schedule cannot be made, a node id is missing, or the program is installed
        already."""
        programs = {StepKind.USUAL: (prepared, transfers), **(others or {})}
        installed = {kind: make_installed(deployment, *one, nodes) for kind, one in programs.items()}
        with self._lock:
            early = self._programs.install((deployment, epoch), installed, batch)
            self._threads.open(parent_of(deployment))
        for message, values, source in early:
            self.deliver(message, values, source)

    def add(
        self,
        deployment: str,
        epoch: Epoch,
        kind: StepKind,
        prepared: RunnableProgram,
        transfers: Sequence[Transfer],
        nodes: Mapping[str, str],
    ) -> bool:
        """Take a further kind of steps of an installed program from now on. Returns False if that program is not here any
        more. Raises InternalError as `install` does."""
        installed = make_installed(deployment, prepared, transfers, nodes)
        with self._lock:
            return self._programs.add((deployment, epoch), kind, installed)

    def retire(self, deployment: str, epoch: Epoch) -> list[RunnableProgram]:
        """Leave that epoch: its requests under way go back to their gateways. Returns the programs to release."""
        with self._lock:
            left, early = self._programs.leave((deployment, epoch))
            out = [hand_back(message, "this device has left that epoch") for message, _, _ in early]
            out += self._requests.leave((deployment, epoch))
            self._sequences.retire(deployment, epoch)
            if not self._programs.needs_lane(parent_of(deployment)):
                self._threads.close(parent_of(deployment))
            if not self._programs.computes(deployment):
                self._counters.forget(deployment)
        post(out, self._send)
        return left

    # Requests

    def deliver(self, message: Tensors, values: Sequence[Value], source: str = "") -> None:
        """Take a transfer's pieces for a request. They are kept as they are and must not be changed afterwards.

        Never raises for what a peer sent: a request whose pieces do not fit goes back to its gateway as Failed."""
        nbytes = 0
        for value in values:
            if type(value) is not np.ndarray:
                restore_array(value)  # Before the lock is taken: no other thread waits for it.
            nbytes += value_bytes(value)
        with self._lock:
            received = self._counters.received_bytes
            received[source] = received.get(source, 0) + nbytes
            out = self._requests.take(message, values, source, nbytes)
        if out:
            post(out, self._send)

    def cancel(self, request: str) -> None:
        """Forget a request, and ignore its frames that come later."""
        with self._lock:
            self._requests.cancel(request)

    def end_sequence(self, sequence: str) -> None:
        """Drop what is kept of a sequence, and its steps under way."""
        with self._lock:
            self._requests.end_sequence(sequence)
            self._sequences.end(sequence)

    def lost(self, node: str) -> None:
        """Handle a broken connection with `node`, whose frames in either direction may be lost. Requests and sequences of
        that gateway are dropped. Other requests that use that link, or ended lately and used it, go back to their
        gateways, which know what is answered already."""
        with self._lock:
            self._sequences.lose(node)
            out = self._requests.lose(node)
        post(out, self._send)

    # Statistics

    def counters(self) -> Counters:
        """A copy of the totals, which no longer changes."""
        with self._lock:
            return self._counters.copy()

    def count_sequences(self) -> tuple[int, int, int]:
        """The number of sequences whose states are kept here, the bytes of these states, and the number of sequences that
        were dropped to make room for others."""
        with self._lock:
            return len(self._sequences), self._sequences.nbytes, self._sequences.evictions

    def continued_sequences(self, lately_s: float) -> dict[tuple[str, Epoch], int]:
        """The deployments and epochs of sequences that were continued here in the last `lately_s` seconds, each with the
        furthest position."""
        with self._lock:
            return self._sequences.continued(time.monotonic() - lately_s)

    def count_waiting(self) -> tuple[int, int]:
        """The number of requests under way, and the bytes of the pieces that they hold."""
        with self._lock:
            return len(self._requests.tasks), self._requests.held_bytes()

    @property
    def computes(self) -> bool:
        """Whether all compute threads are alive; the watchdog asks. A thread whose step never ends is alive: the step ends
        with its request."""
        return self._threads.alive
