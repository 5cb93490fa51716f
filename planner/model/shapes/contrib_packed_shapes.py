"""Output shapes of those operators of ONNX Runtime's own domain that have no counterpart in ONNX. Pure rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

Shape = tuple[int, ...]
Inputs = Sequence[Shape | None]
"""Shapes of a node's inputs; None for an input that is left out or has no known shape."""

_BYTES = (TensorProto.UINT8, TensorProto.INT8)


def infer_packed_output(node: NodeProto, shapes: Inputs, kinds: Sequence[int]) -> tuple[int, Shape] | None:
    """The element type and shape of output 0, from the inputs' shapes and element types (0 if not known);
    None if there is no rule for the operator, or not enough is known."""
    if node.op_type not in _RULES:
        return None
    rule, like = _RULES[node.op_type]
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    try:
        shape = rule(given, shapes, kinds)
    except (
        IndexError,
        KeyError,
        TypeError,
        ValueError,
    ):  # The node lacks something; the runtime says what.
        return None
    return (kinds[like], shape) if len(kinds) > like and kinds[like] else None


def _product(given: Mapping[str, Any], shapes: Inputs, kinds: Sequence[int]) -> Shape:
    """The shape of a matrix product with packed weights."""
    return (*_require_known(shapes[0])[:-1], int(given["N"]))


def _lookup(given: Mapping[str, Any], shapes: Inputs, kinds: Sequence[int]) -> Shape:
    """The shape of rows that are looked up in a table whose bytes may hold several values each."""
    data, indices = _require_known(shapes[0]), _require_known(shapes[1])
    if kinds[0] in _BYTES:
        data = (*data[:-1], data[-1] * (8 // int(given.get("bits", 4))))
    axis = int(given.get("gather_axis", 0)) % len(data)
    return (*data[:axis], *indices, *data[axis + 1 :])


def _concatenation(given: Mapping[str, Any], shapes: Inputs, kinds: Sequence[int]) -> Shape:
    parts = [_require_known(shape) for shape in shapes[2::3]]
    axis = int(given["axis"]) % len(parts[0])
    return (*parts[0][:axis], sum(part[axis] for part in parts), *parts[0][axis + 1 :])


def _selection(given: Mapping[str, Any], shapes: Inputs, kinds: Sequence[int]) -> Shape:
    return np.broadcast_shapes(*(_require_known(shapes[index]) for index in (0, 1, 4)))


def _reduction(given: Mapping[str, Any], shapes: Inputs, kinds: Sequence[int]) -> Shape:
    shape = _require_known(shapes[0])
    axes = {axis % len(shape) for axis in given["axes"]}
    kept = [1 if axis in axes else extent for axis, extent in enumerate(shape)]
    return tuple(e for axis, e in enumerate(kept) if given.get("keepdims", 1) or axis not in axes)


def _require_known(shape: Shape | None) -> Shape:
    """Returns `shape`. Raises ValueError if it is not known."""
    if shape is None:
        raise ValueError("not known")
    return shape


_RULES: Mapping[str, tuple[Callable[[Mapping[str, Any], Inputs, Sequence[int]], Shape], int]] = {
    "GatherBlockQuantized": (_lookup, 2),
    "MatMulBnb4": (_product, 0),
    "MatMulNBits": (_product, 0),
    "QLinearConcat": (_concatenation, 1),
    "QLinearReduceMean": (_reduction, 0),
    "QLinearWhere": (_selection, 1),
}
"""Maps each operator to its rule, and to the number of the input whose element type the output has."""
