"""Wiring: makes the parts of an agent and connects them; service.py starts and stops them. Door: everything.

The parts come in four groups, each made from those before it: the base (this device's identity and its state
folder), the links to other agents, the parts that compute requests here, and the cluster's logic with HTTP in
front of it. Later events (a frame, a lost link, a crashed model) are reported to the agent, through its
`Reactions`.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Protocol

from edgepart import __version__
from edgepart.agent.admission.joining import Doorkeeper
from edgepart.agent.admission.renewal import CertificateRenewal
from edgepart.agent.admission.signed_drains import DrainSigner
from edgepart.agent.api.candidate_texts import CandidateTexts
from edgepart.agent.api.node import NodeApi
from edgepart.agent.api.node_parts import (
    Diagnostics,
    ManagementActions,
    ModelFiles,
    NodeIdentity,
    RequestServing,
)
from edgepart.agent.api.text_deployments import AgentTextDeployments
from edgepart.agent.chronicle.cluster_story import ClusterStory, ServingPlanFacts
from edgepart.agent.chronicle.event_log import EventLog
from edgepart.agent.chronicle.log_lines import LogLine
from edgepart.agent.chronicle.numbered_log import NumberedLog
from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.membership.peer import OwnFacts
from edgepart.agent.cluster.state import events
from edgepart.agent.cluster.state.cards import find_card_fault
from edgepart.agent.cluster.state.drift import DriftBook
from edgepart.agent.cluster.state.profiles import ProfileBook
from edgepart.agent.discovery.hints import HintCollector
from edgepart.agent.doctor.report import DoctorReport
from edgepart.agent.driver import Driver, DriverParts
from edgepart.agent.engines.verdicts import VerdictBook
from edgepart.agent.execution.compile.cache import Compiled
from edgepart.agent.execution.executor import Executor
from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.gateway.limits import BodyLimits
from edgepart.agent.grpc.door import GrpcDoor
from edgepart.agent.host.system import memory, resident_bytes
from edgepart.agent.http.server import HttpServer
from edgepart.agent.maintenance import MaintainedState, Maintenance, disk_document
from edgepart.agent.measure.clock_exchange import ClockExchange
from edgepart.agent.measure.cpu_wait import CpuWaitWatch
from edgepart.agent.measure.echoes import Echoes
from edgepart.agent.measure.segment_times import SegmentTimer
from edgepart.agent.measure.trace_collector import TraceCollector, with_trace_support
from edgepart.agent.net.dispatch import FrameDispatcher
from edgepart.agent.net.endpoints import bind, own_addresses, reachable_text
from edgepart.agent.net.rpc_client import RpcClient
from edgepart.agent.net.transport import Transport
from edgepart.agent.options import AgentOptions
from edgepart.agent.planwork import model_process
from edgepart.agent.planwork.model_process import ModelProcess
from edgepart.agent.planwork.plan_process import PlanProcess
from edgepart.agent.replication.blobs import BlobFetcher, BlobServer, Load
from edgepart.agent.replication.throttle import ServingWatch
from edgepart.agent.security.charter import CHARTERS, ISSUER
from edgepart.agent.security.identity import Identity
from edgepart.agent.serving.loaded_plans import LoadedPlans
from edgepart.agent.serving.request_gatherer import RequestGatherer
from edgepart.agent.serving.requester import Requester
from edgepart.agent.serving.resumption import Resumptions
from edgepart.agent.serving.sequences import Sequences
from edgepart.agent.serving.shape_routing import ShapeRouter
from edgepart.agent.serving.state_carrier import StateCarrier
from edgepart.agent.serving.state_exchange import StateExchange
from edgepart.agent.state_files import StateFiles
from edgepart.agent.storage.integrity import StoreIntegrity
from edgepart.agent.storage.store import Source, Store
from edgepart.agent.storage.write_queue import DiskQueue
from edgepart.agent.text.chat_template import TemplateProcess
from edgepart.agent.text.sample_text import sample_blocks
from edgepart.agent.text.text_generator import TextGenerator
from edgepart.agent.text.token_sequences import TokenSequences
from edgepart.agent.trace.recorder import Recorder
from edgepart.agent.verify.admitted_programs import AdmittedPrograms
from edgepart.agent.verify.engine_trials import EngineTrials
from edgepart.agent.verify.reference_process import ReferenceProcess
from edgepart.agent.verify.same_answer import differences
from edgepart.agent.verify.tryout import Tryout
from edgepart.agent.wire.address import Address
from edgepart.agent.wire.control import (
    ARRIVALS,
    CANDIDATES,
    DOORS,
    DRAINS,
    LEAVES,
    SPARES,
    STARVES,
    VERSIONS,
    Drain,
)
from edgepart.agent.wire.frames import Frame
from edgepart.agent.wire.inference import Epoch
from edgepart.agent.wire.queries import ONE_WAY
from edgepart.agent.workers.orders import WorkerSettings
from edgepart.agent.workers.supervisor import EngineWatch, Workers
from edgepart.planner.devices.cluster import Device

REST = 2.0
"""How long a device that computes requests rests after each piece of work on a coming plan, as a multiple of
the time that the work took. A larger factor slows requests down less, and delays plans more."""
TEXT_PACKAGES = ("jinja2", "tokenizers")
"""The packages of the extra `text`."""
SHARED_BYTES = 64 << 30
"""Address space for the values of one deployment if the machine does not say how much memory it has. Only what is used
takes memory."""


class Reactions(Protocol):
    """The calls by which the parts tell the agent what happens. All but `post` and `members_changed` may be
    made in any thread."""

    def frame(self, node: str, channel: str, frame: Frame) -> None: ...
    def link(self, node: str, up: bool, text: str) -> None: ...
    def post(self, event: events.Event) -> None: ...
    def core(self) -> Core: ...
    def engine_judged(self, verdicts: VerdictBook) -> None: ...
    def addresses(self) -> list[Address]: ...
    def link_bytes_s(self, node: str) -> float: ...
    def model_crashed(self, deployment: str, model: str, why: str) -> None: ...
    def members_changed(self, members: tuple[events.Member, ...]) -> None: ...
    def discharge(self, why: str) -> None: ...


@dataclass(frozen=True)
class AgentBase:
    """The parts that an agent has before it measures or starts anything."""

    options: AgentOptions
    name: str
    identity: Identity
    files: StateFiles
    drains: tuple[Drain, ...]
    store: Store
    integrity: StoreIntegrity
    disk: DiskQueue
    recorder: Recorder
    ending: AsyncExitStack
    """Undoes what was started, the last thing first."""
    log_lines: NumberedLog[LogLine]
    events: EventLog = field(default_factory=EventLog)

    def undo(self, stop: Callable[[], object]) -> None:
        """Have `stop` called in a thread when the agent ends."""
        self.ending.push_async_callback(asyncio.to_thread, stop)


@dataclass(frozen=True)
class LinkParts:
    """The links to other agents, and the parts that ask and answer over them."""

    hint_collector: HintCollector
    transport: Transport
    post: FrameDispatcher
    asks: RpcClient
    clocks: ClockExchange
    renewal: CertificateRenewal
    drain_signer: DrainSigner
    echoes: Echoes


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


@dataclass(frozen=True)
class LogicParts:
    """The cluster's logic, the driver that obeys it, and the doors for clients."""

    driver: Driver
    node: NodeApi
    http: HttpServer
    grpc: GrpcDoor
    http_address: Callable[[], str]
    tracing: TraceCollector
    maintenance: Maintenance


def make_links(base: AgentBase, react: Reactions) -> LinkParts:
    """Make the links and the parts that work over them. Nothing listens yet."""
    doorkeeper = Doorkeeper(base.identity, react.addresses, react.addresses)
    hint_collector = HintCollector(base.options, base.identity)
    base.undo(hint_collector.stop)
    transport = Transport(
        base.identity,
        react.frame,
        react.link,
        doorkeeper,
        recorder=base.recorder,
        carrier=hint_collector.carrier,
        witness=hint_collector,
    )
    base.undo(transport.stop)
    post = FrameDispatcher(base.identity.node_id, transport.send)
    asks = RpcClient(post.data)
    renewal = CertificateRenewal(base.identity, transport, post.control, asks.ask)
    renewal.put_out = react.discharge
    hint_collector.revoked_nodes = lambda: renewal.revoked_nodes
    echoes = Echoes(post.arrays)
    base.undo(echoes.stop)
    drain_signer = DrainSigner(base.identity, asks.ask, react.core)
    return LinkParts(
        hint_collector, transport, post, asks, ClockExchange(post.control), renewal, drain_signer, echoes
    )


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


@dataclass(frozen=True)
class About:
    """The parts that describe this device to people."""

    me: NodeIdentity
    diagnostics: Diagnostics


def make_logic(
    base: AgentBase,
    links: LinkParts,
    compute: ComputeParts,
    react: Reactions,
    listen: Address,
    listener: socket.socket,
) -> LogicParts:
    """Make the cluster's logic of an agent that listens at `listen`, and HTTP on `listener`. Nothing runs
    yet."""
    port: Address = listener.getsockname()[:2]

    def address() -> str:
        return f"http://{own_addresses(port)[0]}"

    core = _make_core(base, links, compute, listen, address())
    router = ShapeRouter(core, compute.requester, react.post)
    base.ending.callback(router.stop)
    about, tracing = _make_about(base, links, compute, core, listen, lambda: http.url, lambda: grpc)
    tokens = _make_token_sequences(compute, core, router)
    node = _make_node(base, links, compute, react, core, router, tokens, about)
    base.ending.push_async_callback(node.stop)
    options = base.options
    gateway = Gateway(
        node,
        lambda: links.renewal.credential,
        BodyLimits(client_rate=options.client_rate, client_burst=2 * options.client_rate),
        recorder=base.recorder,
        inference=options.inference,
    )
    grpc = GrpcDoor(gateway, options.grpc, partial(bind, option="--grpc"), reachable_text)
    generator = _make_text(base, compute, core, tokens)
    text = None if generator is None else CandidateTexts(generator, node.trials)
    http = HttpServer(gateway, listener=listener, spool=base.store.root / "partial", text=text)
    driver = _make_driver(base, links, compute, react, core, node)
    return LogicParts(
        driver, node, http, grpc, address, tracing, _make_maintenance(base, compute, core, node, driver)
    )


def _make_text(
    base: AgentBase, compute: ComputeParts, core: Core, sequences: TokenSequences
) -> TextGenerator | None:
    """Make the part that generates text; None if the packages for that are not installed."""
    if any(find_spec(package) is None for package in TEXT_PACKAGES):
        return None
    templates = TemplateProcess()
    base.undo(templates.stop)
    deployments = AgentTextDeployments(core, compute.requester, compute.fetching.files)
    return TextGenerator(deployments, sequences, templates)


def _make_token_sequences(compute: ComputeParts, core: Core, router: ShapeRouter) -> TokenSequences:
    requester = compute.requester

    def room(deployment: str) -> int:
        entry = core.deployments.get(deployment)
        return entry.options.sequences if entry is not None else 1

    def tolerance(deployment: str) -> float | None:
        entry = core.deployments.get(deployment)
        return entry.options.batch_tolerance if entry is not None else None

    return TokenSequences(
        router.infer,
        requester.run,
        requester.name_sequence,
        requester.end_sequence,
        room,
        requester.serving,
        compute.resumptions.resume,
        tolerance,
    )


def _make_about(
    base: AgentBase,
    links: LinkParts,
    compute: ComputeParts,
    core: Core,
    listen: Address,
    url: Callable[[], str],
    grpc: Callable[[], GrpcDoor],
) -> tuple[About, TraceCollector]:
    me = NodeIdentity(
        base.name, base.identity.fingerprint, url, lambda: grpc().address, lambda: grpc().trouble
    )
    members, serving = core.membership.members, core.follower.serving_orders
    tracing = TraceCollector(core.node, base.recorder, links.asks, links.clocks, members, serving)
    doctor = DoctorReport(
        me.name,
        me.fingerprint,
        base.options,
        listen,
        core,
        compute.plans,
        links.hint_collector,
        links.renewal.warnings,
        lambda: (grpc().address, grpc().trouble),
    )
    disk = lambda: disk_document(base.files, base.disk)  # noqa: E731
    told = Diagnostics(
        tracing,
        doctor,
        links.renewal.document,
        disk,
        base.events,
        base.log_lines,
        lambda: {node: asdict(traffic) for node, traffic in links.transport.traffic().items()},
    )
    return About(me, told), tracing


def _make_core(base: AgentBase, links: LinkParts, compute: ComputeParts, listen: Address, http: str) -> Core:
    files = base.files
    files.keep(incarnation=files.incarnation + 1)
    issuer = [ISSUER] if base.identity.is_issuer else []
    facts = OwnFacts(
        node=base.identity.node_id,
        name=base.name,
        boot=links.transport.boot,
        incarnation=files.incarnation,
        listen=own_addresses(listen),
        http=http,
        version=".".join(
            (
                with_trace_support(__version__),
                LEAVES,
                DRAINS,
                CHARTERS,
                SPARES,
                STARVES,
                VERSIONS,
                ARRIVALS,
                DOORS,
                CANDIDATES,
                ONE_WAY,
                *issuer,
            )
        ),
    )
    return Core(
        facts,
        asyncio.get_running_loop().time(),
        term=files.term,
        deployments=files.deployments(),
        models=base.store.models(),
        kept=files.plans(),
        profiles=compute.profiles,
        drifts=compute.drifts,
        drains=base.drains,
        spares=base.options.spares,
        card_fault=find_card_fault,
        genuine=links.drain_signer.genuine,
        tries=True,
    )


def _make_node(
    base: AgentBase,
    links: LinkParts,
    compute: ComputeParts,
    react: Reactions,
    core: Core,
    router: ShapeRouter,
    tokens: TokenSequences,
    about: About,
) -> NodeApi:
    executor, requester, aside = compute.executor, compute.requester, compute.aside
    return NodeApi(
        about.me,
        core,
        RequestServing(
            compute.plans,
            router,
            RequestGatherer(router, differences),
            Sequences(router.infer, requester.name_sequence, requester.end_sequence, requester.serving),
            tokens,
            executor.count_sequences,
            lambda: compute.carrier.mirrored_bytes,
            requester.latencies,
            lambda: executor.counters().requests_done,
            compute.workers.deaths,
        ),
        ModelFiles(
            base.store,
            lambda path, options: aside.do(model_process.examine_model, path, options),
            compute.fetching.model,
        ),
        ManagementActions(react.post, links.drain_signer.seal, base.disk.caught_up),
        about.diagnostics,
    )


def _make_driver(
    base: AgentBase, links: LinkParts, compute: ComputeParts, react: Reactions, core: Core, node: NodeApi
) -> Driver:
    tryout = Tryout(compute.requester, compute.plans.held, compute.referee, compute.room_bytes, sample_blocks)

    def plan_facts(name: str, epoch: Epoch) -> ServingPlanFacts | None:
        held = compute.plans.held(name, epoch)
        if held is None:
            return None
        plan = held.plan
        return ServingPlanFacts(tuple(plan.programs), plan.strategy, plan.predicted_latency_s, plan.why)

    story = ClusterStory(base.events, plan_facts, base.identity.node_id)
    return Driver(
        core,
        DriverParts(
            links.transport,
            links.post,
            compute.plans,
            PlanProcess(base.store.root, base.identity.node_id),
            compute.fetching,
            base.store,
            base.files,
            base.disk,
            react.members_changed,
            node.standing_changed,
            react.discharge,
            tryout,
            lambda thing: story.hear(thing, time.time()),
        ),
    )


def _make_maintenance(
    base: AgentBase, compute: ComputeParts, core: Core, node: NodeApi, driver: Driver
) -> Maintenance:
    return Maintenance(
        MaintainedState(
            core,
            base.files,
            base.disk,
            base.store,
            base.integrity,
            compute.plans,
            compute.fetching,
            lambda: node.intake.uploading,
            driver.post,
            driver.caught_up,
        )
    )
