"""The plans of a simulated cluster, as far as devices read them: routes of requests, and for decoders a Plan whose devices
keep caches and may mirror each other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from zlib import crc32

from edgepart.agent.cluster.state.events import LoadPlan
from edgepart.agent.wire.inference import Epoch
from edgepart.planner.plans.plan import Plan
from tests.simulation.decoder_layers import TextPart, text_part

TWO_SIDES = 4
"""Minimum number of devices of a plan that has two replicas."""
MIRRORED = 0.8
"""The share of plans with mirrors, in seeds that have any."""

Routes = tuple[tuple[str, ...], ...]
"""The route of each replica: its devices in the order in which they compute."""


@dataclass(frozen=True)
class Held:
    """A plan of a decoder that a device holds, as KnownPlan has it. Devices are named as their nodes."""

    plan: Plan
    nodes: Mapping[str, str]


def routes(order: LoadPlan) -> Routes:
    """The route of each replica of a plan."""
    nodes = [node for _, node in order.names]
    if len(nodes) < TWO_SIDES or len(json.loads(order.plan)) != len(nodes):
        return (tuple(nodes),)
    return tuple(nodes[::2]), tuple(nodes[1::2])


def held_plan(order: LoadPlan, *, mirrors: bool) -> Held:
    """The plan of an order to load a decoder. `mirrors`: whether plans may have mirrors; all boxes agree on which have."""
    return _held(routes(order), mirrors and _is_mirrored(order.epoch))


def text_part_of(route: tuple[str, ...], node: str, *, fits_rows: bool = True) -> TextPart:
    """The layers of a device of this route."""
    return text_part(route.index(node), len(route), fits_rows=fits_rows)


def _is_mirrored(epoch: Epoch) -> bool:
    return crc32(f"{epoch.term} {epoch.number}".encode()) % 1000 < 1000 * MIRRORED


@cache
def _held(found: Routes, mirrored: bool) -> Held:
    programs = {node: text_part_of(route, node).program for route in found for node in route}
    ring = list(programs)
    pairs = zip(ring, (*ring[1:], *ring[:1]), strict=True) if mirrored and len(ring) > 1 else ()
    mirrors = {node: mirror for node, mirror in pairs if programs[node].kept}
    plan = Plan("the decoder", "by formula", programs, (), (), (), mirrors=mirrors)
    return Held(plan, {node: node for node in ring})
