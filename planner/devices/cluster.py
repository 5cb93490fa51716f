"""Device, Link, Medium, Cluster: the device graph, and its JSON form in cluster.json (SI units, named in the keys). Facts;
no file is opened here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import log2
from typing import Any

from edgepart.planner.devices.engine import CPU, EXACT, Engine
from edgepart.planner.devices.rates import Rates, curves_by_name
from edgepart.planner.errors import UsageError

FIXED_S = 5e-5
"""The fixed cost of a segment or a message that was not measured, in seconds."""


@dataclass(frozen=True)
class Device:
    """A device: a box with an agent."""

    name: str
    """The device's name, unique in the cluster; in a live cluster, the name of the member."""
    kind: str
    """The kind of hardware: devices of one kind have equal hardware. Devices of equal `pace` share profiles."""
    flops_per_s: float
    """FLOP/s achieved on convolutions with all `threads`; 1 multiply-add = 2 FLOPs."""
    memory_bytes_per_s: float
    """Bytes/s achieved by memory-bound operators."""
    memory_bytes: float
    """The memory that a plan may use."""
    threads: int = 1
    segment_s: float = FIXED_S
    """The fixed cost of starting one segment."""
    families: Mapping[str, float] = field(default_factory=dict)
    """Maps each measured family of operators ("conv", "depthwise", "gemm" ...) to its FLOP/s, which override
    `flops_per_s`. A size after a slash in a name is a number of channels or rows (planner/devices/rates.py)."""
    moves: Mapping[str, float] = field(default_factory=dict)
    """Maps each measured kind of operators that mostly move data ("softmax", "lrn" ...) to its bytes/s, read
    and written, which override `memory_bytes_per_s`. A size after a slash in a name is a number of bytes."""
    kernel_s: float = 0.0
    """The fixed cost of each operator that the runtime runs."""
    drift: float = 1.0
    """The time that computation takes now, as a multiple of the calibrated time. The other fields include the
    drift already."""
    engines: tuple[Engine, ...] = ()
    """What the device can compute with besides its CPU."""

    @cached_property
    def rates(self) -> Rates:
        """The measured speeds of the device, for look-ups by family or kind, and by size."""
        return Rates(
            curves_by_name(self.families),
            curves_by_name(self.moves),
            self.flops_per_s,
            self.memory_bytes_per_s,
        )

    @property
    def calibrated_flops_per_s(self) -> float:
        """`flops_per_s` without the drift."""
        return self.flops_per_s * self.drift

    def slower_than(self, flops_per_s: float) -> float:
        """The factor by which this device is slower than one that was calibrated to `flops_per_s`, by
        calibration alone; 1 if `flops_per_s` is 0, which stands for unknown."""
        return flops_per_s / self.calibrated_flops_per_s if flops_per_s else 1.0

    def engine(self, name: str) -> Engine | Device:
        """The engine of this name; for CPU the device, which has the CPU's figures. Raises UsageError for other names."""
        if name == CPU:
            return self
        for engine in self.engines:
            if engine.name == name:
                return engine
        raise UsageError(
            f"{self.name} has no engine {name!r}; it has {[e.name for e in self.engines] or 'its CPU'}"
        )

    def with_engines(self, *, exact: bool) -> Device:
        """The device with those of its engines that do not round, if `exact`; else with all."""
        kept = tuple(engine for engine in self.engines if engine.precision == EXACT or not exact)
        return self if kept == self.engines else replace(self, engines=kept)

    @property
    def pace(self) -> str:
        """The key under which devices share profiles: equal hardware, and about equal speed, in steps of half
        an octave.

        A throttled device is in another step than its equals, and than itself before it drifted. The times
        that it then measures are therefore neither used for its equals nor multiplied by the drift again. A
        drift below one step does not change the pace, because calibration may be wrong by that much for a
        model, and the profiles should remain valid for the next deployment."""
        steps = int(round(2 * log2(self.drift), 6))  # int() truncates towards 0: only whole steps count.
        return f"{self.kind}~{round(2 * log2(self.calibrated_flops_per_s)) - steps}"

    def with_drift(self, drift: float) -> Device:
        """The same device, on which everything takes `drift` times as long as calibrated."""
        if drift == self.drift:
            return self
        slower = drift / self.drift
        return replace(
            self,
            flops_per_s=self.flops_per_s / slower,
            memory_bytes_per_s=self.memory_bytes_per_s / slower,
            segment_s=self.segment_s * slower,
            families={name: rate / slower for name, rate in self.families.items()},
            moves={name: rate / slower for name, rate in self.moves.items()},
            kernel_s=self.kernel_s * slower,
            drift=drift,
            engines=tuple(engine.slowed(slower) for engine in self.engines),
        )


@dataclass(frozen=True, slots=True)
class Link:
    """The speed of the connection from one device to another."""

    bytes_per_s: float
    latency_s: float
    """Seconds from sending the first byte of a small message to its arrival: half a round trip."""
    message_s: float = FIXED_S
    """The fixed cost per message at each end."""


@dataclass(frozen=True, slots=True)
class Medium:
    """A medium that several links share, both directions together: a Wi-Fi channel, a bus, a cable between two
    switches."""

    name: str
    bytes_per_s: float
    """The capacity for all traffic that crosses the medium."""
    devices: frozenset[str] = frozenset()
    """Devices whose whole traffic, sent and received, crosses the medium."""
    links: frozenset[tuple[str, str]] = frozenset()
    """Pairs of devices whose traffic with each other, in both directions, crosses the medium."""
    relayed: bool = False
    """Whether traffic from one of `devices` to another crosses the medium twice, as through an access point."""

    def crossings(self, a: str, b: str) -> int:
        """The number of times that traffic from `a` to `b` crosses the medium."""
        ends = (a in self.devices) + (b in self.devices)
        if ends == 0:
            return int((a, b) in self.links or (b, a) in self.links)
        return ends if self.relayed else 1


SMALLEST_FIGURE, LARGEST_FIGURE = 1e-30, 1e30
"""Bounds for figures of devices and links: a figure outside them is not a measurement, and would make results infinite."""

LINK_KEYS = frozenset({"bytes_per_s", "latency_s", "message_s"})
"""The keys of a link in cluster.json, besides its ends."""
BACK = "up_bytes_per_s"
"""The key, of a link in cluster.json, of the bytes/s from `b` to `a` where they differ from those from `a` to `b`."""

LOCAL = Link(bytes_per_s=1e10, latency_s=0.0, message_s=2e-5)
"""The link from a device to itself, which connects its agent as gateway with its own part of the plan."""


@dataclass(frozen=True)
class Cluster:
    """Devices and the links between them."""

    devices: tuple[Device, ...]
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    """Maps the names of two devices to the link from the first to the second. It is also the link from the second to the
    first, unless that has an entry of its own."""
    default_link: Link = Link(bytes_per_s=1.17e8, latency_s=2e-4)
    media: tuple[Medium, ...] = ()
    """The media that links share. A link that is in no medium has its capacity to itself."""

    def __post_init__(self) -> None:
        names = [device.name for device in self.devices]
        if len(set(names)) < len(names):
            raise UsageError(f"cluster: two devices share a name among {sorted(names)}; give each its own")
        for pair in self.links:
            for name in pair:
                if name not in names:
                    raise UsageError(f"cluster: link {pair} names {name!r}, which is not one of its devices")
        if len({medium.name for medium in self.media}) < len(self.media):
            raise UsageError(f"cluster: two media share a name among {sorted(m.name for m in self.media)}")
        for medium in self.media:
            for name in sorted(medium.devices.union(*medium.links)):
                if name not in names:
                    raise UsageError(
                        f"cluster: medium {medium.name!r} names {name!r}, which is not one of its devices"
                    )

    def device(self, name: str) -> Device:
        for device in self.devices:
            if device.name == name:
                return device
        raise UsageError(f"no device {name!r} in the cluster; there are {[d.name for d in self.devices]}")

    def link(self, a: str, b: str) -> Link:
        """The link over which `a` sends to `b`."""
        if a == b:
            return LOCAL
        return self.links.get((a, b)) or self.links.get((b, a)) or self.default_link

    def only(self, names: tuple[str, ...]) -> Cluster:
        """The cluster with just these devices, in the order given."""
        kept = {pair: link for pair, link in self.links.items() if set(pair) <= set(names)}
        media = tuple(
            replace(
                medium,
                devices=medium.devices & set(names),
                links=frozenset(pair for pair in medium.links if set(pair) <= set(names)),
            )
            for medium in self.media
        )
        devices = tuple(self.device(name) for name in names)
        return Cluster(devices, kept, self.default_link, tuple(m for m in media if m.devices or m.links))

    @cached_property
    def sending_bytes_per_s(self) -> Mapping[str, float]:
        """Maps each device to the bytes/s that its network card can send: the rate of the fastest link from it."""
        return self._fastest(0)

    @cached_property
    def receiving_bytes_per_s(self) -> Mapping[str, float]:
        """Maps each device to the bytes/s that its network card can receive, while it sends: the rate of the fastest link
        to it."""
        return self._fastest(1)

    def _fastest(self, end: int) -> dict[str, float]:
        """The rate of the fastest link that begins (`end` 0) or ends (`end` 1) at each device."""
        ways = {way for a, b in self.links if a != b for way in ((a, b), (b, a))}
        linked = Counter(way[end] for way in ways)
        rest = len(self.devices) - 1
        found = {
            d.name: self.default_link.bytes_per_s if linked[d.name] < rest else 0.0 for d in self.devices
        }
        for way in ways:
            found[way[end]] = max(found[way[end]], self.link(*way).bytes_per_s)
        return found

    def with_engines(self, *, exact: bool) -> Cluster:
        """The cluster with those engines of its devices that do not round, if `exact`; else with all."""
        return self._with_devices(device.with_engines(exact=exact) for device in self.devices)

    def without_engines(self) -> Cluster:
        """The cluster whose devices compute with their CPUs alone."""
        return self._with_devices(replace(d, engines=()) if d.engines else d for d in self.devices)

    def _with_devices(self, devices: Iterable[Device]) -> Cluster:
        kept = tuple(devices)
        return self if kept == self.devices else replace(self, devices=kept)

    def faster(self, times: float) -> Cluster:
        """The cluster with every link and medium `times` as fast, and unchanged latencies."""

        def speed_up(link: Link) -> Link:
            return replace(link, bytes_per_s=times * link.bytes_per_s)

        links = {pair: speed_up(link) for pair, link in self.links.items()}
        media = tuple(replace(medium, bytes_per_s=times * medium.bytes_per_s) for medium in self.media)
        return Cluster(self.devices, links, speed_up(self.default_link), media)

    def with_copy_of(self, like: str, name: str) -> Cluster:
        """The cluster with one more device, called `name`, which is a copy of `like`. The copy has the same
        links to the other devices, the fastest of these as its link to `like`, and the same media."""
        others = [device.name for device in self.devices if device.name != like]
        mine = {(name, other): self.link(like, other) for other in others}
        theirs = {(other, name): self.link(other, like) for other in others}
        theirs = {(a, b): link for (a, b), link in theirs.items() if link != mine[b, a]}
        best = max(mine.values(), key=lambda link: link.bytes_per_s, default=self.default_link)
        links = dict(self.links) | mine | theirs | {(name, like): best}
        media = tuple(
            replace(
                medium,
                devices=medium.devices | ({name} if like in medium.devices else set()),
                links=medium.links
                | {(name, b if a == like else a) for a, b in medium.links if like in (a, b)},
            )
            for medium in self.media
        )
        twin = replace(self.device(like), name=name)
        return Cluster((*self.devices, twin), links, self.default_link, media)


def cluster_to_json(cluster: Cluster) -> dict[str, Any]:
    document = {
        "devices": [_device_document(device) for device in cluster.devices],
        "links": list(_link_documents(cluster.links)),
        "default_link": asdict(cluster.default_link),
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
    root = _mapping(document, "cluster")
    devices = tuple(
        _device(entry, f"devices[{i}]") for i, entry in enumerate(_list(root, "devices", "cluster"))
    )
    if not devices:
        raise UsageError("cluster: 'devices' is empty; name at least one")
    links = _links(_list(root, "links", "cluster") if "links" in root else [])
    default = Cluster.default_link
    if "default_link" in root:
        default = _link(_mapping(root["default_link"], "default_link"), "default_link", LINK_KEYS)
    media = tuple(
        _medium(entry, f"media[{i}]")
        for i, entry in enumerate(_list(root, "media", "cluster") if "media" in root else [])
    )
    return Cluster(devices, links, default, media)


def _device(entry: Any, where: str) -> Device:
    entry = _mapping(entry, where)
    return Device(
        name=_text(entry, "name", where),
        kind=str(entry.get("kind", "unknown")),
        flops_per_s=_positive(entry, "flops_per_s", where),
        memory_bytes_per_s=_positive(entry, "memory_bytes_per_s", where),
        memory_bytes=_positive(entry, "memory_bytes", where),
        threads=int(_positive(entry, "threads", where, default=1)),
        segment_s=_positive(entry, "segment_s", where, default=FIXED_S),
        families=_rates(entry, "families", where),
        moves=_rates(entry, "moves", where),
        kernel_s=_positive(entry, "kernel_s", where, default=0.0, or_zero=True),
        drift=_positive(entry, "drift", where, default=1.0),
        engines=_engines(entry, where),
    )


def _engines(entry: Mapping[str, Any], where: str) -> tuple[Engine, ...]:
    listed = _list(entry, "engines", where) if "engines" in entry else []
    engines = tuple(_engine(one, f"{where}.engines[{i}]") for i, one in enumerate(listed))
    names = [engine.name for engine in engines]
    if len(set(names)) < len(names):
        raise UsageError(f"{where}: two engines share a name among {sorted(names)}; give each its own")
    return engines


def _engine(entry: Any, where: str) -> Engine:
    entry = _mapping(entry, where)
    own = {key: _positive(entry, key, where) for key in ("copy_bytes_per_s", "memory_bytes") if key in entry}
    refused, lacks = (_list(entry, key, where) if key in entry else [] for key in ("refused", "lacks"))
    if not all(isinstance(digest, str) for digest in refused):
        raise UsageError(f"{where}: expected digests of segments under 'refused'")
    if not all(isinstance(name, str) for name in lacks):
        raise UsageError(f"{where}: expected names of operators under 'lacks'")
    return Engine(
        name=_text(entry, "name", where),
        provider=_text(entry, "provider", where),
        families=_rates(entry, "families", where),
        moves=_rates(entry, "moves", where),
        flops_per_s=_positive(entry, "flops_per_s", where),
        memory_bytes_per_s=_positive(entry, "memory_bytes_per_s", where),
        segment_s=_positive(entry, "segment_s", where, default=FIXED_S, or_zero=True),
        kernel_s=_positive(entry, "kernel_s", where, default=0.0, or_zero=True),
        copy_s=_positive(entry, "copy_s", where, default=0.0, or_zero=True),
        copy_bytes_per_s=own.get("copy_bytes_per_s"),
        memory_bytes=own.get("memory_bytes"),
        precision=_text(entry, "precision", where) if "precision" in entry else EXACT,
        threads=int(_positive(entry, "threads", where, default=1)),
        drift=_positive(entry, "drift", where, default=1.0),
        untried=entry.get("untried") is True,
        refused=frozenset(refused),
        lacks=frozenset(lacks),
    )


def _rates(entry: Mapping[str, Any], key: str, where: str) -> dict[str, float]:
    inside = f"{where}.{key}"
    rates = _mapping(entry.get(key, {}), inside)
    found = {str(name): _positive(rates, name, inside) for name in rates}
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
        entry = _mapping(value, where)
        a, b = _text(entry, "a", where), _text(entry, "b", where)
        link = found[a, b] = _link(entry, where, {"a", "b", *LINK_KEYS, BACK})
        if BACK in entry:
            backs[b, a] = where, replace(link, bytes_per_s=_positive(entry, BACK, where))
    for (a, b), (where, link) in backs.items():
        if (a, b) in found:
            raise UsageError(f"{where}: another link says how {a!r} sends to {b!r}; leave {BACK!r} out")
        found[a, b] = link
    return found


def _link(entry: Mapping[str, Any], where: str, known: Collection[str]) -> Link:
    if unknown := sorted(map(str, entry.keys() - known)):
        raise UsageError(
            f"{where}: a link has no {unknown[0]!r:.40}; it has {', '.join(sorted(known))}. 'bytes_per_s' is the rate from "
            f"a to b, and {BACK!r} that from b to a where it differs"
        )
    return Link(
        bytes_per_s=_positive(entry, "bytes_per_s", where),
        latency_s=_positive(entry, "latency_s", where, or_zero=True),
        message_s=_positive(entry, "message_s", where, default=FIXED_S, or_zero=True),
    )


def _medium(entry: Any, where: str) -> Medium:
    entry = _mapping(entry, where)
    devices = _list(entry, "devices", where) if "devices" in entry else []
    pairs = _list(entry, "links", where) if "links" in entry else []
    named = [*devices, *(name for pair in pairs for name in (pair if isinstance(pair, list) else [None]))]
    if not named or not all(isinstance(name, str) for name in named) or any(len(pair) != 2 for pair in pairs):
        raise UsageError(
            f'{where}: give the names of its devices ("devices": ["a", "b"]), or of linked pairs ("links": [["a", "b"]])'
        )
    relayed = entry.get("relayed", False)
    if not isinstance(relayed, bool):
        raise UsageError(f"{where}: expected true or false under 'relayed', found {relayed!r}")
    return Medium(
        name=_text(entry, "name", where),
        bytes_per_s=_positive(entry, "bytes_per_s", where),
        devices=frozenset(devices),
        links=frozenset((a, b) for a, b in pairs),
        relayed=relayed,
    )


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: expected an object, found {type(value).__name__}")
    return value


def _list(root: Mapping[str, Any], key: str, where: str) -> list[Any]:
    if not isinstance(root.get(key), list):
        raise UsageError(f"{where}: expected a list under {key!r}")
    return list(root[key])


def _text(entry: Mapping[str, Any], key: str, where: str) -> str:
    if not isinstance(entry.get(key), str) or not entry[key]:
        raise UsageError(f"{where}: expected a name under {key!r}")
    return str(entry[key])


def _positive(
    entry: Mapping[str, Any], key: str, where: str, *, default: float | None = None, or_zero: bool = False
) -> float:
    value = entry.get(key, default)
    good = isinstance(value, int | float) and not isinstance(value, bool)
    # A negated comparison, because it rejects NaN as well.
    if (
        not good
        or value is None
        or not (SMALLEST_FIGURE <= value <= LARGEST_FIGURE or (value == 0 and or_zero))
    ):
        raise UsageError(f"{where}: expected a positive number under {key!r}, found {str(value)[:40]}")
    return float(value)
