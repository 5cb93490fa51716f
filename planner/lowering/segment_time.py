"""Segment times: how long a segment takes, from its operators, its start and the copies of its values. Rules."""

from __future__ import annotations

from collections.abc import Sequence

from edgepart.planner.lowering.draft import Draft
from edgepart.planner.lowering.schedule import CostModel, Seconds, Stage, stage_s
from edgepart.planner.lowering.segment import Value, border_bytes, nbytes_of


def predict_segment_s(
    draft: Draft, stage: Stage, device: str, values: Sequence[Value], seconds: Seconds, cost: CostModel
) -> float:
    """Predicted seconds of the segment of a stage that has these inputs and outputs."""
    copied = border_bytes(draft.graph, values)
    predicted = cost.segment_s(device, stage.engine) + cost.copy_s(device, copied)
    predicted += stage_s(draft, stage, seconds, cost)
    if not stage.engine:
        return predicted
    engine = next(one for one in cost.engines(device) if one.name == stage.engine)
    return predicted + engine.copying_s(len(values), sum(nbytes_of(draft.graph, *value) for value in values))
