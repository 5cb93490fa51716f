"""Bound operators: an operator together with what its graph knows about its shapes, types and constants. Facts, with
pure look-ups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.region import Array, Region

Shape = tuple[int, ...]


@dataclass(frozen=True)
class BoundOperator:
    """An operator whose shapes are all known."""

    operator: Operator
    graph: Graph
    inputs: tuple[Shape | None, ...]
    """The shapes of the inputs; None for an input that is left out."""
    outputs: tuple[Shape | None, ...]
    """The shapes of the outputs; None for an output that is left out."""

    @property
    def version(self) -> int:
        """The opset version of the operator's own domain."""
        return self.operator.version

    @cached_property
    def opset(self) -> int:
        """The model's opset version of ai.onnx, which decides the form of the nodes that are added (Slice, Concat ...)."""
        if self.operator.domain == "":
            return self.operator.version
        imports = self.graph.opset_imports
        return imports.get("", imports.get("ai.onnx", self.operator.version))

    @cached_property
    def output(self) -> Shape:
        """The shape of output 0."""
        shape = self.outputs[0]
        assert shape is not None
        return shape

    def shape(self, index: int) -> Shape:
        """Returns the shape of an input that is given (see `has`)."""
        shape = self.inputs[index]
        assert shape is not None
        return shape

    def has(self, index: int) -> bool:
        """Whether the input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def wants(self, index: int) -> bool:
        """Whether the model names the output."""
        return index < len(self.outputs) and self.outputs[index] is not None

    def whole(self, index: int) -> Region | None:
        """Returns the full region of an input; None if it is left out."""
        shape = self.inputs[index]
        return None if shape is None else Region.full(shape)

    @cached_property
    def present(self) -> tuple[int | None, ...]:
        """The inputs of a local node that takes all inputs of the operator, each in its place; None for one
        that is left out."""
        return tuple(index if shape is not None else None for index, shape in enumerate(self.inputs))

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.operator.attributes.get(name, default)

    def text(self, name: str, default: str) -> str:
        """Returns a string attribute, which may be stored as str or bytes."""
        value = self.operator.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Returns a list attribute; None if the model does not give it."""
        value = self.operator.attributes.get(name)
        return None if value is None else tuple(int(v) for v in value)

    def constant(self, index: int) -> Array | None:
        """Returns the value of an input that is a constant of the graph; None if it is not."""
        if not self.has(index):
            return None
        found = self.graph.constants.get(self.operator.inputs[index])
        return None if found is None else found.load()

    def integers_of(self, index: int, name: str) -> tuple[int, ...] | None:
        """Returns integers that are an attribute in old opsets and a constant input in new ones; None if they are
        neither."""
        if (given := self.integers(name)) is not None:
            return given
        value = self.constant(index)
        return None if value is None else tuple(int(v) for v in np.atleast_1d(value))

    def dtype(self, output: int) -> str:
        return self.graph.tensors[self.operator.outputs[output]].dtype

    def with_attributes(self, **changed: Any) -> dict[str, Any]:
        """Returns the operator's attributes with some replaced; None drops an attribute."""
        merged = {**self.operator.attributes, **changed}
        return {name: value for name, value in merged.items() if value is not None}


def bind(operator: Operator, graph: Graph) -> BoundOperator | str:
    """Returns the operator with its shapes, or the reason why they do not suffice."""

    def shapes(names: Sequence[str]) -> list[Shape | None]:
        return [graph.shape_of(name) if name else None for name in names]

    inputs, outputs = shapes(operator.inputs), shapes(operator.outputs)
    for names, found in ((operator.inputs, inputs), (operator.outputs, outputs)):
        for name, shape in zip(names, found, strict=True):
            if name and shape is None:
                return f"the shape of {name!r} is known only at run time"
    if not operator.outputs or not operator.outputs[0]:
        return "its first output is left out"
    if any(0 in shape for shape in outputs if shape is not None):
        return "it writes a tensor without elements"
    return BoundOperator(operator, graph, tuple(inputs), tuple(outputs))


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Returns numpy's type for an ONNX element type in lower case ("float", "int64", "bfloat16" ...)."""
    return helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(name.upper()))


def is_floating(name: str) -> bool:
    """Whether an ONNX element type, in lower case, is a floating-point type."""
    return name.startswith(("float", "bfloat")) or name == "double"


_NAMES = {
    2: ("batch", "channel"),
    3: ("batch", "sequence", "feature"),
    4: ("batch", "channel", "height", "width"),
    5: ("batch", "channel", "depth", "height", "width"),
}


ATTENTION = ("batch", "head", "sequence", "feature")
"""The names of four axes of an operator that belongs to attention rather than to an image: a product of stacks of
matrices, or a Softmax over the last axis."""


def matrix_names(rank: int) -> tuple[str, ...]:
    """Returns the names of the axes of a matrix product with `rank` axes."""
    return ATTENTION if rank == 4 else axis_names(rank)


def axis_names(rank: int, spatial: bool = False) -> tuple[str, ...]:
    """Returns the names of a tensor's axes by its rank. `spatial`: whether the operator itself defines axes 2
    and up as spatial."""
    if spatial and rank == 3:
        return ("batch", "channel", "width")
    return _NAMES.get(rank) or tuple(f"axis{axis}" for axis in range(rank))
