"""The inputs of a model, and their free dimensions: which there are, and the extents that they are bound to. Pure rules
over protos.

A dimension without a fixed extent is free. Dimensions of one name have one extent, across all inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onnx import ModelProto, TensorShapeProto, TypeProto, ValueInfoProto

from edgepart.planner.errors import UsageError
from edgepart.planner.model.graph import Tensor


def inputs_of(model: ModelProto) -> list[ValueInfoProto]:
    """The inputs that requests provide, which are the inputs without a constant value."""
    constants = {proto.name for proto in model.graph.initializer}
    constants |= {sparse.values.name for sparse in model.graph.sparse_initializer}
    return [value for value in model.graph.input if value.name not in constants]


def free_of(declared: TypeProto) -> tuple[str | None, ...] | None:
    """For each axis, the name of a free dimension ("" if it has no name), or None for a fixed dimension; None
    if no shape is declared."""
    if not declared.HasField("tensor_type") or not declared.tensor_type.HasField("shape"):
        return None
    return tuple(
        None if dim.HasField("dim_value") and dim.dim_value >= 0 else _symbol(dim)
        for dim in declared.tensor_type.shape.dim
    )


def _symbol(dim: TensorShapeProto.Dimension) -> str:
    """The name of a dimension; "" if it has none, or only punctuation like "?", because two such dimensions
    need not be equal."""
    return dim.dim_param if any(map(str.isalnum, dim.dim_param)) else ""


def free_axes(model: ModelProto, tensors: Mapping[str, Tensor]) -> dict[str, tuple[str | None, ...]]:
    """The mapping for Graph.free; `tensors` are those of the graph. An output without a declared shape may depend on any
    free dimension of the inputs, so all its axes count as free."""
    inputs = {value.name: free_of(value.type) for value in inputs_of(model)}
    found = {name: free for name, free in inputs.items() if free and free.count(None) < len(free)}
    if not found:
        return {}
    declared = {value.name: free_of(value.type) for value in model.graph.output} | inputs
    for name in (value.name for value in model.graph.output):
        free = declared[name]
        known = tensors[name].shape if name in tensors else None
        if free is None and known is not None and name not in inputs:
            found[name] = ("",) * len(known)
        elif free and known is not None and len(free) == len(known) and free.count(None) < len(free):
            found[name] = free
    return found


@dataclass
class BoundDimensions:
    """The extents of free dimensions: the user's extent, else the extent bound to the dimension's name, else 1."""

    model: str
    """The model's name, for messages."""
    shapes: Mapping[str, tuple[int | None, ...]] | None
    """The user's shapes by input; None leaves free dimensions free."""
    extents: dict[str, int] = field(default_factory=dict)
    """Extents of dimensions that are bound, by name."""
    notes: list[str] = field(default_factory=list)
    """A note on each dimension that neither the user nor its name gave an extent."""

    def bind(self, inputs: Sequence[ValueInfoProto]) -> dict[str, TypeProto]:
        """The types of the inputs, with an extent for every free dimension. Raises UsageError if the user's shapes do not
        fit the inputs."""
        if self.shapes is None:
            return {value.name: self.fill(value.type) for value in inputs}
        names = [value.name for value in inputs]
        for name in self.shapes:
            if name not in names:
                raise UsageError(f"{self.model}: no input is called {name!r}; its inputs are {names}")
        types: dict[str, TypeProto] = {}
        given = self.shapes.keys()
        for value in sorted(
            inputs, key=lambda value: value.name not in given
        ):  # Inputs with a user's shape first.
            bound = TypeProto()
            bound.CopyFrom(value.type)
            if value.name in self.shapes:
                self._bind_by_user(value, bound, self.shapes[value.name])
            elif bound.HasField("tensor_type"):
                self._bind_by_default(value.name, bound.tensor_type)
            types[value.name] = bound
        return types

    def _bind_by_user(self, value: ValueInfoProto, bound: TypeProto, wanted: tuple[int | None, ...]) -> None:
        where = f"{self.model}: input {value.name!r}"
        if not bound.HasField("tensor_type"):
            raise UsageError(f"{where} is not a tensor and takes no shape")
        dims = bound.tensor_type.shape.dim
        if bound.tensor_type.HasField("shape") and len(dims) != len(wanted):
            raise UsageError(
                f"{where} has {len(dims)} dimensions, and {len(wanted)} were given: {list(wanted)}"
            )
        for axis, extent in enumerate(wanted):
            dim = dims[axis] if axis < len(dims) else dims.add()
            if extent is None:
                continue
            fixed = dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else extent
            if symbol := _symbol(dim):
                fixed = self.extents.setdefault(symbol, extent)
            if extent < 0 or fixed != extent:
                reason = "negative" if extent < 0 else f"it is {fixed}"
                raise UsageError(f"{where}: dimension {axis} cannot be {extent}: {reason}")
            dim.dim_value = extent

    def _bind_by_default(self, name: str, tensor: TypeProto.Tensor) -> None:
        if not tensor.HasField("shape"):
            self.notes.append(
                f"input {name}: has no shape, so what depends on it cannot be split; give its shape"
            )
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                continue
            symbol = _symbol(dim)
            if not symbol or symbol not in self.extents:
                self.notes.append(f"input {name}: {symbol or f'dimension {axis}'} taken as 1")
            dim.dim_value = self.extents.setdefault(symbol, 1) if symbol else 1

    def fill(self, declared: TypeProto) -> TypeProto:
        """A declared type with bound dimension names replaced by extents; other named dimensions stay unknown."""
        result = TypeProto()
        result.CopyFrom(declared)
        if result.HasField("tensor_type"):
            for dim in result.tensor_type.shape.dim:
                if _symbol(dim) in self.extents:
                    dim.dim_value = self.extents[_symbol(dim)]
                elif dim.HasField("dim_value") and dim.dim_value < 0:
                    dim.ClearField("value")
        return result
