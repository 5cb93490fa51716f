"""Sample inputs: makes up inputs with which a model can be tried. Rules over numpy; chance is an argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edgepart.agent.wire.dtypes import NUMBERS, element_dtype
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import UsageError
from edgepart.planner.model.graph import Graph

if TYPE_CHECKING:
    from onnx import TypeProto

DIVIDING_OPERATORS = ("Div", "Mod")
"""Operators that end the whole process if they divide integers by zero."""

SEQUENCE_ITEMS = 2
"""Number of items in a made-up sequence."""
_KINDS = {number: name for name, number in NUMBERS.items()}
"""The names of ONNX's element types by their numbers."""


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, Value]:
    """A value for each input that a request brings, of its type and shape.

    Floating-point numbers are drawn from the normal distribution. int8 and uint8 are drawn from all values, as pixels and
    quantised numbers are. Wider integers are 0 or 1, because they may be indices; in a model with divisions integers are
    at least 1. Raises UsageError for an input of unknown shape, or of a type that cannot be made up."""
    from onnx import (
        TypeProto,  # Here, as an agent needs nothing of onnx but this, and this only where it checks.
    )

    draw = np.random.default_rng(seed)
    lowest = 1 if any(op.op_type in DIVIDING_OPERATORS for op in graph.operators) else 0
    made: dict[str, Value] = {}
    for name in graph.request_inputs:
        tensor = graph.tensors[name]
        if tensor.kind:
            made[name] = _of_type(TypeProto.FromString(tensor.kind), name, draw, lowest)
            continue
        if tensor.shape is None:
            raise UsageError(f"input {name!r} has no shape; give one: --shape {name}=1,3,224,224")
        made[name] = _array(tensor.dtype, tensor.shape, name, draw, lowest)
    return made


def sample_value(dtype: str, shape: tuple[int, ...], name: str, seed: int = 0) -> Any:
    """A value for an input of that ONNX element type, for a model of which nothing else is known. Integers are at least 1,
    so that a model can divide by them; those wider than a byte are 1, which is also good as an index. Floating-point
    numbers lie from 0 to 1, as pixels do; for odd seeds they are normally distributed. Raises UsageError for a type that
    cannot be made up."""
    draw = np.random.default_rng(seed)
    found = _array(dtype, shape, name, draw, 1)
    is_whole = found.dtype.kind in "biuO" or "int" in found.dtype.name
    return found if is_whole or seed % 2 else draw.random(shape).astype(found.dtype)


def _array(kind: str, shape: tuple[int, ...], name: str, draw: np.random.Generator, lowest: int) -> Any:
    dtype = element_dtype(kind)
    if dtype is None:
        raise UsageError(f"input {name!r} is of {kind}, which cannot be made up")
    if dtype.hasobject:
        return np.full(shape, "a", dtype=object)
    if dtype.kind == "b":
        return draw.integers(0, 2, shape).astype(dtype)
    if dtype in (np.int8, np.uint8):
        bounds = np.iinfo(dtype)
        return draw.integers(lowest or bounds.min, bounds.max, shape, endpoint=True).astype(dtype)
    if dtype.kind in "iu" or "int" in dtype.name:
        return draw.integers(lowest, 2, shape).astype(dtype)
    return draw.standard_normal(shape).astype(dtype)


def _of_type(kind: TypeProto, name: str, draw: np.random.Generator, lowest: int) -> Value:
    """A value of a sequence, optional or tensor type; unknown dimensions are 1."""
    match kind.WhichOneof("value"):
        case "sequence_type":
            return [_of_type(kind.sequence_type.elem_type, name, draw, lowest) for _ in range(SEQUENCE_ITEMS)]
        case "optional_type":
            return _of_type(kind.optional_type.elem_type, name, draw, lowest)
        case "tensor_type":
            tensor = kind.tensor_type
            shape = tuple(dim.dim_value if dim.HasField("dim_value") else 1 for dim in tensor.shape.dim)
            return _array(_KINDS.get(tensor.elem_type, "undefined"), shape, name, draw, lowest)
    raise UsageError(f"input {name!r} is a {kind.WhichOneof('value')}, which cannot be made up")
