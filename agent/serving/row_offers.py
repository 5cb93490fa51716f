"""Row offers: which devices have rows of a sequence, and from which of them one that goes on with it gets what it needs.
Rules: no rows here, only what there is.

Several devices may offer the same rows: the one that computed them, the one that mirrors it, and both by the plan before
that. What is here already is taken from here, and of the rest each row travels once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from edgepart.agent.execution.carried_states import PlanId
from edgepart.agent.wire.inference import RowsOf
from edgepart.planner.plans.plan import KeptPiece
from edgepart.planner.region import Region

READ_AGAIN = 1 / 100
"""The share of rows that may be read again so that others need not travel. A mirror lags behind by a few rows, and they are
read in less time than all rows take on a link. With less, copies are of less use while their device is still there; with
more, slow devices compute for longer than they would have waited."""


@dataclass(frozen=True, slots=True)
class RowOffer:
    """What a node has of the states of one device of a plan."""

    plan: PlanId
    """The plan by which the states were made."""
    device: str
    node: str
    """The device's own node, or one that mirrors it."""
    position: int
    """The number of rows of each piece."""
    pieces: Sequence[KeptPiece]
    """The device's pieces, as far as they are needed."""

    @property
    def row_bytes(self) -> int:
        """A measure of what has to travel for each row."""
        return sum(piece.nbytes for piece in self.pieces)


def choose_offers(
    wanted: Sequence[KeptPiece], offers: Collection[RowOffer], node: str, most: int
) -> tuple[RowOffer, ...]:
    """The offers from which `node` puts together nearly as many rows of all wanted pieces as there are, at most `most`,
    with the fewest bytes from other nodes; () if of some piece there are none. All of them are of one plan."""
    plans = {offer.plan for offer in offers}
    by_plan = {plan: [offer for offer in offers if offer.plan == plan] for plan in plans}
    furthest = max((reach(wanted, those, most) for those in by_plan.values()), default=0)
    least = furthest - int(furthest * READ_AGAIN)
    if not furthest:
        return ()
    able = [those for those in by_plan.values() if reach(wanted, those, most) >= least]
    found = [_without_needless(wanted, those, node, most, least) for those in able]
    return min(
        found, key=lambda those: (_travelling(those, node), -reach(wanted, those, most), _age(those[0]))
    )


def reach(wanted: Sequence[KeptPiece], offers: Collection[RowOffer], most: int) -> int:
    """How many rows of all wanted pieces can be put together from these offers."""
    positions = sorted({min(offer.position, most) for offer in offers}, reverse=True)
    return next((at for at in positions if _cover(wanted, [one for one in offers if one.position >= at])), 0)


def rows_by_node(chosen: Iterable[RowOffer], node: str) -> dict[str, RowsOf]:
    """Whose rows every node but `node` is to send, if these offers are taken."""
    devices: dict[tuple[str, PlanId], list[str]] = {}
    for offer in chosen:
        if offer.node != node:
            devices.setdefault((offer.node, offer.plan), []).append(offer.device)
    return {other: RowsOf(*plan, tuple(sorted(names))) for (other, plan), names in devices.items()}


def _without_needless(
    wanted: Sequence[KeptPiece], offers: Iterable[RowOffer], node: str, most: int, least: int
) -> tuple[RowOffer, ...]:
    """The offers without those that are not needed for so many rows. What travels goes first: of two that have the same
    rows, the one with fewer."""
    left = sorted(offers, key=lambda one: (one.node == node, one.position, -one.row_bytes, one.node))
    for offer in tuple(left):
        others = [one for one in left if one is not offer]
        if reach(wanted, others, most) >= (least if offer.node != node else reach(wanted, left, most)):
            left = others
    return tuple(left)


def _travelling(offers: Iterable[RowOffer], node: str) -> int:
    return sum(offer.row_bytes for offer in offers if offer.node != node)


def _age(offer: RowOffer) -> tuple[int, int]:
    """Less for a later plan."""
    epoch = offer.plan[1]
    return -epoch.term, -epoch.number


def _cover(wanted: Sequence[KeptPiece], offers: Iterable[RowOffer]) -> bool:
    """Whether the offers together have all of each wanted piece."""
    held: dict[str, list[Region]] = {}
    for offer in offers:
        for piece in offer.pieces:
            held.setdefault(piece.read.tensor, []).append(piece.read.region)
    # The layers of a model are alike, so that the same regions are compared again and again.
    pairs = {(piece.read.region, tuple(held.get(piece.read.tensor, ()))) for piece in wanted}
    return all(
        not whole.subtract_all(part for part in parts if part.rank == whole.rank) for whole, parts in pairs
    )
