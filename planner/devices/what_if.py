"""What-if: clusters as they would be with other boxes and other links. Rules only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from edgepart.planner.devices.boards import KINDS
from edgepart.planner.devices.cluster import LEAST, MOST, Cluster, Device, Link
from edgepart.planner.errors import UsageError

BITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}

AS_IT_IS = "as it is"


@dataclass(frozen=True)
class Addition:
    """A box that is thought of."""

    kind: str
    name: str
    bytes_per_s: float | None = None
    """Of its links; None as the cluster's default link."""
    memory_bytes: float | None = None
    """Built in; None as its kind has."""

    def __str__(self) -> str:
        return f"+ {self.name} ({self.kind})"


@dataclass(frozen=True)
class ClusterVariant:
    """A cluster, and what is different in it."""

    what: str
    cluster: Cluster
    bits_per_s: float | None = None
    """Of all its links, where they are swept."""


def addition(text: str, cluster: Cluster) -> Addition:
    """From "kind=pi5,link=1Gbit/s,name=x,memory=8e9"; UsageError for what is none."""
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
    name = given.get("name") or next(n for k in range(1, 10_000) if (n := f"{kind}-{k}") not in names)
    if name in names:
        raise UsageError(f"--add {text!r}: there is a device {name!r}; give it another name")
    rate = bits(given["link"], "--add") / 8 if "link" in given else None
    return Addition(kind, name, rate, _bytes(given["memory"]) if "memory" in given else None)


def bits(text: str, option: str) -> float:
    """Bits a second.

    >>> bits("1Gbit/s", "--add"), bits("100M", "--sweep"), bits("12.5MB/s", "--add")
    (1000000000.0, 100000000.0, 100000000.0)
    """
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([KMG]?)(bit/s|bps|B/s)?", text.strip(), re.IGNORECASE)
    found = float(match[1]) * BITS[match[2].upper()] * (8 if match[3] == "B/s" else 1) if match else 0.0
    if not LEAST <= found <= MOST:
        raise UsageError(f"{option}: {text!r} is no rate; write it as 100M, 1Gbit/s or 12.5MB/s")
    return found


def _bytes(text: str) -> float:
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([KMG]?)B?", text.strip(), re.IGNORECASE)
    if not match or not float(match[1]):
        raise UsageError(f"--add: memory={text!r} is no size; write it as 8G")
    return float(match[1]) * BITS[match[2].upper()]


def rates(text: str) -> tuple[float, ...]:
    """Bits a second, of "links=10M,100M,1G"."""
    key, equals, values = text.partition("=")
    if not equals or key.strip() != "links" or not values.strip():
        raise UsageError(f"--sweep {text!r}: write it as links=10M,100M,1G")
    return tuple(bits(value, "--sweep") for value in values.split(","))


def variants(
    cluster: Cluster, added: Sequence[Addition], removed: Sequence[str], swept: Sequence[float], gateway: str
) -> Iterator[ClusterVariant]:
    """The cluster as it is, with each change alone, and with all of them; each of the first and the last at all rates.
    UsageError for what cannot be changed so."""
    for name in removed:
        if name == gateway:
            raise UsageError(f"--remove {name}: requests come in there; name another --gateway")
    everything = cluster
    alone: list[ClusterVariant] = []
    for one in added:
        alone.append(ClusterVariant(str(one), with_one(cluster, one)))
        everything = with_one(everything, one)
    for name in removed:
        alone.append(ClusterVariant(f"- {name}", without(cluster, name)))
        everything = without(everything, name)
    said = " ".join(one.what for one in alone)
    ends = [ClusterVariant(AS_IT_IS, cluster), *([ClusterVariant(said, everything)] if alone else [])]
    yield ends[0]
    yield from alone if len(alone) > 1 else ()
    yield from ends[1:]
    for rate in swept:
        for end in ends:
            yield ClusterVariant(end.what, at_rate(end.cluster, rate / 8), rate)


def with_one(cluster: Cluster, one: Addition) -> Cluster:
    """With one box more, linked to all others. A kind that the cluster has is as measured there."""
    if any(device.name == one.name for device in cluster.devices):
        raise UsageError(f"--add: two devices would be called {one.name!r}; name one of them otherwise")
    like = next((device for device in cluster.devices if device.kind == one.kind), None)
    made = _made(one, like)
    links = dict(cluster.links)
    if one.bytes_per_s is not None:
        link = replace(cluster.default_link, bytes_per_s=one.bytes_per_s)
        links |= {(one.name, device.name): link for device in cluster.devices}
    return replace(cluster, devices=(*cluster.devices, made), links=links)


def _made(one: Addition, like: Device | None) -> Device:
    if like is None:
        return KINDS[one.kind].device(one.name, one.memory_bytes)
    calibrated = like.drifted(1.0)
    return replace(calibrated, name=one.name, memory_bytes=one.memory_bytes or like.memory_bytes)


def without(cluster: Cluster, name: str) -> Cluster:
    """Without that box. UsageError where there is none of that name, or nothing else."""
    cluster.device(name)
    left = tuple(device.name for device in cluster.devices if device.name != name)
    if not left:
        raise UsageError(f"--remove {name}: nothing would be left")
    return cluster.only(left)


def at_rate(cluster: Cluster, bytes_per_s: float) -> Cluster:
    """With every link, and what links share, at that rate; latencies as they are."""

    def changed(link: Link) -> Link:
        return replace(link, bytes_per_s=bytes_per_s)

    links = {pair: changed(link) for pair, link in cluster.links.items()}
    media = tuple(replace(medium, bytes_per_s=bytes_per_s) for medium in cluster.media)
    return replace(cluster, links=links, media=media, default_link=changed(cluster.default_link))
