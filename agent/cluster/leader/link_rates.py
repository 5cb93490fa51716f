"""Link rates: how fast devices send to each other, by their cards. Rules, without I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

from edgepart.agent.cluster.state.cards import parse_card
from edgepart.agent.wire.control import Card


def slowest_bytes_per_s(nodes: Collection[str], cards: Mapping[str, Card]) -> float:
    """The rate of the slowest link between two of these nodes, in its slower direction, that one of them has measured; 0 if
    none has."""
    rates = [
        rate
        for node in nodes
        if node in cards
        for other, rate in _rates(cards[node].document)
        if other in nodes
    ]
    return min(rates, default=0.0)


@lru_cache(256)
def _rates(document: bytes) -> tuple[tuple[str, float], ...]:
    card = parse_card(document)
    return tuple((node, min(card.rates(node))) for node in card.links)
