"""The JSON form of a cluster, in cluster.json: SI units, named in the keys. Rules; no file is opened here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

from edgepart.planner.devices.cluster import FIXED_S, Cluster, Device, Link, Medium
from edgepart.planner.devices.engine import EXACT, Engine
from edgepart.planner.devices.fields import list_at, mapping_at, positive_at, text_at
from edgepart.planner.devices.rates import curves_by_name
from edgepart.planner.errors import UsageError
from edgepart.planner.widest_way import find_widest_way

LINK_KEYS = frozenset({"bytes_per_s", "latency_s", "message_s"})
"""The keys of a link in cluster.json, besides its ends."""
BACK = "up_bytes_per_s"
"""The key, of a link in cluster.json, of the bytes/s from `b` to `a` where they differ from those from `a` to `b`."""


def cluster_to_json(cluster: Cluster) -> dict[str, Any]:
    direct = {pair: link for pair, link in cluster.links.items() if pair not in cluster.routes}
    document = {
        "devices": [_device_document(device) for device in cluster.devices],
        "links": list(_link_documents(direct)),
        "default_link": None if cluster.routes else asdict(cluster.default_link),
    }
    media = [
        asdict(m) | {"devices": sorted(m.devices), "links": sorted(map(list, m.links))} for m in cluster.media
    ]
    return document | {"media": media} if media else document


def _link_documents(links: Mapping[tuple[str, str], Link]) -> Iterator[dict[str, Any]]:
    """Yields the JSON document of each link. Two directions that differ in their rates alone have one document."""
    told: set[tuple[str, str]] = set()
    for (a, b), link in links.items():
        back = links.get((b, a))
        document = {"a": a, "b": b, **asdict(link)}
        if back is None or a == b or replace(back, bytes_per_s=link.bytes_per_s) != link:
            yield document
        elif (b, a) not in told:
            told.add((a, b))
            yield document | {BACK: back.bytes_per_s}


def _device_document(device: Device) -> dict[str, Any]:
    """The JSON document of a device, without `drift` and `engines` if there are none."""
    document = asdict(device) | {"families": dict(device.families), "moves": dict(device.moves)}
    document["engines"] = [_engine_document(engine) for engine in device.engines]
    usual = {"drift": 1.0, "engines": []}
    return {key: value for key, value in document.items() if key not in usual or value != usual[key]}


def _engine_document(engine: Engine) -> dict[str, Any]:
    """The JSON document of an engine, without keys that say nothing."""
    document = asdict(engine) | {"refused": sorted(engine.refused), "lacks": sorted(engine.lacks)}
    usual = {"drift": 1.0, "untried": False}
    return {
        key: value for key, value in document.items() if value not in (None, []) and value != usual.get(key)
    }


def cluster_from_json(document: Any) -> Cluster:
    """The cluster in a parsed JSON document. Raises UsageError, naming the place, for a missing key or an
    impossible number."""
    root = mapping_at(document, "cluster")
    devices = tuple(
        _device(entry, f"devices[{i}]") for i, entry in enumerate(list_at(root, "devices", "cluster"))
    )
    if not devices:
        raise UsageError("cluster: 'devices' is empty; name at least one")
    links = _links(list_at(root, "links", "cluster") if "links" in root else [])
    default = Cluster.default_link
    routes: dict[tuple[str, str], tuple[str, ...]] = {}
    if root.get("default_link", default) is None:
        routes = _find_routes([device.name for device in devices], links)
        links |= {ends: _join(way, links) for ends, way in routes.items()}
    elif "default_link" in root:
        default = _link(mapping_at(root["default_link"], "default_link"), "default_link", LINK_KEYS)
    media = tuple(
        _medium(entry, f"media[{i}]")
        for i, entry in enumerate(list_at(root, "media", "cluster") if "media" in root else [])
    )
    return Cluster(devices, links, default, media, routes)


def _device(entry: Any, where: str) -> Device:
    entry = mapping_at(entry, where)
    return Device(
        name=text_at(entry, "name", where),
        kind=str(entry.get("kind", "unknown")),
        flops_per_s=positive_at(entry, "flops_per_s", where),
        memory_bytes_per_s=positive_at(entry, "memory_bytes_per_s", where),
        memory_bytes=positive_at(entry, "memory_bytes", where),
        threads=int(positive_at(entry, "threads", where, default=1)),
        segment_s=positive_at(entry, "segment_s", where, default=FIXED_S),
        families=_rates(entry, "families", where),
        moves=_rates(entry, "moves", where),
        kernel_s=positive_at(entry, "kernel_s", where, default=0.0, or_zero=True),
        drift=positive_at(entry, "drift", where, default=1.0),
        engines=_engines(entry, where),
    )


def _engines(entry: Mapping[str, Any], where: str) -> tuple[Engine, ...]:
    listed = list_at(entry, "engines", where) if "engines" in entry else []
    engines = tuple(_engine(one, f"{where}.engines[{i}]") for i, one in enumerate(listed))
    names = [engine.name for engine in engines]
    if len(set(names)) < len(names):
        raise UsageError(f"{where}: two engines share a name among {sorted(names)}; give each its own")
    return engines


def _engine(entry: Any, where: str) -> Engine:
    entry = mapping_at(entry, where)
    own = {
        key: positive_at(entry, key, where) for key in ("copy_bytes_per_s", "memory_bytes") if key in entry
    }
    refused, lacks = (list_at(entry, key, where) if key in entry else [] for key in ("refused", "lacks"))
    if not all(isinstance(digest, str) for digest in refused):
        raise UsageError(f"{where}: expected digests of segments under 'refused'")
    if not all(isinstance(name, str) for name in lacks):
        raise UsageError(f"{where}: expected names of operators under 'lacks'")
    return Engine(
        name=text_at(entry, "name", where),
        provider=text_at(entry, "provider", where),
        families=_rates(entry, "families", where),
        moves=_rates(entry, "moves", where),
        flops_per_s=positive_at(entry, "flops_per_s", where),
        memory_bytes_per_s=positive_at(entry, "memory_bytes_per_s", where),
        segment_s=positive_at(entry, "segment_s", where, default=FIXED_S, or_zero=True),
        kernel_s=positive_at(entry, "kernel_s", where, default=0.0, or_zero=True),
        copy_s=positive_at(entry, "copy_s", where, default=0.0, or_zero=True),
        copy_bytes_per_s=own.get("copy_bytes_per_s"),
        memory_bytes=own.get("memory_bytes"),
        precision=text_at(entry, "precision", where) if "precision" in entry else EXACT,
        threads=int(positive_at(entry, "threads", where, default=1)),
        drift=positive_at(entry, "drift", where, default=1.0),
        untried=entry.get("untried") is True,
        refused=frozenset(refused),
        lacks=frozenset(lacks),
    )


def _rates(entry: Mapping[str, Any], key: str, where: str) -> dict[str, float]:
    inside = f"{where}.{key}"
    rates = mapping_at(entry.get(key, {}), inside)
    found = {str(name): positive_at(rates, name, inside) for name in rates}
    try:
        curves_by_name(found)
    except ValueError as error:
        raise UsageError(f"{inside}: {error}") from error
    return found


def _links(entries: list[Any]) -> dict[tuple[str, str], Link]:
    """The links by their ends. An entry with `BACK` says both directions."""
    found: dict[tuple[str, str], Link] = {}
    backs: dict[tuple[str, str], tuple[str, Link]] = {}
    for number, value in enumerate(entries):
        where = f"links[{number}]"
        entry = mapping_at(value, where)
        a, b = text_at(entry, "a", where), text_at(entry, "b", where)
        link = found[a, b] = _link(entry, where, {"a", "b", *LINK_KEYS, BACK})
        if BACK in entry:
            backs[b, a] = where, replace(link, bytes_per_s=positive_at(entry, BACK, where))
    for (a, b), (where, link) in backs.items():
        if (a, b) in found:
            raise UsageError(f"{where}: another link says how {a!r} sends to {b!r}; leave {BACK!r} out")
        found[a, b] = link
    return found


def _find_routes(
    names: Sequence[str], links: Mapping[tuple[str, str], Link]
) -> dict[tuple[str, str], tuple[str, ...]]:
    """The devices over which each two that have no link reach each other, both ends included, by the widest way. Raises
    UsageError if no way leads from one to the other."""
    nearby: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in names}
    for (a, b), link in links.items():
        for way in ((a, b), (b, a)):
            told = links.get(way, link)
            nearby.setdefault(way[0], {})[way[1]] = told.bytes_per_s, told.latency_s
    ways = {
        (a, b): find_widest_way(nearby, a, b) for a in names for b in names if a != b and b not in nearby[a]
    }
    for (a, b), route in ways.items():
        if not route:
            raise UsageError(
                f"cluster: no link leads from {a!r} to {b!r}, over others neither, and 'default_link' is null"
            )
    return ways


def _join(way: Sequence[str], links: Mapping[tuple[str, str], Link]) -> Link:
    """The link that a way amounts to: as fast as its slowest link, with the latencies of all."""
    legs = [links[hop] if hop in links else links[hop[1], hop[0]] for hop in pairwise(way)]
    return Link(
        min(leg.bytes_per_s for leg in legs),
        sum(leg.latency_s for leg in legs),
        max(legs[0].message_s, legs[-1].message_s),
    )


def _link(entry: Mapping[str, Any], where: str, known: Collection[str]) -> Link:
    if unknown := sorted(map(str, entry.keys() - known)):
        raise UsageError(
            f"{where}: a link has no {unknown[0]!r:.40}; it has {', '.join(sorted(known))}. 'bytes_per_s' is the rate from "
            f"a to b, and {BACK!r} that from b to a where it differs"
        )
    return Link(
        bytes_per_s=positive_at(entry, "bytes_per_s", where),
        latency_s=positive_at(entry, "latency_s", where, or_zero=True),
        message_s=positive_at(entry, "message_s", where, default=FIXED_S, or_zero=True),
    )


def _medium(entry: Any, where: str) -> Medium:
    entry = mapping_at(entry, where)
    devices = list_at(entry, "devices", where) if "devices" in entry else []
    pairs = list_at(entry, "links", where) if "links" in entry else []
    named = [*devices, *(name for pair in pairs for name in (pair if isinstance(pair, list) else [None]))]
    if not named or not all(isinstance(name, str) for name in named) or any(len(pair) != 2 for pair in pairs):
        raise UsageError(
            f'{where}: give the names of its devices ("devices": ["a", "b"]), or of linked pairs ("links": [["a", "b"]])'
        )
    relayed = entry.get("relayed", False)
    if not isinstance(relayed, bool):
        raise UsageError(f"{where}: expected true or false under 'relayed', found {relayed!r}")
    return Medium(
        name=text_at(entry, "name", where),
        bytes_per_s=positive_at(entry, "bytes_per_s", where),
        devices=frozenset(devices),
        links=frozenset((a, b) for a, b in pairs),
        relayed=relayed,
    )
