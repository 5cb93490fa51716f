"""Wiring of links: the links to other agents, and the parts that ask and answer over them. Door: the network."""

from __future__ import annotations

from dataclasses import dataclass

from edgepart.agent.admission.joining import Doorkeeper
from edgepart.agent.admission.renewal import CertificateRenewal
from edgepart.agent.admission.signed_drains import DrainSigner
from edgepart.agent.discovery.hints import HintCollector
from edgepart.agent.measure.clock_exchange import ClockExchange
from edgepart.agent.measure.echoes import Echoes
from edgepart.agent.net.dispatch import FrameDispatcher
from edgepart.agent.net.rpc_client import RpcClient
from edgepart.agent.net.transport import Transport
from edgepart.agent.wiring.base import AgentBase, Reactions


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
