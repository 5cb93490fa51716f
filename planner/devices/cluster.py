"""Device, Link, Medium, Cluster: the device graph. Facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import log2

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
    routes: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """For links from one device to another that lead over other devices: the devices on the way, both ends included. Each
    passes on what it gets by itself, as a router does; agents know nothing of it."""

    def __post_init__(self) -> None:
        names = [device.name for device in self.devices]
        if len(set(names)) < len(names):
            raise UsageError(f"cluster: two devices share a name among {sorted(names)}; give each its own")
        for ends in (*self.links, *self.routes.values()):
            for name in ends:
                if name not in names:
                    raise UsageError(f"cluster: link {ends} names {name!r}, which is not one of its devices")
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

    def hops(self, a: str, b: str) -> tuple[tuple[str, str], ...]:
        """The pairs of devices, each directly linked, over which `a` sends to `b`."""
        return tuple(pairwise(self.routes.get((a, b), (a, b))))

    def crossings(self, medium: Medium, a: str, b: str) -> int:
        """The number of times that traffic from `a` to `b` crosses the medium."""
        return sum(medium.crossings(*hop) for hop in self.hops(a, b))

    def only(self, names: tuple[str, ...]) -> Cluster:
        """The cluster with just these devices, in the order given. Links that lead over others stay as they are, as those
        are taken to pass data on still."""
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
        routes = {ends: way for ends, way in self.routes.items() if set(way) <= set(names)}
        media = tuple(m for m in media if m.devices or m.links)
        return Cluster(devices, kept, self.default_link, media, routes)

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
        return Cluster(self.devices, links, speed_up(self.default_link), media, self.routes)

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
        routes = dict(self.routes)
        for (a, b), way in self.routes.items():
            if like in (a, b):
                renamed = tuple(name if one == like else one for one in way)
                routes[renamed[0], renamed[-1]] = renamed
        return Cluster((*self.devices, twin), links, self.default_link, media, routes)
