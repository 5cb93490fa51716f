"""Draws small convolutional models and layouts for them, for hypothesis: random cuts, overlaps, replicas,
devices that sit out, whole operators on different devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgepart.planner.access import access_of
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.layout.strategy import Layout, Problem, Strategy, Sync
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.region import Array, span

NAMES = ("ada", "bob", "cyd")

CLUSTER = Cluster(
    tuple(Device(name, "test", 1e9, 1e9, 1e9) for name in NAMES),
    {("ada", "cyd"): Link(bytes_per_s=1e6, latency_s=0.01)},
)


@dataclass
class Builder:
    """A model while it grows."""

    draw: Callable[..., Any]
    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def weight(self, *shape: int) -> str:
        rng = np.random.default_rng(self.seed + len(self.weights))
        name = f"w{len(self.weights)}"
        values = rng.standard_normal(shape) / max(1, prod(shape[1:])) ** 0.5
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def node(self, kind: str, inputs: Sequence[str], shape: tuple[int, ...], **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], f"{kind}_{len(self.nodes)}", **attributes))
        self.shapes[name] = shape
        return name

    def spatial(self) -> str:
        return str(self.draw(st.sampled_from([n for n, shape in self.shapes.items() if len(shape) == 4])))

    def grow(self) -> None:
        getattr(self, self.draw(st.sampled_from(["conv", "conv", "relu", "pool", "add", "concat"])))()

    def conv(self) -> None:
        source = self.spatial()
        n, c, h, w = self.shapes[source]
        k, stride = self.draw(st.sampled_from([(1, 1), (3, 1), (3, 2), (5, 1)]))
        pad, groups = self.draw(st.integers(0, k // 2)), self.draw(st.sampled_from([1, 1, c]))
        size = [(extent + 2 * pad - k) // stride + 1 for extent in (h, w)]
        if min(size) < 1:
            return
        made = c * self.draw(st.integers(1, 2)) if groups > 1 else self.draw(st.integers(2, 5))
        inputs = [source, self.weight(made, c // groups, k, k), self.weight(made)]
        shape = (n, made, *size)
        self.node(
            "Conv", inputs, shape, kernel_shape=[k, k], pads=[pad] * 4, strides=[stride] * 2, group=groups
        )

    def relu(self) -> None:
        source = self.spatial()
        self.node("Relu", [source], self.shapes[source])

    def pool(self) -> None:
        source = self.spatial()
        n, c, h, w = self.shapes[source]
        kind = self.draw(st.sampled_from(["MaxPool", "AveragePool"]))
        if min(h, w) >= 3:
            shape = (n, c, (h + 2 - 3) // 2 + 1, (w + 2 - 3) // 2 + 1)
            self.node(kind, [source], shape, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])

    def add(self) -> None:
        one = self.spatial()
        same = [name for name, shape in self.shapes.items() if shape == self.shapes[one]]
        self.node("Add", [one, self.draw(st.sampled_from(same))], self.shapes[one])

    def concat(self) -> None:
        one = self.spatial()
        n, c, h, w = self.shapes[one]
        like = [x for x, shape in self.shapes.items() if len(shape) == 4 and shape[2:] == (h, w)]
        two = self.draw(st.sampled_from(like))
        self.node("Concat", [one, two], (n, c + self.shapes[two][1], h, w), axis=1)

    def head(self) -> None:
        source = self.spatial()
        n, c, _, _ = self.shapes[source]
        pooled = self.node("GlobalAveragePool", [source], (n, c, 1, 1))
        flat = self.node("Flatten", [pooled], (n, c))
        self.node("Gemm", [flat, self.weight(c, 6), self.weight(6)], (n, 6))

    def model(self) -> onnx.ModelProto:
        read = {name for node in self.nodes for name in node.input}
        ends = [node.output[0] for node in self.nodes if node.output[0] not in read]
        also = self.draw(st.sampled_from([node.output[0] for node in self.nodes]))
        outputs = list(dict.fromkeys([*ends, also]))
        infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, self.shapes[n]) for n in outputs]
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shapes["x"])
        graph = helper.make_graph(self.nodes, "random", [given], infos, self.weights)
        opset = self.draw(st.sampled_from([9, 13, 17]))
        model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
        onnx.checker.check_model(model)
        return model


@st.composite
def models(draw: Callable[..., Any]) -> onnx.ModelProto:
    builder = Builder(draw, draw(st.integers(0, 1000)))
    builder.shapes["x"] = (draw(st.integers(1, 2)), 2, draw(st.integers(5, 10)), draw(st.integers(5, 10)))
    builder.relu()
    for _ in range(draw(st.integers(2, 7))):
        builder.grow()
    if draw(st.booleans()):
        builder.head()
    return builder.model()


def strategies_for(graph: Graph, syncs: Sequence[Sync] = tuple(Sync)) -> st.SearchStrategy[Strategy]:
    @st.composite
    def strategies(draw: Callable[..., Any]) -> Strategy:
        layouts = {
            name: draw(layout_of(op, index, graph))
            for op in graph.operators
            for index, name in enumerate(op.outputs)
            if name
        }
        size = draw(st.integers(1, 3))
        layers = {op.name: n // size for n, op in enumerate(graph.operators)}
        return Strategy("random", layouts, draw(st.sampled_from(syncs)), draw(st.sampled_from(NAMES)), layers)

    return strategies()


@st.composite
def layout_of(draw: Callable[..., Any], op: Operator, index: int, graph: Graph) -> Layout:
    """Whole on some devices, or cut along an axis that the operator declares, at times with an overlap."""
    access, full = access_of(op, graph), graph.region_of(op.outputs[index])
    devices = draw(st.permutations(NAMES))[: draw(st.integers(1, len(NAMES)))]
    axes = [axis for axis in access.axes() if axis.reducer is None] if index == 0 else []
    if access.opaque or not axes or draw(st.integers(0, 4)) == 0:
        return Layout(dict.fromkeys(devices, full))
    axis = draw(st.sampled_from(axes))
    steps = axis.extent // axis.quantum
    cuts = sorted(draw(st.integers(0, steps)) for _ in devices[1:])
    regions = {}
    for device, start, stop in zip(devices, [0, *cuts], [*cuts, steps], strict=True):
        more = draw(st.integers(0, 1)) if start < stop else 0
        bounds = ((max(0, start - more)) * axis.quantum, min(steps, stop + more) * axis.quantum)
        regions[device] = full.replace(axis.index, span(bounds))
    return Layout(regions)


def problem_of(graph: Graph, gateway: str = "ada") -> Problem:
    return Problem(graph, CLUSTER, gateway)


def inputs_of(graph: Graph, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(graph.shape_of(name)).astype(np.float32) for name in graph.inputs}


def rows(
    graph: Graph, devices: Sequence[str], axis_name: str = "height", sync: Sync = Sync.NEEDED
) -> Strategy:
    """Whatever has the axis is cut evenly along it, everything else is whole on the first device."""
    layouts = {}
    for op in graph.operators:
        access = access_of(op, graph)
        found = [axis for axis in access.axes() if axis.name == axis_name and axis.reducer is None]
        for name in filter(None, op.outputs):
            full = graph.region_of(name)
            if access.opaque or not found or found[0].extent // found[0].quantum < len(devices):
                layouts[name] = Layout({devices[0]: full})
                continue
            axis, parts = found[0], len(devices)
            steps = axis.extent // axis.quantum
            cuts = [steps * n // parts * axis.quantum for n in range(parts)] + [axis.extent]
            regions = [full.replace(axis.index, span(bounds)) for bounds in pairwise(cuts)]
            layouts[name] = Layout(dict(zip(devices, regions, strict=True)))
    return Strategy("rows", layouts, sync, devices[-1], {op.name: n for n, op in enumerate(graph.operators)})
