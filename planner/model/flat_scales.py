"""Gives the flat scales and zero points of block-quantised products one row for each column. A pure rule.

MatMulNBits takes both `[columns * blocks]` and `[columns, blocks]`. ONNX Runtime's own quantiser wrote the first until
October 2025 (microsoft/onnxruntime, pull requests 24828 and 26329), so most int4 models have it. Flat, the blocks of a
column cannot be told apart, and a product could not be divided along its sum. Only the shape changes: the bytes of both
are the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from onnx import ModelProto, NodeProto, TensorProto

from edgepart.planner.model.subgraphs import captured_names

_WEIGHTS = 1
"""The index of the packed weights [columns, blocks, bytes] among the inputs."""
_BY_BLOCK = (2, 3)
"""The indices of scales and zero points among the inputs."""


def give_scales_rows(model: ModelProto) -> ModelProto:
    """The model with `[columns, values of a column]` for each flat initializer that only MatMulNBits reads, and always as
    scales or zero points of as many columns. Changes `model`."""
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    columns: dict[str, set[int]] = defaultdict(set)
    elsewhere = {value.name for value in (*graph.input, *graph.output, *graph.value_info)}
    for node in graph.node:
        elsewhere.update(captured_names(node))
        rows = dict(_rows(node, constants))
        for index, name in enumerate(node.input):
            if index in rows:
                columns[name].add(rows[index])
            else:
                elsewhere.add(name)
    for name, counts in columns.items():
        tensor = constants[name]
        count = counts.pop()
        if name not in elsewhere and not counts and tensor.dims[0] > 0 and tensor.dims[0] % count == 0:
            tensor.dims[:] = [count, tensor.dims[0] // count]
    return model


def _rows(node: NodeProto, constants: dict[str, TensorProto]) -> Iterator[tuple[int, int]]:
    """The index of each flat input of a MatMulNBits, and the number of columns."""
    if node.op_type != "MatMulNBits" or node.domain != "com.microsoft" or len(node.input) <= _WEIGHTS:
        return
    weights = constants.get(node.input[_WEIGHTS])
    if weights is None or len(weights.dims) != 3 or weights.dims[0] <= 0:
        return
    for index in _BY_BLOCK:
        flat = constants.get(node.input[index]) if index < len(node.input) else None
        if flat is not None and len(flat.dims) == 1:
            yield index, weights.dims[0]
