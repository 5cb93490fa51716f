"""The distribution of a model's FLOPs, and the axes along which the operators that do them can be split."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from onnx import GraphProto

from edgepart.planner.access import accesses
from edgepart.planner.access.declare.protocol import Access, Axis
from edgepart.planner.model.graph import Graph, Operator

WORST = 3
"""Number of opaque operator types that are named."""


@dataclass(frozen=True)
class Costs:
    """The costs of one model."""

    flops: float
    by_axis: Mapping[str, float]
    """FLOPs of the operators that have the axis, if it is long enough for two devices."""
    opaque_by_type: Mapping[str, float]
    """FLOPs of the operators that cannot be split at all, by operator type."""
    unsplit_flops: float
    """FLOPs of operators that could be split but have no axis long enough here."""

    @property
    def shares(self) -> dict[str, float]:
        return {name: flops / self.flops for name, flops in self.by_axis.items() if self.flops}

    @cached_property
    def opaque(self) -> float:
        """The share of the FLOPs that is in opaque operators."""
        return sum(self.opaque_by_type.values()) / self.flops if self.flops else 0.0

    @property
    def unsplit(self) -> float:
        return self.unsplit_flops / self.flops if self.flops else 0.0

    @property
    def worst(self) -> list[tuple[str, float]]:
        """The opaque operator types with their shares, the most costly first, `WORST` at most."""
        costly = sorted(self.opaque_by_type.items(), key=lambda one: (-one[1], one[0]))
        return [(kind, flops / self.flops) for kind, flops in costly[:WORST] if flops]


def costs_of(graph: Graph) -> Costs:
    """Return the costs of all operators of a graph whose shapes are bound."""
    found = accesses(graph)
    by_axis, opaque = defaultdict[str, float](float), defaultdict[str, float](float)
    total = unsplit = 0.0
    for op in graph.operators:
        access = found[op.name]
        flops = _flops(op, access, graph)
        total += flops
        names = {axis.name for axis in access.axes() if _splits(axis)}
        for name in names:
            by_axis[name] += flops
        if access.opaque is not None:
            opaque[op.op_type] += flops
        elif not names:
            unsplit += flops
    return Costs(total, by_axis, opaque, unsplit)


def _splits(axis: Axis) -> bool:
    return axis.extent >= 2 * axis.quantum


def _flops(op: Operator, access: Access, graph: Graph) -> float:
    own = access.flops({n: graph.region_of(name) for n, name in enumerate(op.outputs) if name})
    return own if access.opaque is None else max(own, _steps(op, graph) * _products(op, graph))


def _products(op: Operator, graph: Graph) -> float:
    """Return a lower bound on an opaque operator's FLOPs in one step: a multiplication and an addition for
    each element of every matrix among its inputs and in its sub-graphs. For an If, the costlier branch
    counts."""
    held = (graph.shape_of(name) for name in (*op.inputs, *op.captured) if name in graph.constants)
    bodies = [_held(value) for value in op.attributes.values() if isinstance(value, GraphProto)]
    inner = max(bodies, default=0.0) if op.op_type == "If" else sum(bodies)
    return inner + sum(_product(shape) for shape in held if shape is not None)


def _product(shape: Sequence[int]) -> float:
    return 2.0 * math.prod(shape) if len(shape) > 1 else 0.0


def _held(body: GraphProto) -> float:
    """Return the FLOPs of the matrices in a sub-graph and in those inside it."""
    found = sum(_product(tensor.dims) for tensor in body.initializer)
    for attribute in (one for node in body.node for one in node.attribute):
        found += _product(attribute.t.dims) if attribute.HasField("t") else 0.0
        found += _held(attribute.g) if attribute.HasField("g") else 0.0
    return found


def _steps(op: Operator, graph: Graph) -> int:
    """Return how often the body of a Loop or Scan runs; 1 if that is unknown, and for other operators."""
    if op.op_type == "Loop" and op.inputs[0] in graph.constants:
        return max(1, int(graph.constants[op.inputs[0]].load().reshape(-1)[0]))
    if op.op_type == "Scan" and (shape := graph.shape_of(op.inputs[-1])):
        return shape[0]
    return 1
