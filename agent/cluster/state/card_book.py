"""The card book: the cards of the devices that can be planned with. Rules, without I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping

from edgepart.agent.cluster.state.events import MemberDistrusted
from edgepart.agent.wire.control import Card


class CardBook(Mapping[str, Card]):
    """The last card of each device, by node, as far as it can be read."""

    def __init__(self, find_fault: Callable[[bytes], str]) -> None:
        """`find_fault` returns what is wrong with a card's document; "" if nothing is."""
        self.faults: dict[str, str] = {}
        """Why a card cannot be used, by node: plans are made without that device."""
        self.digests: dict[str, str] = {}
        """The digest of each card's document, by node."""
        self._find_fault = find_fault
        self._cards: dict[str, Card] = {}

    def __getitem__(self, node: str) -> Card:
        return self._cards[node]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cards)

    def __len__(self) -> int:
        return len(self._cards)

    def take(self, card: Card) -> list[MemberDistrusted]:
        """Take a device's card in place of the one before. If it cannot be read, the device has none."""
        if self._cards.get(card.node) == card:
            return []
        if fault := self._find_fault(card.document):
            known = self.faults.get(card.node)
            self.forget(card.node)
            self.faults[card.node] = fault
            why = f"plans are made without it: {fault}"
            return [] if known == fault else [MemberDistrusted(card.node, why)]
        self.faults.pop(card.node, None)
        self._cards[card.node] = card
        self.digests[card.node] = hashlib.sha256(card.document).hexdigest()[:16]
        return []

    def forget(self, node: str) -> None:
        """Forget a device's card: the device is gone."""
        self._cards.pop(node, None)
        self.faults.pop(node, None)
        self.digests.pop(node, None)
