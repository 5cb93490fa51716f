"""The JSON document of `edgepart plan --json`, made from a plan and its simulation. Pure functions."""

from __future__ import annotations

from collections import Counter
from math import isfinite
from typing import Any

from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.model.graph import Graph
from edgepart.planner.plans.plan import GATEWAY, Plan, Program, Run
from edgepart.planner.plans.reduced_precision import EXACT
from edgepart.planner.region import Region
from edgepart.planner.simulation.latency import Simulation

AXIS_NAMES = {
    4: ("batch", "channel", "height", "width"),
    3: ("batch", "sequence", "feature"),
    2: ("batch", "channel"),
}
"""Names of the axes of an activation, by rank."""


def plan_document(
    plan: Plan,
    simulation: Simulation,
    *,
    graph: Graph,
    strategy: Strategy,
    search_s: float,
    single: tuple[str, float] | None,
) -> dict[str, Any]:
    """The document that `edgepart plan --json` prints. `single` is the best single device and its seconds, None if none
    has the memory."""
    return {
        "model": graph.name,
        "notes": list(graph.notes),
        "strategy": plan.strategy,
        "predicted_latency_s": plan.predicted_latency_s,
        "predicted_throughput_per_s": finite_or_none(plan.predicted_throughput_per_s),
        "search_s": search_s,
        "devices": {
            name: _device(plan, program, simulation, graph, strategy)
            for name, program in plan.programs.items()
        },
        "replicas": replicas(plan),
        "syncs": plan.syncs,
        "baselines": {
            "single": None if single is None else {"device": single[0], "predicted_latency_s": single[1]}
        },
        "transfer_dtype": plan.rounded_to or EXACT,
        "why": plan.why,
    }


def replicas(plan: Plan) -> list[dict[str, Any]]:
    """The replicas that requests are balanced over; [] if all devices answer together."""
    return [
        {"devices": list(one.devices), "latency_s": one.latency_s, "between_s": one.between_s}
        for one in plan.replicas
    ]


def finite_or_none(number: float) -> float | None:
    """The number, or None for infinity, which strict JSON lacks: a plan that computes nothing has no bound on its
    throughput."""
    return number if isfinite(number) else None


def _device(
    plan: Plan, program: Program, simulation: Simulation, graph: Graph, strategy: Strategy
) -> dict[str, Any]:
    device = program.device
    return {
        "compute_s": simulation.compute_s.get(device, 0.0),
        "sent_bytes": simulation.sent_bytes.get(device, 0),
        "received_bytes": simulation.received_bytes.get(device, 0),
        "weight_bytes": program.weight_bytes,
        "peak_memory_bytes": program.peak_memory_bytes,
        "segments": sum(isinstance(step, Run) for step in program.steps),
        "engines": segments_by_engine(program),
        "messages": sum(device == t.source and t.target != GATEWAY for t in plan.transfers),
        "layers": computed_parts(graph, strategy, device),
    }


def segments_by_engine(program: Program) -> dict[str, int]:
    """The number of segments that each engine runs; "cpu" stands for the CPU."""
    return dict(Counter(segment.engine or "cpu" for segment in program.segments))


def computed_parts(graph: Graph, strategy: Strategy, device: str) -> dict[str, str]:
    """The part of each tensor that `device` computes, as text for people: "height 0:75", "whole"."""
    found: dict[str, str] = {}
    layouts = strategy.all_layouts
    for op in graph.operators:
        for name in filter(None, op.outputs):
            layout = layouts.get(name)
            region = layout.regions.get(device) if layout else None
            if region is not None and not region.is_empty:
                found[name] = part_text(region, graph.region_of(name))
    return found


def part_text(region: Region, full: Region) -> str:
    """A region of a tensor as text: the axes on which it is less than the full tensor, or "whole".

    >>> part_text(Region.box((0, 1), (0, 64), (0, 75), (0, 224)), Region.full((1, 64, 224, 224)))
    'height 0:75'
    """
    names = AXIS_NAMES.get(full.rank, tuple(f"axis{n}" for n in range(full.rank)))
    cut = [
        f"{name} " + "+".join(f"{i.start}:{i.stop}" for i in mine)
        for name, mine, all_ in zip(names, region.spans, full.spans, strict=True)
        if mine != all_
    ]
    return ", ".join(cut) or "whole"
