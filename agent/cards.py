"""Cards: what a device and its links can do, as text that members exchange, and a cluster put together from them.

Rules only: probe.py measures, the service sends.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from edgepart.agent.control import Card
from edgepart.planner.cluster import Cluster, Device, Link, from_json, to_json
from edgepart.planner.errors import FrameError, UsageError

NOISE = 0.3
"""A link or device whose numbers moved by less than this part is the same; more would make every breeze a replan."""


@dataclass(frozen=True)
class Measured:
    """One device's card, read."""

    device: Device
    links: Mapping[str, Link] = field(default_factory=dict)
    """By the other side's node id: as this device measured them."""


def write(measured: Measured) -> bytes:
    """The document of a Card: cluster.json's words, links by node id."""
    document = to_json(Cluster((measured.device,)))["devices"][0]
    links = {node: asdict(link) for node, link in sorted(measured.links.items())}
    return json.dumps({"device": document, "links": links}, sort_keys=True).encode()


def read(document: bytes) -> Measured:
    """FrameError where the document is no card."""
    try:
        parsed = json.loads(document)
        cluster = from_json({"devices": [parsed["device"]]})
        links = {str(node): Link(**_numbers(entry)) for node, entry in parsed["links"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise FrameError(f"a card that cannot be read: {error}") from error
    return Measured(cluster.devices[0], links)


def _numbers(entry: Mapping[str, Any]) -> dict[str, float]:
    numbers = {key: float(value) for key, value in entry.items()}
    if not all(0 <= value < float("inf") for value in numbers.values()) or numbers["bytes_per_s"] <= 0:
        raise ValueError(f"link {numbers}")
    return numbers


def cluster_of(cards: Iterable[Card], names: Mapping[str, str]) -> Cluster:
    """The devices that have a card and a name, in the cards' order, with every link that either end measured.

    `names` gives the device's name in the plan by node id. A link measured from both ends takes the worse of each number.
    """
    measured = {names[card.node]: read(card.document) for card in cards if card.node in names}
    links: dict[tuple[str, str], Link] = {}
    for name, one in measured.items():
        for node, link in one.links.items():
            other = names.get(node)
            if other in measured and other != name:
                pair = (min(name, other), max(name, other))
                links[pair] = _worse(links.get(pair, link), link)
    devices = tuple(replace(one.device, name=name) for name, one in measured.items())
    return Cluster(devices, links)


def _worse(one: Link, two: Link) -> Link:
    return Link(
        min(one.bytes_per_s, two.bytes_per_s),
        max(one.latency_s, two.latency_s),
        max(one.message_s, two.message_s),
    )


def differs(old: Measured, new: Measured) -> bool:
    """Whether a planner may care: another set of links, or a number that moved by more than NOISE."""
    if old.links.keys() != new.links.keys():
        return True
    pairs: Sequence[tuple[float, float]] = [
        (old.device.flops_per_s, new.device.flops_per_s),
        (old.device.memory_bytes_per_s, new.device.memory_bytes_per_s),
        (old.device.memory_bytes, new.device.memory_bytes),
        *((old.links[node].bytes_per_s, link.bytes_per_s) for node, link in new.links.items()),
        *((old.links[node].latency_s + 1e-3, link.latency_s + 1e-3) for node, link in new.links.items()),
    ]
    return any(abs(a - b) > NOISE * max(a, b) for a, b in pairs)
