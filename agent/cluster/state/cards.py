"""Cards: what a device and its links can do, as a text that members exchange, and the cluster for the planner
that is built from all cards. Rules: agent/measure measures and sends the cards.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from edgepart.agent.engines.verdicts import (
    EngineDrift,
    EngineVerdict,
    is_figure,
    limited,
    verdict_from_json,
    verdicts_to_json,
)
from edgepart.agent.wire.control import Card
from edgepart.planner.devices.cluster import (
    Cluster,
    Device,
    Link,
    Medium,
)
from edgepart.planner.devices.cluster_json import cluster_from_json, cluster_to_json
from edgepart.planner.devices.equal_devices import equalise_devices
from edgepart.planner.devices.fields import LARGEST_FIGURE, SMALLEST_FIGURE
from edgepart.planner.errors import FrameError, UsageError
from edgepart.planner.json_text import parse_json

CHANGE_SHARE = 0.3
"""The share by which a number of a link or device has to move before it counts as changed. With a smaller
share every fluctuation would lead to a new plan."""

MUCH_SLOWER = 3.0
"""A plan of before is not loaded again if a link takes more than this many times as long as then. The first measurement
of a link, by a device that has just started, is often off by a factor of two. A search that counts the new measurement
follows, so with a larger factor a plan that has become slow serves until then; with a smaller one, devices wait for that
search."""

MOST_REFUSED = 256
"""The most refusals that a card tells, the newest: more than the engines of one box meet in all models of a cluster."""

ENGINE_CHANGE_SHARE = 0.05
"""The same for the drift of an engine, which only new trials move, and which decides between the engine and the CPU."""
MOST_DRIFTS = 64
"""The most drifts of engines that a card tells, the newest."""

SHARED_MEDIUM_SHARE = 0.8
"""Devices share a medium if, when all of them send at once, they reach less than this share of the rates of
their links. The margin covers the differences between two such measurements."""


@dataclass(frozen=True)
class CrowdMeasurement:
    """How fast several devices can send when all of them send at once."""

    nodes: frozenset[str]
    """The node ids of the devices."""
    bytes_per_s: float
    """The rate of all devices and directions together, with messages of the size that devices send when they
    share a layer."""
    message_s: float
    """The time that a message without payload then takes from one device to another."""


@dataclass(frozen=True)
class MeasuredDevice:
    """The content of one device's card."""

    device: Device
    links: Mapping[str, Link] = field(default_factory=dict)
    """This device's measurements of its links, by the node id of the other end."""
    together: CrowdMeasurement | None = None
    """This device's measurement with all devices sending at once; None if it made none."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why engines that this device might have are not used, by the engine's name; for people."""
    refused: tuple[EngineVerdict, ...] = ()
    """The segments for which an engine of this device is refused, and why; the newest last."""
    drifts: tuple[EngineDrift, ...] = ()
    """How much longer its engines take for models than calibrated; the newest last."""
    back_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    """The rates at which other ends send to this device, by node id, where they clearly differ from those of `links`."""

    def with_link(self, node: str, link: Link, back: Link) -> MeasuredDevice:
        """The device with these measurements of the link to another end and of the link from it."""
        rates = {other: rate for other, rate in self.back_bytes_per_s.items() if other != node}
        if back.bytes_per_s != link.bytes_per_s:
            rates[node] = back.bytes_per_s
        return replace(self, links={**self.links, node: link}, back_bytes_per_s=rates)

    def rates(self, node: str) -> tuple[float, float]:
        """The bytes/s to the other end of a measured link, and from it."""
        there = self.links[node].bytes_per_s
        return there, self.back_bytes_per_s.get(node, there)


def with_verdicts(
    measured: MeasuredDevice, refused: Sequence[EngineVerdict], drifts: Sequence[EngineDrift] = ()
) -> MeasuredDevice:
    """The device with these refusals, of which its engines have the digests for the planner, and these drifts."""
    kept = tuple(refused)[-MOST_REFUSED:]
    engines = tuple(
        replace(engine, refused=frozenset(one.segment for one in kept if one.engine == engine.name))
        for engine in measured.device.engines
    )
    device = replace(measured.device, engines=engines)
    return replace(measured, device=device, refused=kept, drifts=tuple(drifts)[-MOST_DRIFTS:])


def write_card(measured: MeasuredDevice) -> bytes:
    """The document of a Card: the keys of cluster.json, and links by node id."""
    document = cluster_to_json(Cluster((measured.device,)))["devices"][0]
    links = {node: asdict(link) for node, link in sorted(measured.links.items())}
    card = {"device": document, "links": links}
    if measured.back_bytes_per_s:
        card["back_bytes_per_s"] = dict(measured.back_bytes_per_s)
    if (together := measured.together) is not None:
        card["together"] = asdict(together) | {"nodes": sorted(together.nodes)}
    if measured.left_out:
        card["left_out"] = dict(measured.left_out)
    if measured.refused:
        card["refused"] = verdicts_to_json(measured.refused)
    if measured.drifts:
        card["drifts"] = [asdict(one) for one in measured.drifts]
    return json.dumps(card, sort_keys=True).encode()


def parse_card(document: bytes) -> MeasuredDevice:
    """Parse a card's document. Raises FrameError if it is no card."""
    try:
        parsed = parse_json(document)
        cluster = cluster_from_json({"devices": [parsed["device"]]})
        links = {str(node): Link(**_check_link(entry)) for node, entry in parsed["links"].items()}
        back = {str(node): _check_rate(rate) for node, rate in parsed.get("back_bytes_per_s", {}).items()}
        together = _together(parsed["together"]) if "together" in parsed else None
        left_out = {str(name): str(why) for name, why in parsed.get("left_out", {}).items()}
        refused = tuple(map(verdict_from_json, parsed.get("refused", ())))
        drifts = tuple(map(_drift, parsed.get("drifts", ())))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, UsageError, FrameError) as error:
        raise FrameError(f"a card that cannot be read: {error}") from error
    return MeasuredDevice(cluster.devices[0], links, together, left_out, refused, drifts, back)


@lru_cache(maxsize=256)
def find_refusals(document: bytes) -> tuple[EngineVerdict, ...]:
    """What engines are refused for, by a card's document; nothing if it is no card."""
    try:
        return parse_card(document).refused
    except FrameError:
        return ()


def find_card_fault(document: bytes) -> str:
    """Why plans cannot use the device of this card; "" if the card can be read."""
    try:
        parse_card(document)
    except FrameError as error:
        return str(error)
    return ""


def _together(entry: Mapping[str, Any]) -> CrowdMeasurement:
    nodes, rates = entry["nodes"], [float(entry[key]) for key in ("bytes_per_s", "message_s")]
    if not all(SMALLEST_FIGURE <= rate <= LARGEST_FIGURE for rate in rates) or not all(
        isinstance(n, str) for n in nodes
    ):
        raise ValueError(f"together {entry}")
    return CrowdMeasurement(frozenset(nodes), *rates)


def _drift(entry: Mapping[str, Any]) -> EngineDrift:
    names = entry["engine"], entry["model"]
    if not all(isinstance(name, str) for name in names) or not is_figure(entry["drift"]):
        raise ValueError(f"the drift of an engine {entry}")
    return EngineDrift(*names, limited(entry["drift"]))


def _check_link(entry: Mapping[str, Any]) -> dict[str, float]:
    numbers = {key: float(value) for key, value in entry.items()}
    if not all(0 <= value <= LARGEST_FIGURE for value in numbers.values()):
        raise ValueError(f"link {numbers}")
    _check_rate(numbers["bytes_per_s"])
    return numbers


def _check_rate(value: Any) -> float:
    rate = float(value)
    if not SMALLEST_FIGURE <= rate <= LARGEST_FIGURE:
        raise ValueError(f"a rate of {rate} bytes/s")
    return rate


def build_cluster(cards: Iterable[Card], names: Mapping[str, str], model: str = "") -> Cluster:
    """The cluster of all devices that have a card and a name, in the order of the cards, with every link that
    either end measured.

    `model` is the digest of the model for which plans are to be made: engines lack the operators of it that they were found
    not to take. `names` maps node ids to device names in the plan. Each direction of a link that both ends measured gets
    the worse of each number. Equal boxes count as equally fast (planner/devices/equal_devices.py).
    """
    measured = {names[card.node]: parse_card(card.document) for card in cards if card.node in names}
    devices = equalise_devices([_device_for(one, name, model) for name, one in measured.items()])
    cluster = Cluster(devices, _build_links(measured, names))
    crowds = [one.together for one in measured.values() if one.together is not None]
    return _with_shared_medium(cluster, crowds, names)


def _build_links(
    measured: Mapping[str, MeasuredDevice], names: Mapping[str, str]
) -> dict[tuple[str, str], Link]:
    """The links between these devices. One whose directions are equal has one entry, with the lesser name first."""
    ways: dict[tuple[str, str], Link] = {}
    for name, one in measured.items():
        for node, link in one.links.items():
            other = names.get(node)
            if other is not None and other in measured and other != name:
                for way, rate in zip(((name, other), (other, name)), one.rates(node), strict=True):
                    told = replace(link, bytes_per_s=rate)
                    ways[way] = _worse(ways.get(way, told), told)
    return {(a, b): link for (a, b), link in ways.items() if a < b or ways[b, a] != link}


def _device_for(measured: MeasuredDevice, name: str, model: str) -> Device:
    """The device under this name, whose engines lack the operators of the model that they were found not to take, and take
    as long for the others as they were found to."""
    told = [one for one in measured.refused if model and one.model == model]
    drifts = {one.engine: one.drift for one in measured.drifts if model and one.model == model}
    engines = tuple(
        replace(
            engine.with_drift(drifts.get(engine.name, 1.0)),
            lacks=frozenset(op for one in told if one.engine == engine.name for op in one.lacks),
            untried=bool(model) and engine.name not in {*drifts, *(one.engine for one in told)},
        )
        for engine in measured.device.engines
    )
    return replace(measured.device, name=name, engines=engines)


SHARED_MEDIUM_NAME = "what all share"


def _with_shared_medium(
    cluster: Cluster, crowds: Iterable[CrowdMeasurement], names: Mapping[str, str]
) -> Cluster:
    """The cluster with a shared medium, if devices that were measured together sent less than their links
    promise. Of several measurements, the one with the most devices counts, and of these the fastest: a
    disturbance can only make a measurement slower."""
    sending, receiving = cluster.sending_bytes_per_s, cluster.receiving_bytes_per_s
    cards = {name: min(rate, receiving[name]) for name, rate in sending.items()}
    found = [({names[n] for n in crowd.nodes if names.get(n) in cards}, crowd) for crowd in crowds]
    found = [(present, crowd) for present, crowd in found if len(present) > 1]
    if not found:
        return cluster
    present, crowd = max(found, key=lambda one: (len(one[0]), one[1].bytes_per_s))
    each, usual = crowd.bytes_per_s / len(crowd.nodes), sum(map(cards.__getitem__, present)) / len(present)
    if each >= SHARED_MEDIUM_SHARE * usual:
        return cluster
    medium = Medium(SHARED_MEDIUM_NAME, crowd.bytes_per_s, frozenset(present))
    links = {
        pair: _link_under_load(link, crowd) if present.issuperset(pair) else link
        for pair, link in cluster.links.items()
    }
    return replace(cluster, links=links, media=(medium,))


def _link_under_load(link: Link, crowd: CrowdMeasurement) -> Link:
    """The link as it is while other devices send too, which they do at the same time when they divide a
    layer."""
    return replace(link, latency_s=max(link.latency_s, crowd.message_s - 2 * link.message_s))


def _worse(one: Link, two: Link) -> Link:
    return Link(
        min(one.bytes_per_s, two.bytes_per_s),
        max(one.latency_s, two.latency_s),
        max(one.message_s, two.message_s),
    )


def is_clearly_different(old: MeasuredDevice, new: MeasuredDevice) -> bool:
    """Whether the planner should know of the change: the set of links or what engines are refused for differs, or a
    number moved by more than CHANGE_SHARE."""
    if old.links.keys() != new.links.keys() or old.refused != new.refused or old.left_out != new.left_out:
        return True
    before, after = ({(one.engine, one.model): one.drift for one in card.drifts} for card in (old, new))
    if before.keys() != after.keys() or any(
        abs(drift - before[key]) > ENGINE_CHANGE_SHARE * before[key] for key, drift in after.items()
    ):
        return True
    was, now = old.together, new.together
    if (was and was.nodes) != (now and now.nodes):
        return True
    pairs: Sequence[tuple[float, float]] = [
        (old.device.flops_per_s, new.device.flops_per_s),
        (old.device.memory_bytes_per_s, new.device.memory_bytes_per_s),
        (old.device.memory_bytes, new.device.memory_bytes),
        *(pair for node in new.links for pair in zip(old.rates(node), new.rates(node), strict=True)),
        *([(was.bytes_per_s, now.bytes_per_s), (was.message_s, now.message_s)] if was and now else []),
        *((old.links[node].latency_s + 1e-3, link.latency_s + 1e-3) for node, link in new.links.items()),
    ]
    return _has_moved(pairs)


def _has_moved(pairs: Iterable[tuple[float, float]]) -> bool:
    """Whether a number differs from the one before it by more than CHANGE_SHARE."""
    return any(abs(a - b) > CHANGE_SHARE * max(a, b) for a, b in pairs)


def are_alike(before: Iterable[Card], now: Iterable[Card]) -> bool:
    """Whether a plan for the devices of `before` suits those of `now`: they are the same and about as fast, engines are
    refused for the same, and no link is much slower, whichever end measured it. What all can send at once does not count,
    as a device that has just come has not measured it. A card that cannot be read is only like itself."""
    before, now = [*before], [*now]
    if before == now:
        return True
    try:
        then, here = ({card.node: parse_card(card.document) for card in cards} for cards in (before, now))
    except FrameError:
        return False
    was, links = (_build_links(cards, {node: node for node in cards}) for cards in (then, here))
    if then.keys() != here.keys() or was.keys() != links.keys():
        return False
    if any(
        (old.refused, old.left_out) != (here[node].refused, here[node].left_out) for node, old in then.items()
    ):
        return False
    devices = [(old.device, here[node].device) for node, old in then.items()]
    slower = any(
        links[ends].bytes_per_s * MUCH_SLOWER < old.bytes_per_s
        or links[ends].latency_s + 1e-3 > MUCH_SLOWER * (old.latency_s + 1e-3)
        for ends, old in was.items()
    )
    return not slower and not _has_moved(
        [
            *((old.flops_per_s, new.flops_per_s) for old, new in devices),
            *((old.memory_bytes_per_s, new.memory_bytes_per_s) for old, new in devices),
        ]
    )
