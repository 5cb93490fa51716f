"""Sketch: a graph under construction, with shapes and without values, as ONNX exports have it.

Each method adds operators and returns the names of their outputs. Numbers have two bytes. `parameters` are
the trained numbers; other constants (masks) belong to no operator if several read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from edgepart.planner.errors import InternalError
from edgepart.planner.model.graph import Constant, Graph, Operator, Tensor
from edgepart.planner.region import Array

OPSET = 20
DTYPE, ITEM_BYTES = "float16", 2

Shape = tuple[int, ...]


def _no_value() -> Array:
    raise InternalError("a sketch has no values")


class Sketch:
    """Adds operators in an order in which they can run."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._inputs: list[str] = []
        self._tensors: dict[str, Tensor] = {}
        self._constants: dict[str, Constant] = {}
        self._operators: list[Operator] = []

    def graph(self, *outputs: str) -> Graph:
        """Return the graph of everything added so far."""
        return Graph(
            self._name,
            tuple(self._inputs),
            outputs,
            self._tensors,
            self._constants,
            tuple(self._operators),
            {"": OPSET},
            10,
        )

    def input(self, name: str, *shape: int, dtype: str = DTYPE, item_bytes: int = ITEM_BYTES) -> str:
        self._inputs.append(name)
        self._tensors[name] = Tensor(name, shape, dtype, item_bytes)
        return name

    def weight(self, *shape: int) -> str:
        """Add a parameter."""
        return self._constant("weight", shape)

    def constant(self, *shape: int) -> str:
        """Add a value that is the same for every request and not trained, such as a mask."""
        return self._constant("constant", shape)

    def _constant(self, kind: str, shape: Shape) -> str:
        name = f"{kind}_{len(self._constants)}"
        self._constants[name] = Constant(name, shape, DTYPE, prod(shape) * ITEM_BYTES, _no_value)
        return name

    def integers(self, *values: int) -> str:
        """Return the constant of integers that an operator takes as an input."""
        name = f"integers_{'_'.join(map(str, values)).replace('-', 'm')}"
        if name not in self._constants:
            self._constants[name] = Constant(name, (len(values),), "int64", 8 * len(values), _no_value)
        return name

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor or constant."""
        known = self._tensors.get(name) or self._constants[name]
        assert known.shape is not None
        return known.shape

    def add(self, op_type: str, shape: Sequence[int], *inputs: str, **attributes: Any) -> str:
        """Add an operator that makes one tensor of that shape."""
        return self.many(op_type, [shape], *inputs, **attributes)[0]

    def many(
        self, op_type: str, shapes: Sequence[Sequence[int]], *inputs: str, **attributes: Any
    ) -> tuple[str, ...]:
        """Add an operator that makes a tensor of each shape."""
        name = f"{op_type}_{len(self._operators)}"
        made = (name,) if len(shapes) == 1 else tuple(f"{name}_{n}" for n in range(len(shapes)))
        for one, shape in zip(made, shapes, strict=True):
            self._tensors[one] = Tensor(one, tuple(shape), DTYPE, ITEM_BYTES)
        self._operators.append(Operator(name, op_type, "", OPSET, inputs, made, attributes))
        return made

    def each(self, op_type: str, x: str, *others: str, **attributes: Any) -> str:
        """Add an element-wise operator; its output has the shape of the first input."""
        return self.add(op_type, self.shape(x), x, *others, **attributes)

    def matmul(self, a: str, b: str) -> str:
        rows, columns = self.shape(a), self.shape(b)
        return self.add("MatMul", (*rows[:-1], columns[-1]), a, b)

    def linear(self, x: str, outs: int, bias: bool = True) -> str:
        """Add a MatMul, and an Add of a bias if wanted."""
        y = self.matmul(x, self.weight(self.shape(x)[-1], outs))
        return self.each("Add", y, self.weight(outs)) if bias else y

    def einsum(self, equation: str, *inputs: str) -> str:
        """Add an Einsum. A letter stands for the same extent in all inputs."""
        read, _, written = equation.partition("->")
        extents: dict[str, int] = {}
        for letters, name in zip(read.split(","), inputs, strict=True):
            extents.update(zip(letters, self.shape(name), strict=True))
        return self.add("Einsum", [extents[letter] for letter in written], *inputs, equation=equation)

    def layer_norm(self, x: str) -> str:
        width = self.shape(x)[-1]
        return self.each("LayerNormalization", x, self.weight(width), self.weight(width), axis=-1)

    def scale(self, x: str) -> str:
        return self.each("Mul", x, self.constant())

    def softmax(self, x: str) -> str:
        return self.each("Softmax", x, axis=-1)

    def transpose(self, x: str, *perm: int) -> str:
        shape = self.shape(x)
        return self.add("Transpose", [shape[axis] for axis in perm], x, perm=list(perm))

    def reshape(self, x: str, *shape: int) -> str:
        if prod(shape) != prod(self.shape(x)):
            raise InternalError(f"{x!r} of {self.shape(x)} is no {shape}")
        return self.add("Reshape", shape, x, self.integers(*shape))

    def concat(self, parts: Sequence[str], axis: int) -> str:
        """Concatenate tensors; `axis` counts from 0 and is not negative."""
        shape = list(self.shape(parts[0]))
        shape[axis] = sum(self.shape(part)[axis] for part in parts)
        return self.add("Concat", shape, *parts, axis=axis)

    def split(self, x: str, count: int, axis: int) -> tuple[str, ...]:
        """Split a tensor into `count` equal parts."""
        shape = list(self.shape(x))
        shape[axis] //= count
        return self.many("Split", [shape] * count, x, axis=axis, num_outputs=count)

    def slice(self, x: str, axis: int, start: int, stop: int, step: int = 1) -> str:
        shape = list(self.shape(x))
        shape[axis] = len(range(start, stop, step))
        return self.add("Slice", shape, x, *(self.integers(n) for n in (start, stop, axis, step)))

    def pad(self, x: str, *behind: int) -> str:
        """Pad with zeros at the end of each axis."""
        shape = [extent + more for extent, more in zip(self.shape(x), behind, strict=True)]
        return self.add("Pad", shape, x, self.integers(*[0] * len(behind), *behind))

    def gather(self, table: str, ids: str) -> str:
        return self.add("Gather", (*self.shape(ids), self.shape(table)[-1]), table, ids, axis=0)
