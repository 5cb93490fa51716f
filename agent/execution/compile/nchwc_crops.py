"""Block crops: crops rows and columns of blocked values inside a segment (nchwc.py). Rules: ONNX protos only.

ONNX Runtime's optimiser crops plain values only: between two convolutions, a value is put into the plain order, cropped and
put back. Rows and columns of a blocked array are as easy to crop if the array is seen by its blocks, in the shape
(N * C / block, H, W, block).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
    shape_inference,
)

from edgepart.agent.execution.compile.nchwc import DOMAIN, transposes

Shape = tuple[int, ...]


def shapes_of(model: ModelProto) -> dict[str, Shape]:
    """The shapes of the values whose extents are all known, by name. The model must not be optimised yet."""
    graph = shape_inference.infer_shapes(model).graph
    values = (*graph.input, *graph.output, *graph.value_info)
    return {value.name: shape for value in values if (shape := _shape(value)) is not None}


def _shape(value: ValueInfoProto) -> Shape | None:
    kind = value.type.tensor_type
    extents = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim]
    return tuple(extents) if kind.HasField("shape") and min(extents, default=0) >= 0 else None


def crop_in_blocks(model: ModelProto, block: int, shapes: Mapping[str, Shape]) -> int:
    """Change an optimised model so that values that were reordered only to be cropped are cropped in blocks of `block`.
    Return the number of such crops. `shapes` are the shapes of the model's values before it was optimised, as plain values
    keep their names."""
    graph = model.graph
    crops = _Crops(graph, block, shapes)
    blocked = {
        node.output[0]: node.input[0]
        for node in graph.node
        if _is(node, DOMAIN, "ReorderOutput") and not transposes(node)
    }
    instead: dict[str, str] = {}
    nodes: list[NodeProto] = []
    cropped: set[str] = set()
    for node in graph.node:
        source = blocked.get(node.input[0]) if node.input else None
        if source is not None and _is(node, "", "Slice") and crops.can(node):
            name = node.output[0]
            made = crops.crop_operators(node, instead.get(source, source))
            nodes += made
            blocked[name] = made[-1].output[0]
            cropped.add(name)
        elif node.input and node.input[0] in cropped:  # This operator only reorders (see `can`).
            instead[node.output[0]] = blocked[node.input[0]]
        else:
            kept = NodeProto.FromString(node.SerializeToString())
            kept.input[:] = [instead.get(name, name) for name in kept.input]
            nodes.append(kept)
    read = {name for node in nodes for name in node.input} | {value.name for value in graph.output}
    nodes = [node for node in nodes if not _is(node, DOMAIN, "ReorderOutput") or node.output[0] in read]
    del graph.node[:]
    graph.node.extend(nodes)
    return len(cropped)


class _Crops:
    """The crops of one graph."""

    def __init__(self, graph: GraphProto, block: int, shapes: Mapping[str, Shape]) -> None:
        self._graph, self._block, self._shapes = graph, block, shapes
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._ends = {value.name for value in graph.output}
        self._readers: Mapping[str, list[NodeProto]] = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self._readers[name].append(node)

    def can(self, node: NodeProto) -> bool:
        """Whether the node crops rows and columns, and all readers of its output reorder it or crop it once more."""
        before, after = self._shapes.get(node.input[0]), self._shapes.get(node.output[0])
        if before is None or after is None or len(after) != 4 or after[1] % self._block:
            return False
        readers = self._readers[node.output[0]]
        return (
            bool(readers)
            and node.output[0] not in self._ends
            and _bounds(node, self._constants) is not None
            and all(
                (_is(one, DOMAIN, "ReorderInput") and not transposes(one))
                or (_is(one, "", "Slice") and self.can(one))
                for one in readers
            )
        )

    def crop_operators(self, node: NodeProto, source: str) -> list[NodeProto]:
        """The operators that crop `source`, the blocked form of the node's input."""
        bounds = _bounds(node, self._constants)
        if bounds is None:
            raise ValueError(f"{node.output[0]!r} is no crop of rows and columns")
        name = node.output[0]
        batch, channels, height, width = self._shapes[node.input[0]]
        seen, cut, whole = f"{name}/seen", f"{name}/cut", f"{name}/blocked"
        by_block = (batch * channels // self._block, height, width, self._block)
        axes = [axis - 1 for axis in bounds.axes]
        if bounds.are_inputs:
            at = {"starts": bounds.starts, "ends": bounds.ends, "axes": axes}
            reads = [self._constant(f"{name}/{what}", values) for what, values in at.items()]
            crop = helper.make_node("Slice", [seen, *reads], [cut])
        else:
            crop = helper.make_node("Slice", [seen], [cut], starts=bounds.starts, ends=bounds.ends, axes=axes)
        return [
            helper.make_node("Reshape", [source, self._constant(f"{name}/by block", by_block)], [seen]),
            crop,
            helper.make_node("Reshape", [cut, self._constant(f"{name}/shape", self._shapes[name])], [whole]),
        ]

    def _constant(self, name: str, values: Sequence[int]) -> str:
        self._graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name


def _is(node: NodeProto, domain: str, op_type: str) -> bool:
    return (node.domain, node.op_type) == (domain, op_type)


@dataclass(frozen=True)
class _CropBounds:
    """The bounds of a crop of rows and columns."""

    starts: Sequence[int]
    ends: Sequence[int]
    axes: Sequence[int]
    """The axes of (N, C, H, W) that are cropped."""
    are_inputs: bool
    """Whether the bounds are inputs, as from operator set 10 on; before that they are attributes."""


def _bounds(node: NodeProto, constants: Mapping[str, TensorProto]) -> _CropBounds | None:
    """The bounds of a crop; None if other axes are cropped, in steps, or by bounds that are not constants."""
    are_inputs = len(node.input) > 1
    given: dict[str, list[int]] = {}
    if are_inputs:
        for what, name in zip(("starts", "ends", "axes", "steps"), node.input[1:], strict=False):
            if name and name not in constants:
                return None
            given |= {what: numpy_helper.to_array(constants[name]).tolist()} if name else {}
    else:
        given = {attribute.name: list(attribute.ints) for attribute in node.attribute}
    axes = [axis % 4 for axis in given.get("axes", range(len(given["starts"])))]
    if not set(axes) <= {2, 3} or any(step != 1 for step in given.get("steps", ())):
        return None
    return _CropBounds(given["starts"], given["ends"], axes, are_inputs)
