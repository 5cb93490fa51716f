"""Trace records: the trace that an agent delivers, as bars on one clock. Rules: no door.

A bar is a span with the name of its device. Waits that belong together are joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgepart.agent.cluster.state.bindings import parent_of
from edgepart.agent.trace.spans import COMPUTING, REQUEST, WAIT
from edgepart.planner.errors import ClusterError
from edgepart.planner.plans.plan import GATEWAY

JOINED_S = 100e-6
"""Two waits for the same message that are no further apart are joined: the thread only woke up in between."""

Epoch = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SpanBar:
    """A span on the clock of the trace's gateway, in seconds since the trace began."""

    device: str
    lane: str
    kind: str
    start_s: float
    stop_s: float
    deployment: str
    epoch: Epoch
    request: str
    what: str
    peer: str
    """The name of the device at the other end; GATEWAY if that is the request's gateway."""
    transfer: int
    nbytes: int
    cpu_s: float

    @property
    def took_s(self) -> float:
        return self.stop_s - self.start_s


@dataclass(frozen=True, slots=True)
class DeviceTrace:
    """The facts about one device's part of the trace, besides its bars."""

    device: str
    clock_error_s: float
    """The largest error of the times of its bars, in seconds."""
    forgotten: int
    """The number of its first spans, which are missing because there was no room for them."""


@dataclass(frozen=True)
class PlanShape:
    """The parts of a plan that matter for times. Devices have the names of members."""

    predicted_latency_s: float
    steps: Mapping[str, tuple[tuple[str, float], ...]]
    """Maps each device to its steps: ("run", predicted seconds), ("send", transfer) and ("receive", transfer)."""
    messages: tuple[tuple[str, str, int], ...]
    """The source, the target and the bytes of each transfer, by its number."""
    replicas: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Trace:
    """A whole trace."""

    model: str
    gateway: str
    """The device whose clock all times use."""
    seconds: float
    parts: tuple[DeviceTrace, ...]
    bars: tuple[SpanBar, ...]
    """Ordered by start."""
    plans: Mapping[tuple[str, Epoch], PlanShape]
    missing: Mapping[str, str]
    """Maps each device that is missing to the reason."""

    def requests(self) -> list[SpanBar]:
        """The requests of the traced model that were recorded from beginning to end, ordered by start."""
        whole_from = max((self._first(part) for part in self.parts if part.forgotten), default=0.0)
        return [
            bar
            for bar in self.bars
            if bar.kind == REQUEST and parent_of(bar.deployment) == self.model and bar.start_s >= whole_from
        ]

    def _first(self, part: DeviceTrace) -> float:
        return min((bar.start_s for bar in self.bars if bar.device == part.device), default=0.0)

    def of_request(self, request: str) -> list[SpanBar]:
        return [bar for bar in self.bars if bar.request == request]


def typical(requests: Iterable[SpanBar]) -> SpanBar | None:
    """The request of median duration; of two, the shorter one."""
    ordered = sorted(requests, key=lambda bar: bar.took_s)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def read(document: Mapping[str, Any]) -> Trace:
    """The trace in the agent's document. Raises ClusterError if the document does not have the form of this version."""
    try:
        return _read(document)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ClusterError(
            f"the agent's trace cannot be read ({error!r}); the agent may have another version"
        ) from error


def _read(document: Mapping[str, Any]) -> Trace:
    names = {part["node"]: part["name"] for part in document["devices"]}
    for plan in document["plans"]:
        names |= {node: names.get(node, device) for device, node in plan["nodes"].items()}
    origin_s = document["began_s"]
    bars = [_bar(part["name"], row, names, origin_s) for part in document["devices"] for row in part["spans"]]
    return Trace(
        model=document["model"],
        gateway=document["gateway"],
        seconds=document["ended_s"] - origin_s,
        parts=tuple(
            DeviceTrace(part["name"], part["clock_error_s"], part["forgotten"])
            for part in document["devices"]
        ),
        bars=tuple(join_waits(bars)),
        plans={_key(plan): _shape(plan, names) for plan in document["plans"]},
        missing=dict(document["missing"]),
    )


def _bar(device: str, row: list[Any], names: Mapping[str, str], origin_s: float) -> SpanBar:
    lane, kind, began_s, took_s, deployment, term, number, request, what, peer, *rest = row
    if not all(isinstance(text, str) for text in (lane, kind, deployment, request, what, peer)):
        raise TypeError(f"a span {str(row)[:80]}")
    direction, _, node = lane.partition(" ")
    lane = f"{direction} {names.get(node, node)}" if node else lane
    start_s = began_s - origin_s
    about = (deployment, (term, number), request, what, names.get(peer, peer))
    return SpanBar(device, lane, kind, start_s, start_s + max(0.0, took_s), *about, *rest)


def _key(plan: Mapping[str, Any]) -> tuple[str, Epoch]:
    term, number = plan["epoch"]
    return plan["deployment"], (term, number)


def _shape(plan: Mapping[str, Any], names: Mapping[str, str]) -> PlanShape:
    called = {device: names[node] for device, node in plan["nodes"].items()} | {GATEWAY: GATEWAY}
    return PlanShape(
        predicted_latency_s=plan["predicted_latency_s"],
        steps={called[device]: tuple((k, v) for k, v in steps) for device, steps in plan["steps"].items()},
        messages=tuple(
            (called[source], called[target], nbytes) for source, target, nbytes in plan["messages"]
        ),
        replicas=tuple(tuple(called[device] for device in one) for one in plan["replicas"]),
    )


def join_waits(bars: Iterable[SpanBar]) -> list[SpanBar]:
    """The bars ordered by start, with successive waits for the same message joined."""
    found: list[SpanBar] = []
    last: dict[str, int] = {}
    """Maps each device to the index of its last bar of the computing lane."""
    for bar in sorted(bars, key=lambda bar: (bar.start_s, bar.stop_s)):
        if bar.lane == COMPUTING:
            before = found[last[bar.device]] if bar.device in last else None
            if before is not None and _one_wait(before, bar):
                found[last[bar.device]] = replace(before, stop_s=max(before.stop_s, bar.stop_s))
                continue
            last[bar.device] = len(found)
        found.append(bar)
    return found


def _one_wait(before: SpanBar, after: SpanBar) -> bool:
    same = (before.request, before.transfer) == (after.request, after.transfer)
    return before.kind == after.kind == WAIT and same and after.start_s - before.stop_s < JOINED_S
