"""Model ends: the inputs and outputs of a model as clients see them. Rules: no door."""

from __future__ import annotations

from edgepart.planner.model.graph import Graph
from edgepart.planner.plans.plan import ValueInfo


def value_info(graph: Graph, name: str) -> ValueInfo:
    """An input or output of the model."""
    known = graph.constants.get(name) or graph.tensors[name]
    return ValueInfo(name, known.dtype, known.shape, graph.free.get(name, ()))
