"""Wiring of the doors for clients: HTTP, gRPC and text, and the part that answers what is asked there. Door: sockets,
processes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec

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
from edgepart.agent.cluster.core.core import Core
from edgepart.agent.doctor.report import DoctorReport
from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.gateway.limits import BodyLimits
from edgepart.agent.grpc.door import GrpcDoor
from edgepart.agent.http.server import HttpServer
from edgepart.agent.maintenance import disk_document
from edgepart.agent.measure.trace_collector import TraceCollector
from edgepart.agent.net.endpoints import bind, reachable_text
from edgepart.agent.planwork import model_process
from edgepart.agent.serving.request_gatherer import RequestGatherer
from edgepart.agent.serving.sequences import Sequences
from edgepart.agent.serving.shape_routing import ShapeRouter
from edgepart.agent.text.chat_template import TemplateProcess
from edgepart.agent.text.text_generator import TextGenerator
from edgepart.agent.text.token_sequences import TokenSequences
from edgepart.agent.verify.same_answer import differences
from edgepart.agent.wire.address import Address
from edgepart.agent.wiring.base import AgentBase, Reactions
from edgepart.agent.wiring.computation import ComputeParts
from edgepart.agent.wiring.links import LinkParts

TEXT_PACKAGES = ("jinja2", "tokenizers")
"""The packages of the extra `text`."""


@dataclass(frozen=True)
class ClientParts:
    """The doors for clients, and the part that answers what they ask."""

    node: NodeApi
    http: HttpServer
    grpc: GrpcDoor
    tracing: TraceCollector


@dataclass(frozen=True)
class About:
    """The parts that describe this device to people."""

    me: NodeIdentity
    diagnostics: Diagnostics


def make_clients(
    base: AgentBase,
    links: LinkParts,
    compute: ComputeParts,
    react: Reactions,
    core: Core,
    listen: Address,
    listener: socket.socket,
) -> ClientParts:
    """Make the doors for clients of an agent that listens at `listen`, with HTTP on `listener`. Nothing runs yet."""
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
    return ClientParts(node, http, grpc, tracing)


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
