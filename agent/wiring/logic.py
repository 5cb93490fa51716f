"""Wiring of the cluster's logic: its core, the driver that obeys it, the upkeep of the state folder, and in front of it the
doors for clients. Door: the clock."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from edgepart import __version__
from edgepart.agent.api.node import NodeApi
from edgepart.agent.chronicle.cluster_story import ClusterStory, ServingPlanFacts
from edgepart.agent.cluster.core.core import Core
from edgepart.agent.cluster.membership.own_state import OwnFacts
from edgepart.agent.cluster.state.cards import find_card_fault
from edgepart.agent.driver import Driver, DriverParts
from edgepart.agent.maintenance import MaintainedState, Maintenance
from edgepart.agent.measure.trace_collector import with_trace_support
from edgepart.agent.net.endpoints import own_addresses
from edgepart.agent.planwork.plan_process import PlanProcess
from edgepart.agent.security.charter import CHARTERS, ISSUER
from edgepart.agent.text.sample_text import sample_blocks
from edgepart.agent.verify.tryout import Tryout
from edgepart.agent.wire.address import Address
from edgepart.agent.wire.control import ARRIVALS, CANDIDATES, DOORS, DRAINS, LEAVES, SPARES, STARVES, VERSIONS
from edgepart.agent.wire.inference import Epoch
from edgepart.agent.wire.queries import ONE_WAY
from edgepart.agent.wiring.base import AgentBase, Reactions
from edgepart.agent.wiring.clients import ClientParts, make_clients
from edgepart.agent.wiring.computation import ComputeParts
from edgepart.agent.wiring.links import LinkParts


@dataclass(frozen=True)
class LogicParts:
    """The cluster's logic, the driver that obeys it, and the doors for clients."""

    driver: Driver
    clients: ClientParts
    http_address: Callable[[], str]
    maintenance: Maintenance


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
    clients = make_clients(base, links, compute, react, core, listen, listener)
    driver = _make_driver(base, links, compute, react, core, clients.node)
    maintenance = _make_maintenance(base, compute, core, clients.node, driver)
    return LogicParts(driver, clients, address, maintenance)


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
