"""Device workers: all workers of this device, one for each deployment that is computed here, and whose turn it is to load a
program. Door: processes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from edgepart.agent.cluster.state.bindings import is_variant, parent_of
from edgepart.agent.engines.verdicts import EngineVerdict
from edgepart.agent.execution.prepared import LoadUrgency
from edgepart.agent.workers import orders
from edgepart.agent.workers.deployment_worker import Worker
from edgepart.agent.workers.engine_watch import EngineWatch
from edgepart.agent.workers.load_turns import LoadTurns
from edgepart.agent.workers.remote_program import RemoteProgram
from edgepart.planner.errors import Unavailable
from edgepart.planner.plans.plan import Program, Segment, Transfer


class Workers:
    """All workers of this device. Thread-safe. `prepare` takes long: call it from a thread of its own."""

    def __init__(
        self,
        settings: orders.WorkerSettings,
        shared_bytes: int,
        rest: Callable[[float], None] = lambda took_s: None,
        crashed: Callable[[str, str, str], None] = lambda deployment, model, why: None,
        engines: EngineWatch | None = None,
    ) -> None:
        """`shared_bytes` is the most bytes that the values of one deployment may take. `rest` is called after each session
        with the seconds that making it took. `crashed(deployment, digest of its model, why)` is called for a model that
        ends its workers."""
        self._settings = settings
        self._shared_bytes = shared_bytes
        self._rest = rest
        self._crashed = crashed
        self._engines = engines or EngineWatch()
        self._workers: dict[tuple[str, str], Worker] = {}
        """By deployment and digest of its model."""
        self._users: dict[tuple[str, str], int] = {}
        """Number of programs that each worker has, or is about to have."""
        self._held: dict[int, tuple[tuple[str, str], Worker]] = {}
        """By number of a program, the worker that has it, and its key."""
        self._lock = threading.Lock()
        self._turns = LoadTurns()
        """The turns of programs: making a session takes twice its weights for a moment, so sessions are made one at a
        time."""
        self._numbers = itertools.count(1)
        self._stopped = False

    def prepare(
        self,
        deployment: str,
        model: str,
        program: Program,
        transfers: Sequence[Transfer],
        *,
        urgency: LoadUrgency = LoadUrgency.COMING,
    ) -> RemoteProgram:
        """The same as `Loader.prepare`."""
        key = parent_of(deployment), model
        worker, number = self._enter(key), next(self._numbers)
        # Requests wait for a plan of their shapes; nobody has asked for what is deployed only now.
        hurries = urgency is LoadUrgency.AWAITED and is_variant(deployment)
        rest = _go_on if hurries else partial(self._rest_between, urgency)
        try:
            made = self._turns.take(lambda: worker.prepare(number, program, transfers, rest), urgency)
        except BaseException:
            self._leave(key)
            raise
        with self._lock:
            self._held[number] = key, worker
        return made

    def _rest_between(self, urgency: LoadUrgency, took_s: float) -> None:
        """Between two sessions of a program, load what is more urgent, and let requests compute."""
        self._turns.let_pass(urgency)
        self._rest(took_s)
        self._turns.let_pass(urgency)

    @contextmanager
    def getting_ready(self, deployment: str, model: str) -> Iterator[None]:
        """The same as `Loader.getting_ready`."""
        key = parent_of(deployment), model
        worker = self._enter(key)
        threading.Thread(target=worker.get_ready, name="get ready", daemon=True).start()
        try:
            yield
        finally:
            self._leave(key)

    def _enter(self, key: tuple[str, str]) -> Worker:
        """The worker, made if there is none, with one program more. Raises Unavailable if the agent stops."""
        with self._lock:
            if self._stopped:
                raise Unavailable("this agent stops")
            worker = self._workers.get(key)
            if worker is None:
                worker = self._workers[key] = Worker(
                    key[0],
                    self._settings,
                    self._shared_bytes,
                    lambda why: self._crashed(*key, why),
                    replace(self._engines, noted=lambda *told: self._note_engine(key[1], *told)),
                )
            self._users[key] = self._users.get(key, 0) + 1
            return worker

    def _note_engine(self, model: str, segment: Segment, verdict: EngineVerdict) -> None:
        self._engines.noted(segment, replace(verdict, model=model))

    def release(self, prepared: Any) -> None:
        """The same as `Loader.release`."""
        with self._lock:
            held = self._held.pop(prepared.exchange.number, None)
        if held is not None:
            key, worker = held
            worker.release(prepared.exchange)
            self._leave(key)

    def abandon(self, deployment: str, model: str) -> None:
        """The same as `Loader.abandon`."""
        with self._lock:
            worker = self._workers.get((parent_of(deployment), model))
        if worker is not None:
            worker.abandon()

    def stop(self) -> None:
        """End all workers. No further one can be started."""
        with self._lock:
            self._stopped = True
            workers = list(self._workers.values())
            self._workers.clear()
        for worker in workers:
            worker.close()
        for worker in workers:
            worker.join()

    def processes(self) -> list[int]:
        """The ids of the worker processes that run now."""
        return [pid for worker in self._all_workers() if (pid := worker.pid) is not None]

    def own_bytes(self) -> int:
        """Bytes of memory of all worker processes together, without memory shared with this process or each other."""
        return sum(worker.own_bytes for worker in self._all_workers())

    def give_back(self) -> None:
        for worker in self._all_workers():
            worker.give_back()

    def deaths(self) -> Mapping[str, int]:
        """The number of worker processes that ended without being told to, by deployment."""
        return {worker.name: worker.deaths for worker in self._all_workers()}

    def _all_workers(self) -> list[Worker]:
        with self._lock:
            return list(self._workers.values())

    def _leave(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._users[key] -= 1
            worker = self._workers.pop(key, None) if self._users[key] == 0 else None
            if worker is not None:
                del self._users[key]
        if worker is not None:
            worker.close()


def _go_on(took_s: float) -> None:
    """Rest for no time."""
