"""Wiring of computation: the parts that compute requests on this device, and those that provide models and weights for
them. Door: processes, threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgepart.agent.cluster.state.drift import DriftBook
from edgepart.agent.cluster.state.profiles import ProfileBook
from edgepart.agent.engines.verdicts import VerdictBook
from edgepart.agent.execution.compile.cache import Compiled
from edgepart.agent.execution.executor import Executor
from edgepart.agent.host.system import memory, resident_bytes
from edgepart.agent.measure.cpu_wait import CpuWaitWatch
from edgepart.agent.measure.segment_times import SegmentTimer
from edgepart.agent.planwork import model_process
from edgepart.agent.planwork.model_process import ModelProcess
from edgepart.agent.replication.blobs import BlobFetcher, BlobServer, Load
from edgepart.agent.replication.throttle import ServingWatch
from edgepart.agent.serving.loaded_plans import LoadedPlans
from edgepart.agent.serving.requester import Requester
from edgepart.agent.serving.resumption import Resumptions
from edgepart.agent.serving.state_carrier import StateCarrier
from edgepart.agent.serving.state_exchange import StateExchange
from edgepart.agent.storage.store import Source
from edgepart.agent.verify.admitted_programs import AdmittedPrograms
from edgepart.agent.verify.engine_trials import EngineTrials
from edgepart.agent.verify.reference_process import ReferenceProcess
from edgepart.agent.wiring.base import AgentBase, Reactions
from edgepart.agent.wiring.links import LinkParts
from edgepart.agent.workers.device_workers import Workers
from edgepart.agent.workers.engine_watch import EngineWatch
from edgepart.agent.workers.orders import WorkerSettings
from edgepart.planner.devices.cluster import Device

REST = 2.0
"""How long a device that computes requests rests after each piece of work on a coming plan, as a multiple of
the time that the work took. A larger factor slows requests down less, and delays plans more."""
SHARED_BYTES = 64 << 30
"""Address space for the values of one deployment if the machine does not say how much memory it has. Only what is used
takes memory."""


@dataclass(frozen=True)
class ComputeParts:
    """The parts that compute requests on this device, and those that provide models and weights for them."""

    executor: Executor
    requester: Requester
    workers: Workers
    referee: ReferenceProcess
    plans: LoadedPlans
    verdicts: VerdictBook
    carrier: StateCarrier
    resumptions: Resumptions
    fetching: BlobFetcher
    serving: BlobServer
    aside: ModelProcess
    starving: CpuWaitWatch
    profiles: ProfileBook
    drifts: DriftBook
    timing: SegmentTimer
    memory_limit_bytes: int | None

    def forget(self, node: str) -> None:
        """Tell the parts that nothing comes back from the node. Any thread may call this."""
        self.executor.lost(node)
        self.requester.lost(node)
        self.carrier.lost(node)
        self.resumptions.lost(node)

    def remember(self, node: str) -> None:
        """Tell the parts that there is a connection with the node. Any thread may call this."""
        self.requester.found(node)
        self.carrier.found(node)

    def room_bytes(self) -> int:
        """The bytes of memory that one more process may take here for a moment."""
        free, limit = memory()[0] // 2, self.memory_limit_bytes
        return free if limit is None else min(free, limit - resident_bytes() - self.workers.own_bytes())


def make_compute(
    base: AgentBase, links: LinkParts, react: Reactions, threads: int, device: Device, made_with: str = ""
) -> ComputeParts:
    """Make the parts that compute on `device` with `threads` threads, by the software `made_with`. The executor runs."""
    node, options = base.identity.node_id, base.options
    executor = Executor(links.post.values, recorder=base.recorder, data_from=links.transport.data_from)
    requester = Requester(node, links.post.values, recorder=base.recorder)

    def rest(took_s: float) -> None:
        """Rest after work on a coming plan, so that requests that are computed here get their share of the
        device."""
        if executor.count_waiting()[0]:
            time.sleep(REST * took_s)

    aside, serving, fetching = _make_replication(base, links, react, executor)
    verdicts = VerdictBook(base.files.verdicts(), made_with)
    workers, admitted = _make_workers(base, react, threads, rest, verdicts)
    referee = ReferenceProcess(base.store.root)
    base.undo(referee.stop)
    starving = CpuWaitWatch(workers.processes, react.post)
    profiles, drifts = ProfileBook(base.files.profiles()), DriftBook()
    books = options.profile_budget_s, profiles, drifts
    timing = SegmentTimer(node, device, *books, react.post, rest, starving, verdicts.drift_of)
    resumptions = Resumptions(links.post.values, requester.resumes, lambda name: plans.nodes(name))
    exchange = StateExchange(node, links.post.values, executor.carried, lambda *key: plans.held(*key))
    carrier = StateCarrier(exchange, resumptions.deliver)
    plans = LoadedPlans(
        node,
        admitted,
        executor,
        requester,
        fetching.weights,
        fetching.constants,
        react.post,
        carrier,
        timing.time,
    )
    executor.start()
    base.undo(executor.stop)
    carrier.start()
    base.undo(carrier.stop)
    return ComputeParts(
        executor,
        requester,
        workers,
        referee,
        plans,
        verdicts,
        carrier,
        resumptions,
        fetching,
        serving,
        aside,
        starving,
        profiles,
        drifts,
        timing,
        options.memory_limit_bytes,
    )


def _make_replication(
    base: AgentBase, links: LinkParts, react: Reactions, executor: Executor
) -> tuple[ModelProcess, BlobServer, BlobFetcher]:
    """Make the process that reads models, and the parts that send and fetch pieces of them, more slowly while
    requests run."""
    aside, serving_watch = ModelProcess(), ServingWatch()
    base.undo(aside.stop)

    def cut(wanted: Sequence[tuple[str, Source]]) -> None:
        aside.do(model_process.cut_weights, base.store.root, wanted)

    def busy() -> bool:
        return serving_watch.look(
            executor.counters().requests_done, executor.count_waiting()[0], time.monotonic()
        )

    load = Load(busy, react.link_bytes_s)
    serving = BlobServer(base.store, links.post.data, cut, load)
    base.ending.callback(serving.stop)
    fetching = BlobFetcher(
        base.store,
        links.asks,
        cut,
        load=load,
        integrity=base.integrity,
        free_bytes=lambda: base.files.free_bytes,
    )
    return aside, serving, fetching


def _make_workers(
    base: AgentBase, react: Reactions, threads: int, rest: Callable[[float], None], verdicts: VerdictBook
) -> tuple[Workers, AdmittedPrograms]:
    """Make the worker processes, and what tries engines before the workers load anything on them."""
    options = base.options
    compiled = Compiled(options.state / "compiled", options.compiled_bytes)
    compiled.make_room()  # An earlier run of this agent may have left too much.
    limit = options.memory_limit_bytes
    workers = Workers(
        WorkerSettings(base.store.root, compiled.root, options.compiled_bytes, threads, limit, options.nice),
        limit or memory()[1] or SHARED_BYTES,
        rest,
        react.model_crashed,
        EngineWatch(verdicts.settle, lambda segment, verdict: admitted.note(segment, verdict)),
    )
    base.undo(workers.stop)
    trials = EngineTrials(base.store.root, threads)
    base.undo(trials.stop)
    admitted = AdmittedPrograms(workers, trials, verdicts, lambda _: react.engine_judged(verdicts))
    return workers, admitted
