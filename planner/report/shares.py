"""Shares: derives from a plan alone what each device computes and how much it sends, for people. Pure
functions.

A plan knows regions but not the shapes of whole tensors. So the report says that devices divide a tensor
along the axes on which their regions differ."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from edgepart.planner.plans.plan import GATEWAY, Plan, Program, Run
from edgepart.planner.plans.reduced_precision import EXACT
from edgepart.planner.region import Region
from edgepart.planner.report.document import AXIS_NAMES, finite_or_none, replicas, segments_by_engine


def device_shares(plan: Plan) -> dict[str, dict[str, str]]:
    """The part that each device computes ("height 0:75", "whole") of each tensor that leaves a segment, by tensor and
    device; in the order of computation."""
    found: dict[str, dict[str, Region]] = defaultdict(dict)
    for name, program in plan.programs.items():
        for step in program.steps:
            if isinstance(step, Run) and step.segment < len(program.segments):
                for port in program.segments[step.segment].outputs:
                    found[port.piece.tensor][name] = port.piece.region
    return {tensor: _texts(regions) for tensor, regions in found.items()}


def _texts(regions: dict[str, Region]) -> dict[str, str]:
    axes = list(zip(*(region.spans for region in regions.values()), strict=True))
    differing = [axis for axis, spans in enumerate(axes) if len(set(spans)) > 1]
    names = AXIS_NAMES.get(len(axes), tuple(f"axis{n}" for n in range(len(axes))))
    return {
        device: ", ".join(
            f"{names[axis]} " + "+".join(f"{i.start}:{i.stop}" for i in region.spans[axis])
            for axis in differing
        )
        or "whole"
        for device, region in regions.items()
    }


def plan_report(plan: Plan) -> dict[str, Any]:
    """The JSON document in which an agent describes the plan that it serves."""
    return {
        "strategy": plan.strategy,
        "predicted_latency_s": plan.predicted_latency_s,
        "predicted_throughput_per_s": finite_or_none(plan.predicted_throughput_per_s),
        "devices": {name: _device(plan, program) for name, program in plan.programs.items()},
        "replicas": replicas(plan),
        "syncs": plan.syncs,
        "between": _between(plan),
        "inputs": [info.name for info in plan.inputs],
        "outputs": [info.name for info in plan.outputs],
        "shares": device_shares(plan),
        "transfer_dtype": plan.rounded_to or EXACT,
        "why": plan.why,
    }


def _between(plan: Plan) -> list[dict[str, Any]]:
    """The bytes that a request sends from device to device; with replicas, on the average if requests go to each alike."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for transfer in plan.transfers:
        if GATEWAY not in (transfer.source, transfer.target):
            found[transfer.source, transfer.target] += transfer.nbytes / len(plan.parts)
    return [{"source": one, "target": other, "bytes": nbytes} for (one, other), nbytes in found.items()]


def _device(plan: Plan, program: Program) -> dict[str, Any]:
    name = program.device
    between = [t for t in plan.transfers if GATEWAY not in (t.source, t.target)]
    return {
        "compute_s": sum(segment.compute_s for segment in program.segments),
        "flops": sum(segment.flops for segment in program.segments),
        "sent_bytes": sum(t.nbytes for t in between if t.source == name),
        "received_bytes": sum(t.nbytes for t in between if t.target == name),
        "from_gateway_bytes": sum(
            t.nbytes for t in plan.transfers if (t.source, t.target) == (GATEWAY, name)
        ),
        "to_gateway_bytes": sum(t.nbytes for t in plan.transfers if (t.source, t.target) == (name, GATEWAY)),
        "weight_bytes": program.weight_bytes,
        "peak_memory_bytes": program.peak_memory_bytes,
        "segments": sum(isinstance(step, Run) for step in program.steps),
        "engines": segments_by_engine(program),
    }
