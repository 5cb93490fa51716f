"""Cards: what a device and its links can do, as text that members exchange, and a cluster put together from them.

Rules only: probe.py measures, the service sends.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from edgepart.agent.wire.control import Card
from edgepart.planner.devices.cluster import LEAST, MOST, Cluster, Device, Link, Medium, from_json, to_json
from edgepart.planner.devices.equal_devices import levelled
from edgepart.planner.errors import FrameError, UsageError
from edgepart.planner.json_text import parse_json

NOISE = 0.3
"""A link or device whose numbers moved by less than this part is the same; more would make every breeze a replan."""


SHARED = 0.8
"""Devices that can send less than this part of what their links promise when all do at once have something in common."""


@dataclass(frozen=True)
class SharedMedia:
    """What devices can send when all of them do."""

    nodes: frozenset[str]
    """Node ids."""
    bytes_per_s: float
    """All of them, in all directions, in messages as devices send that share a layer."""
    message_s: float
    """What a message without payload then takes from one device to another."""


@dataclass(frozen=True)
class MeasuredDevice:
    """One device's card, read."""

    device: Device
    links: Mapping[str, Link] = field(default_factory=dict)
    """By the other side's node id: as this device measured them."""
    together: SharedMedia | None = None
    """As this device measured it, if it did."""


def write(measured: MeasuredDevice) -> bytes:
    """The document of a Card: cluster.json's words, links by node id."""
    document = to_json(Cluster((measured.device,)))["devices"][0]
    links = {node: asdict(link) for node, link in sorted(measured.links.items())}
    card = {"device": document, "links": links}
    if (together := measured.together) is not None:
        card["together"] = asdict(together) | {"nodes": sorted(together.nodes)}
    return json.dumps(card, sort_keys=True).encode()


def read(document: bytes) -> MeasuredDevice:
    """FrameError where the document is no card."""
    try:
        parsed = parse_json(document)
        cluster = from_json({"devices": [parsed["device"]]})
        links = {str(node): Link(**_numbers(entry)) for node, entry in parsed["links"].items()}
        together = _together(parsed["together"]) if "together" in parsed else None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, UsageError) as error:
        raise FrameError(f"a card that cannot be read: {error}") from error
    return MeasuredDevice(cluster.devices[0], links, together)


def fault(document: bytes) -> str:
    """Why nobody can plan with the device of this card; "" where it can be read."""
    try:
        read(document)
    except FrameError as error:
        return str(error)
    return ""


def _together(entry: Mapping[str, Any]) -> SharedMedia:
    nodes, rates = entry["nodes"], [float(entry[key]) for key in ("bytes_per_s", "message_s")]
    if not all(LEAST <= rate <= MOST for rate in rates) or not all(isinstance(n, str) for n in nodes):
        raise ValueError(f"together {entry}")
    return SharedMedia(frozenset(nodes), *rates)


def _numbers(entry: Mapping[str, Any]) -> dict[str, float]:
    numbers = {key: float(value) for key, value in entry.items()}
    if not all(0 <= value <= MOST for value in numbers.values()) or numbers["bytes_per_s"] < LEAST:
        raise ValueError(f"link {numbers}")
    return numbers


def cluster_of(cards: Iterable[Card], names: Mapping[str, str]) -> Cluster:
    """The devices that have a card and a name, in the cards' order, with every link that either end measured.

    `names` gives the device's name in the plan by node id. A link measured from both ends takes the worse of each number;
    equal boxes are taken to be equally fast (planner/devices/equal_devices.py).
    """
    measured = {names[card.node]: read(card.document) for card in cards if card.node in names}
    links: dict[tuple[str, str], Link] = {}
    for name, one in measured.items():
        for node, link in one.links.items():
            other = names.get(node)
            if other in measured and other != name:
                pair = (min(name, other), max(name, other))
                links[pair] = _worse(links.get(pair, link), link)
    devices = levelled([replace(one.device, name=name) for name, one in measured.items()])
    cluster = Cluster(devices, links)
    crowds = [one.together for one in measured.values() if one.together is not None]
    return _sharing(cluster, crowds, names)


SHARE = "what all share"


def _sharing(cluster: Cluster, crowds: Iterable[SharedMedia], names: Mapping[str, str]) -> Cluster:
    """With what devices share, where those measured together sent less than their cards can. Of several measurements the
    one with most of the devices counts, and of these the fastest: what disturbs one only makes it slower."""
    cards = cluster.card_bytes_per_s
    found = [({names[n] for n in crowd.nodes if names.get(n) in cards}, crowd) for crowd in crowds]
    found = [(present, crowd) for present, crowd in found if len(present) > 1]
    if not found:
        return cluster
    present, crowd = max(found, key=lambda one: (len(one[0]), one[1].bytes_per_s))
    each, usual = crowd.bytes_per_s / len(crowd.nodes), sum(map(cards.__getitem__, present)) / len(present)
    if each >= SHARED * usual:
        return cluster
    medium = Medium(SHARE, crowd.bytes_per_s, frozenset(present))
    links = {
        pair: _crowded(link, crowd) if present.issuperset(pair) else link
        for pair, link in cluster.links.items()
    }
    return replace(cluster, links=links, media=(medium,))


def _crowded(link: Link, crowd: SharedMedia) -> Link:
    """As it is when others send too, which in a division they do at the same time."""
    return replace(link, latency_s=max(link.latency_s, crowd.message_s - 2 * link.message_s))


def _worse(one: Link, two: Link) -> Link:
    return Link(
        min(one.bytes_per_s, two.bytes_per_s),
        max(one.latency_s, two.latency_s),
        max(one.message_s, two.message_s),
    )


def differs(old: MeasuredDevice, new: MeasuredDevice) -> bool:
    """Whether a planner may care: another set of links, or a number that moved by more than NOISE."""
    if old.links.keys() != new.links.keys():
        return True
    was, now = old.together, new.together
    if (was and was.nodes) != (now and now.nodes):
        return True
    pairs: Sequence[tuple[float, float]] = [
        (old.device.flops_per_s, new.device.flops_per_s),
        (old.device.memory_bytes_per_s, new.device.memory_bytes_per_s),
        (old.device.memory_bytes, new.device.memory_bytes),
        *((old.links[node].bytes_per_s, link.bytes_per_s) for node, link in new.links.items()),
        *([(was.bytes_per_s, now.bytes_per_s), (was.message_s, now.message_s)] if was and now else []),
        *((old.links[node].latency_s + 1e-3, link.latency_s + 1e-3) for node, link in new.links.items()),
    ]
    return any(abs(a - b) > NOISE * max(a, b) for a, b in pairs)
