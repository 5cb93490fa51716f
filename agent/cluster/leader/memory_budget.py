"""Memory budget: the memory that the plans of all deployments take of each device. Rules, without I/O.

Each plan is made for the memory that the others leave. Plans are computed one after another while deployments
come and go, so the memory is checked again when a plan has been computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from edgepart.agent.cluster.state.cards import parse_card
from edgepart.agent.cluster.state.events import PlanComputed
from edgepart.agent.wire.control import Card, Prepare

BytesByNode = Mapping[str, int]


def sum_memory_bytes(orders: Iterable[Prepare]) -> dict[str, int]:
    """The memory that these plans take of each device together, in bytes by node."""
    found: dict[str, int] = {}
    for order in orders:
        nodes = dict(order.names)
        for name, nbytes in order.memory_bytes:
            if name in nodes:
                found[nodes[name]] = found.get(nodes[name], 0) + nbytes
    return found


def plan_fits(result: PlanComputed, others: BytesByNode, cards: Mapping[str, Card]) -> bool:
    """Whether every device of the plan has room for the plan beside the other plans."""
    nodes = {name: node for node, name, _ in result.key.devices}
    return all(
        nodes[name] not in cards
        or nbytes + others.get(nodes[name], 0) <= _memory_bytes(cards[nodes[name]].document)
        for name, nbytes in result.memory_bytes
    )


def plans_fit(orders: Iterable[Prepare], cards: Mapping[str, Card]) -> bool:
    """Whether every device has room for all of these plans together."""
    return all(
        nbytes <= _memory_bytes(cards[node].document)
        for node, nbytes in sum_memory_bytes(orders).items()
        if node in cards
    )


@lru_cache(256)
def _memory_bytes(document: bytes) -> float:
    return parse_card(document).device.memory_bytes
