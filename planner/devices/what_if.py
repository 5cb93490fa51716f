"""What-if clusters: adds and removes devices, and changes the rate of links. Pure rules."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from edgepart.planner.devices.boards import KINDS, PLAN_MEMORY_SHARE
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.devices.fields import LARGEST_FIGURE, SMALLEST_FIGURE
from edgepart.planner.errors import UsageError

UNIT_FACTORS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}

UNCHANGED = "as it is"


@dataclass(frozen=True)
class Addition:
    """A device that the user thinks of adding."""

    kind: str
    name: str
    bytes_per_s: float | None = None
    """The rate of the device's links; None stands for the rate of the cluster's default link."""
    memory_bytes: float | None = None
    """The built-in memory; None stands for that of the kind."""

    def __str__(self) -> str:
        return f"+ {self.name} ({self.kind})"


@dataclass(frozen=True)
class ClusterVariant:
    """A changed cluster, and a text for people that says what is different."""

    what: str
    cluster: Cluster
    bits_per_s: float | None = None
    """The rate of all links and media; None if they are unchanged."""


def parse_addition(text: str, cluster: Cluster) -> Addition:
    """Parses "kind=pi5,link=1Gbit/s,name=x,memory=8G". Raises UsageError for any other form, an unknown kind
    or a taken name."""
    given: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or key.strip() in given or key.strip() not in ("kind", "link", "name", "memory"):
            raise UsageError(
                f"--add {text!r}: write it as kind=pi5, with ,link=1Gbit/s ,name=NAME ,memory=8G if wanted"
            )
        given[key.strip()] = value.strip()
    kind = given.get("kind", "")
    own = {device.kind for device in cluster.devices}
    if kind not in {*KINDS, *own}:
        raise UsageError(
            f"--add {text!r}: there is no kind {kind!r}; there are {', '.join(sorted({*KINDS, *own}))}"
        )
    names = {device.name for device in cluster.devices}
    name = given.get("name") or free_name(kind, names)
    if name in names:
        raise UsageError(f"--add {text!r}: there is a device {name!r}; give it another name")
    rate = parse_rate(given["link"], "--add") / 8 if "link" in given else None
    return Addition(kind, name, rate, _bytes(given["memory"]) if "memory" in given else None)


def free_name(kind: str, taken: Collection[str]) -> str:
    """A name for one more device of that kind.

    >>> free_name("pi5", ["pi5-1"])
    'pi5-2'
    """
    return next(name for number in count(1) if (name := f"{kind}-{number}") not in taken)


def parse_rate(text: str, option: str) -> float:
    """Parses a rate and returns bits per second. Raises UsageError, naming `option`, if the text is not a rate.

    >>> parse_rate("1Gbit/s", "--add"), parse_rate("100M", "--sweep"), parse_rate("12.5MB/s", "--add")
    (1000000000.0, 100000000.0, 100000000.0)
    """
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([KMG]?)(bit/s|bps|B/s)?", text.strip(), re.IGNORECASE)
    found = (
        float(match[1]) * UNIT_FACTORS[match[2].upper()] * (8 if match[3] == "B/s" else 1) if match else 0.0
    )
    if not SMALLEST_FIGURE <= found <= LARGEST_FIGURE:
        raise UsageError(f"{option}: {text!r} is not a rate; write it as 100M, 1Gbit/s or 12.5MB/s")
    return found


def _bytes(text: str) -> float:
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([KMG]?)B?", text.strip(), re.IGNORECASE)
    if not match or not float(match[1]):
        raise UsageError(f"--add: memory={text!r} is not a size; write it as 8G")
    return float(match[1]) * UNIT_FACTORS[match[2].upper()]


def parse_rates(text: str) -> tuple[float, ...]:
    """Parses "links=10M,100M,1G" and returns bits per second. Raises UsageError for any other form."""
    key, equals, values = text.partition("=")
    if not equals or key.strip() != "links" or not values.strip():
        raise UsageError(f"--sweep {text!r}: write it as links=10M,100M,1G")
    return tuple(parse_rate(value, "--sweep") for value in values.split(","))


def cluster_variants(
    cluster: Cluster, added: Sequence[Addition], removed: Sequence[str], swept: Sequence[float], gateway: str
) -> Iterator[ClusterVariant]:
    """Yields the cluster as it is, the cluster with each change alone, and the cluster with all changes; then
    the first and the last of these at each of the rates `swept`, in bits per second. Raises UsageError for an
    impossible change."""
    for name in removed:
        if name == gateway:
            raise UsageError(f"--remove {name}: requests come in there; name another --gateway")
    everything = cluster
    alone: list[ClusterVariant] = []
    for one in added:
        alone.append(ClusterVariant(str(one), add_device(cluster, one)))
        everything = add_device(everything, one)
    for name in removed:
        alone.append(ClusterVariant(f"- {name}", remove_device(cluster, name)))
        everything = remove_device(everything, name)
    said = " ".join(one.what for one in alone)
    ends = [ClusterVariant(UNCHANGED, cluster), *([ClusterVariant(said, everything)] if alone else [])]
    yield ends[0]
    yield from alone if len(alone) > 1 else ()
    yield from ends[1:]
    for rate in swept:
        for end in ends:
            yield ClusterVariant(end.what, set_link_rates(end.cluster, rate / 8), rate)


def add_device(cluster: Cluster, one: Addition) -> Cluster:
    """The cluster with one more device, linked to all others. If the cluster has a device of the same kind,
    the new device takes its measured figures. Raises UsageError if the name is taken."""
    if cluster.routes and one.bytes_per_s is None:
        raise UsageError(
            f"--add: the cluster has no default link; say how {one.name!r} is linked: link=1Gbit/s"
        )
    if any(device.name == one.name for device in cluster.devices):
        raise UsageError(f"--add: two devices would be called {one.name!r}; name one of them otherwise")
    like = next((device for device in cluster.devices if device.kind == one.kind), None)
    made = _make_device(one, like)
    links = dict(cluster.links)
    if one.bytes_per_s is not None:
        link = replace(cluster.default_link, bytes_per_s=one.bytes_per_s)
        links |= {(one.name, device.name): link for device in cluster.devices}
    return replace(cluster, devices=(*cluster.devices, made), links=links)


def _make_device(one: Addition, like: Device | None) -> Device:
    if like is None:
        return KINDS[one.kind].device(one.name, one.memory_bytes)
    calibrated = like.with_drift(1.0)
    built_in = one.memory_bytes
    memory_bytes = like.memory_bytes if built_in is None else PLAN_MEMORY_SHARE * built_in
    return replace(calibrated, name=one.name, memory_bytes=memory_bytes)


def remove_device(cluster: Cluster, name: str) -> Cluster:
    """The cluster without that device. Raises UsageError if there is no such device, or no other device."""
    cluster.device(name)
    left = tuple(device.name for device in cluster.devices if device.name != name)
    if not left:
        raise UsageError(f"--remove {name}: nothing would be left")
    for ends, way in cluster.routes.items():
        if name in way[1:-1]:
            raise UsageError(f"--remove {name}: {ends[0]} reaches {ends[1]} only over it")
    return cluster.only(left)


def set_link_rates(cluster: Cluster, bytes_per_s: float) -> Cluster:
    """The cluster with every link and medium at that rate, and unchanged latencies."""

    def change(link: Link) -> Link:
        return replace(link, bytes_per_s=bytes_per_s)

    links = {pair: change(link) for pair, link in cluster.links.items()}
    media = tuple(replace(medium, bytes_per_s=bytes_per_s) for medium in cluster.media)
    return replace(cluster, links=links, media=media, default_link=change(cluster.default_link))
