"""Offers: what can be bought for a cluster, with prices, and the cluster with what was bought. Facts and rules; the file
with the offers is opened elsewhere (cli/planning/advise.py).

A box that is bought joins where the gateway is: over links like the gateway's, through the media that the gateway is on,
and at most as fast as the box's own port. A network that is bought takes the place of every slower link between the boxes
that are there, even if it leads over other boxes, and of slower media; for that, all boxes have to be in reach of its
cables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from edgepart.planner.devices.boards import KINDS, PLAN_MEMORY_SHARE
from edgepart.planner.devices.cluster import Cluster, Link
from edgepart.planner.devices.fields import list_at, mapping_at, positive_at, text_at
from edgepart.planner.devices.what_if import Addition, add_device, free_name
from edgepart.planner.errors import UsageError

SCHEMA = "edgepart-catalogue/1"

MOST_OFFERS = 200
"""The most offers of a catalogue: each one costs a search."""


@dataclass(frozen=True)
class BoxOffer:
    """A box to add."""

    name: str
    price_eur: float
    dated: str
    """When the price was true, as year and month."""
    source: str
    """Where the price is from, and what it includes."""
    kind: str
    """A kind of planner/devices/boards.py, or one that the cluster has."""
    memory_bytes: float
    """The built-in memory."""
    bytes_per_s: float
    """What its own network port carries."""
    latency_s: float
    """The least latency of its own network port."""
    known_as: tuple[str, ...] = ()
    """The kinds that agents on such a box report. If the cluster has one, its measured speed counts."""


@dataclass(frozen=True)
class NetworkOffer:
    """A network in place of slower links between all boxes that are there."""

    name: str
    price_eur: float
    """The price of what is needed once, such as a switch."""
    dated: str
    source: str
    each_eur: float
    """The price of what each box needs, such as a cable."""
    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True)
class MemoryOffer:
    """More memory for one box that can take it."""

    name: str
    price_eur: float
    dated: str
    source: str
    kinds: tuple[str, ...]
    """The kinds of boxes that can take it."""
    memory_bytes: float
    """The memory that the box then has built in."""


Offer = BoxOffer | NetworkOffer | MemoryOffer


@dataclass(frozen=True)
class Purchase:
    """One offer, bought once for a certain cluster."""

    offer: Offer
    price_eur: float
    device: str = ""
    """The device that gets the memory; "" for a box or a network."""

    def __str__(self) -> str:
        return f"{self.offer.name} for {self.device}" if self.device else self.offer.name


def offers_from_json(document: Any) -> tuple[Offer, ...]:
    """The offers of a parsed catalogue. Raises UsageError, naming the place, for a missing key or an impossible number."""
    root = mapping_at(document, "catalogue")
    if root.get("schema") != SCHEMA:
        raise UsageError(
            f"catalogue: expected {SCHEMA!r} under 'schema', found {str(root.get('schema'))[:40]!r}"
        )
    entries = list_at(root, "offers", "catalogue")
    if not 0 < len(entries) <= MOST_OFFERS:
        raise UsageError(f"catalogue: {len(entries)} offers; give 1 to {MOST_OFFERS}")
    offers = tuple(_offer(entry, f"offers[{number}]") for number, entry in enumerate(entries))
    names = [offer.name for offer in offers]
    if len(set(names)) < len(names):
        raise UsageError(f"catalogue: two offers share a name among {sorted(names)}; give each its own")
    return offers


def _offer(entry: Any, where: str) -> Offer:
    entry = mapping_at(entry, where)
    what = text_at(entry, "what", where)
    common = {key: text_at(entry, key, where) for key in ("name", "dated", "source")}
    price_eur = positive_at(entry, "price_eur", where, or_zero=True)
    if what == "box":
        return BoxOffer(
            **common,
            price_eur=price_eur,
            kind=text_at(entry, "kind", where),
            memory_bytes=positive_at(entry, "memory_bytes", where),
            bytes_per_s=positive_at(entry, "bytes_per_s", where),
            latency_s=positive_at(entry, "latency_s", where, or_zero=True),
            known_as=_names(entry, "known_as", where) if "known_as" in entry else (),
        )
    if what == "network":
        return NetworkOffer(
            **common,
            price_eur=price_eur,
            each_eur=positive_at(entry, "each_eur", where, or_zero=True),
            bytes_per_s=positive_at(entry, "bytes_per_s", where),
            latency_s=positive_at(entry, "latency_s", where, or_zero=True),
        )
    if what == "memory":
        return MemoryOffer(
            **common,
            price_eur=price_eur,
            kinds=_names(entry, "kinds", where),
            memory_bytes=positive_at(entry, "memory_bytes", where),
        )
    raise UsageError(f"{where}: expected box, network or memory under 'what', found {what[:40]!r}")


def _names(entry: Any, key: str, where: str) -> tuple[str, ...]:
    names = list_at(entry, key, where)
    if not all(isinstance(name, str) and name for name in names):
        raise UsageError(f"{where}: expected kinds of devices under {key!r}")
    return tuple(names)


def purchases_for(cluster: Cluster, offers: Sequence[Offer]) -> Iterator[Purchase]:
    """Yields what of the offers can be bought for the cluster: memory once for each device that can take it and has less.
    Raises UsageError for a box of a kind of which neither the cluster nor planner/devices/boards.py knows the speed."""
    for offer in offers:
        if isinstance(offer, NetworkOffer):
            yield Purchase(offer, offer.price_eur + offer.each_eur * len(cluster.devices))
        elif isinstance(offer, BoxOffer):
            if offer.kind not in KINDS and not measured_kind(offer, cluster):
                known = sorted({*KINDS, *(device.kind for device in cluster.devices)})
                raise UsageError(
                    f"catalogue: {offer.name}: there is no kind {offer.kind!r}; there are {', '.join(known)}"
                )
            yield Purchase(offer, offer.price_eur)
        else:
            for device in cluster.devices:
                if (
                    device.kind in offer.kinds
                    and device.memory_bytes < PLAN_MEMORY_SHARE * offer.memory_bytes
                ):
                    yield Purchase(offer, offer.price_eur, device.name)


def buy(cluster: Cluster, gateway: str, purchases: Sequence[Purchase]) -> tuple[Cluster, frozenset[str]]:
    """The cluster with all of the purchases, and the names of the boxes that are new. Boxes join last, so that a network
    that is bought links them too, as fast as their own ports."""
    for one in purchases:
        if isinstance(one.offer, NetworkOffer):
            cluster = _with_network(cluster, one.offer)
        elif isinstance(one.offer, MemoryOffer):
            cluster = _with_memory(cluster, one.offer, one.device)
    there = {device.name for device in cluster.devices}
    for one in purchases:
        if isinstance(one.offer, BoxOffer):
            cluster = _with_box(cluster, one.offer, gateway)
    return cluster, frozenset(device.name for device in cluster.devices) - there


def measured_kind(box: BoxOffer, cluster: Cluster) -> str:
    """The kind by which the cluster has such a box already, and has measured its speed; "" if it has none."""
    known = {box.kind, *box.known_as}
    return next((device.kind for device in cluster.devices if device.kind in known), "")


def replaces_something(network: NetworkOffer, cluster: Cluster) -> bool:
    """Whether some link, or a medium that links share, is slower than the network."""
    names = [device.name for device in cluster.devices]
    links = [cluster.link(a, b) for a, b in permutations(names, 2)]
    rates = [*(link.bytes_per_s for link in links), *(medium.bytes_per_s for medium in cluster.media)]
    return len(names) > 1 and min(rates) < network.bytes_per_s


def _with_network(cluster: Cluster, network: NetworkOffer) -> Cluster:
    def faster(link: Link) -> Link:
        if link.bytes_per_s >= network.bytes_per_s:
            return link
        latency_s = min(link.latency_s, network.latency_s)
        return replace(link, bytes_per_s=network.bytes_per_s, latency_s=latency_s)

    return replace(
        cluster,
        links={pair: faster(link) for pair, link in cluster.links.items()},
        default_link=faster(cluster.default_link),
        media=tuple(medium for medium in cluster.media if medium.bytes_per_s >= network.bytes_per_s),
        routes={
            ends: way
            for ends, way in cluster.routes.items()
            if cluster.link(*ends).bytes_per_s >= network.bytes_per_s
        },
    )


def _with_memory(cluster: Cluster, memory: MemoryOffer, name: str) -> Cluster:
    kept = PLAN_MEMORY_SHARE * memory.memory_bytes
    devices = tuple(
        replace(device, memory_bytes=max(kept, device.memory_bytes)) if device.name == name else device
        for device in cluster.devices
    )
    return replace(cluster, devices=devices)


def _with_box(cluster: Cluster, box: BoxOffer, gateway: str) -> Cluster:
    name = free_name(box.kind, [device.name for device in cluster.devices])
    kind = measured_kind(box, cluster) or box.kind
    devices = add_device(cluster, Addition(kind, name, box.bytes_per_s, box.memory_bytes)).devices
    beside = cluster.with_copy_of(gateway, name)

    def through_port(link: Link) -> Link:
        rate, latency_s = min(link.bytes_per_s, box.bytes_per_s), max(link.latency_s, box.latency_s)
        return replace(link, bytes_per_s=rate, latency_s=latency_s)

    links = {pair: through_port(link) if name in pair else link for pair, link in beside.links.items()}
    return replace(beside, devices=devices, links=links)
