"""Advice: which offers to buy for a cluster, by what a planner predicts with them. Rules only; `predict` plans.

What is predicted is compared as requests a second: one over the latency, or the throughput. Today's plan stays possible
whatever is bought, so nothing is ever predicted to be slower than it. What gains less than predictions are off by does not
help.

Several things at once are found greedily, as in covering the most under a budget (Khuller, Moss and Naor 1999): what gains
most per euro is added first, and so on; the answer is the best of all that was tried and that the money is enough for,
single things too. The order of adding does not look at the money, so more money is never worse. The search is repeated
without what costs more than a limit, for several limits, so that something dear does not end it for cheaper things."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from edgepart.planner.devices.cluster import Cluster, Link
from edgepart.planner.devices.offers import BoxOffer, NetworkOffer, Purchase, buy, replaces_something
from edgepart.planner.report.explain import NOTABLE

MOST_STEPS = 4
"""How often something is added to what is bought at once. Each more is one more search for all that helps."""

LEAST_LIMIT_EUR = 64
"""The lowest limit of the price of one thing. Each further limit is twice as high."""

LITTLE = 0.1
"""A box that adds less than this part of the speed of all boxes is slow beside them."""


FREE_BYTES_PER_S = 1e15
"""The rate of a link that costs nothing."""


@dataclass(frozen=True)
class Expected:
    """What is predicted for a cluster."""

    per_s: float
    """Requests a second; 0 if nothing fits."""
    devices: frozenset[str]
    """The devices of the best plan."""
    limit: str
    """What takes most of the time, or why nothing fits."""


Predict = Callable[[Cluster], Expected]


@dataclass(frozen=True)
class RankedOffer:
    """What a purchase alone would give."""

    purchase: Purchase
    expected: Expected
    """Never below today's."""
    why_not: str
    """Why it would not help; "" if it helps."""
    network_bound: bool = False
    """Whether it is a box that would help if moving data took no time."""
    joins_bytes_per_s: float | None = None
    """The rate of the link between a new box and the gateway; None if it is no box."""


@dataclass(frozen=True)
class Basket:
    """Several things that are bought at once."""

    purchases: tuple[Purchase, ...]
    expected: Expected

    @property
    def price_eur(self) -> float:
        return sum(one.price_eur for one in self.purchases)


def is_notable(before: Expected, after: Expected) -> bool:
    """Whether the gain is more than predictions are off by."""
    return before.per_s < NOTABLE * after.per_s


class Adviser:
    """Ranks purchases for one cluster. Predictions are remembered."""

    def __init__(self, cluster: Cluster, gateway: str, predict: Predict) -> None:
        self._cluster = cluster
        self._gateway = gateway
        self._predict = predict
        self.today = predict(cluster)
        self._unhindered: Expected | None = None
        self._known: dict[tuple[str, ...], Expected] = {}

    def rank(self, purchases: Sequence[Purchase]) -> list[RankedOffer]:
        """Each purchase alone: first those that help, by gain per euro; then the others in the order given."""
        ranked = [self._alone(one) for one in purchases]
        nothing = Basket((), self.today)
        helpful = [one for one in ranked if not one.why_not]
        helpful.sort(key=lambda one: _worth(nothing, Basket((one.purchase,), one.expected)), reverse=True)
        return [*helpful, *(one for one in ranked if one.why_not)]

    def fill_basket(self, ranked: Sequence[RankedOffer], most_eur: float) -> Basket:
        """What to buy at once for at most `most_eur`, of what helps alone, or helps once the network is faster."""
        limits = [inf]
        while (limit_eur := LEAST_LIMIT_EUR * 2 ** (len(limits) - 1)) <= most_eur:
            limits.append(limit_eur)
        baskets = [
            self._add_greedily([one for one in ranked if one.purchase.price_eur <= limit_eur], most_eur)
            for limit_eur in limits
        ]
        return max(baskets, key=_merit)

    def _add_greedily(self, ranked: Sequence[RankedOffer], most_eur: float) -> Basket:
        """The best basket for at most `most_eur` of all that are tried while the one that gains most per euro, whatever it
        costs, is kept and added to."""
        best = kept = Basket((), self.today)
        trials = [Basket((one.purchase,), one.expected) for one in ranked if not one.why_not]
        pairs = [more for more in _additions(ranked, ()) if len(more) > 1]
        trials += [self._together(kept, more) for more in pairs]
        for _ in range(MOST_STEPS):
            affordable = [trial for trial in trials if trial.price_eur <= most_eur]
            best = max([best, *affordable], key=_merit)
            gains = [trial for trial in trials if is_notable(kept.expected, trial.expected)]
            if not affordable or not gains:
                break
            kept = max(gains, key=lambda trial: _worth(kept, trial))
            more = _additions(ranked, kept.purchases)
            if all(kept.price_eur + sum(one.price_eur for one in added) > most_eur for added in more):
                break
            trials = [self._together(kept, added) for added in more]
        return best

    def _alone(self, purchase: Purchase) -> RankedOffer:
        if why := self._why_useless(purchase):
            return RankedOffer(purchase, self.today, why)
        bought, new = buy(self._cluster, self._gateway, [purchase])
        joins = next((bought.link(name, self._gateway).bytes_per_s for name in new), None)
        found = self._predict(bought)
        if new <= found.devices and is_notable(self.today, found):
            return RankedOffer(purchase, found, "", joins_bytes_per_s=joins)
        if found.per_s and self._network_hinders(bought, new):
            why = "the network, not the boxes: it would help if moving data took no time"
            return RankedOffer(purchase, self.today, why, True, joins)
        return RankedOffer(purchase, self.today, self._why_not(bought, new, found), False, joins)

    def _why_useless(self, purchase: Purchase) -> str:
        """Why a network takes the place of nothing; "" for other purchases, and if it does."""
        offer = purchase.offer
        if not isinstance(offer, NetworkOffer) or replaces_something(offer, self._cluster):
            return ""
        return "all links are as fast already" if len(self._cluster.devices) > 1 else "there is one box"

    def _together(self, kept: Basket, more: tuple[Purchase, ...]) -> Basket:
        """The basket with more in it. If something of that is not used, nothing is gained."""
        purchases = (*kept.purchases, *more)
        bought, new = buy(self._cluster, self._gateway, purchases)
        key = tuple(sorted(map(str, purchases)))
        found = self._known[key] = self._known.get(key) or self._predict(bought)
        is_better = found.per_s > kept.expected.per_s and new <= found.devices
        return Basket(purchases, found if is_better else kept.expected)

    def _network_hinders(self, bought: Cluster, new: frozenset[str]) -> bool:
        """Whether a new box would help if moving data took no time."""
        if not new:
            return False
        if self._unhindered is None:
            self._unhindered = self._predict(_without_waiting(self._cluster))
        without = self._predict(_without_waiting(bought))
        return new <= without.devices and is_notable(self._unhindered, without)

    def _why_not(self, bought: Cluster, new: frozenset[str], found: Expected) -> str:
        if not found.per_s:
            return f"the model does not fit with it either: {found.limit}"
        if not new:
            return f"not what takes the time ({self.today.limit})"
        if new <= found.devices and found.per_s > self.today.per_s:
            return (
                f"gains {found.per_s / self.today.per_s - 1:.1%}, which is less than predictions are off by"
            )
        speeds = {device.name: device.flops_per_s for device in bought.devices}
        part = sum(speeds[name] for name in new) / sum(speeds.values())
        if part < LITTLE:
            return f"too slow beside the others: {part:.1%} of the speed of all"
        return "the model does not divide further: even if moving data took no time, it would give little"


def _without_waiting(cluster: Cluster) -> Cluster:
    """The cluster whose links cost nothing."""
    return Cluster(cluster.devices, {}, Link(FREE_BYTES_PER_S, 0.0, 0.0))


def _merit(basket: Basket) -> tuple[float, float]:
    return basket.expected.per_s, -basket.price_eur


def _worth(kept: Basket, more: Basket) -> tuple[float, float]:
    """The gain per euro of what is more in a basket, and the gain."""
    gain, price_eur = more.expected.per_s - kept.expected.per_s, more.price_eur - kept.price_eur
    return gain / price_eur if price_eur else inf, gain


def _additions(ranked: Sequence[RankedOffer], kept: Sequence[Purchase]) -> list[tuple[Purchase, ...]]:
    """What to add to what is kept: what helps alone, networks and memory once; and boxes that only the network keeps from
    helping, with a network unless one is kept."""
    networks = [one.purchase for one in ranked if isinstance(one.purchase.offer, NetworkOffer)]
    has_network = any(isinstance(one.offer, NetworkOffer) for one in kept)
    found: list[tuple[Purchase, ...]] = []
    for one in ranked:
        if isinstance(one.purchase.offer, BoxOffer):
            if _is_outdone(one, ranked):
                continue
            if not one.why_not or (one.network_bound and has_network):
                found.append((one.purchase,))
            elif one.network_bound:
                found += [(network, one.purchase) for network in networks]
        elif not one.why_not and one.purchase not in kept:
            found.append((one.purchase,))
    return found


def _is_outdone(one: RankedOffer, ranked: Sequence[RankedOffer]) -> bool:
    """Whether a cheaper box of the same kind gives as much."""
    offer, price_eur = one.purchase.offer, one.purchase.price_eur
    return any(
        isinstance(offer, BoxOffer)
        and isinstance(other.purchase.offer, BoxOffer)
        and offer.kind == other.purchase.offer.kind
        and other.purchase.price_eur < price_eur
        and other.expected.per_s >= one.expected.per_s
        and (not other.why_not or other.network_bound)
        for other in ranked
    )
