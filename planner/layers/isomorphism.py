"""Kinds of operators: finds the operators of a graph that are the same except for names, because blocks of a
network repeat.

Takes a graph; gives a number for each operator, equal for operators that are the same. What the cost levels
compute for regions of one operator holds for all operators of its kind. Facts and pure look-ups."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping

import numpy as np

from edgepart.planner.model.graph import Constant, Graph, Operator

TELLING = {"int32": 256, "int64": 256, "bool": 16, "float": 10, "float16": 10, "double": 10, "bfloat16": 10}
"""The values of a constant with at most so many elements, by type, may determine how an operator reads
(starts, pads, scales), so they are compared."""

NAMED = frozenset({"int32", "int64", "bool", "string"})
"""Types of constants whose values may determine that even with more elements. Such a constant is equal only
to itself."""

LOOKING_AROUND = frozenset({"MaxUnpool"})
"""Operators whose regions depend on the operators that write their inputs: each has a kind of its own."""


def find_kinds(graph: Graph) -> Mapping[str, int]:
    """The number of each operator's kind, equal for operators with equal attributes, shapes, types and
    compared constants. Neighbours of an operator do not count."""
    return dict(_kinds(graph))


def _kinds(graph: Graph) -> Iterator[tuple[str, int]]:
    kinds: dict[Hashable, int] = {}
    values: dict[str, Hashable] = {}

    def value(name: str) -> Hashable:
        if not name:
            return None
        if name in graph.tensors:
            tensor = graph.tensors[name]
            return tensor.shape, tensor.dtype
        if name not in values:
            values[name] = _constant(graph.constants[name])
        return values[name]

    for op in graph.operators:
        yield op.name, kinds.setdefault(_describe(op, value), len(kinds))


def _describe(op: Operator, value: Callable[[str], Hashable]) -> Hashable:
    if op.captured or op.op_type in LOOKING_AROUND:
        return op.name  # Sub-graphs are not looked into.
    attributes = tuple(sorted((name, _freeze(given)) for name, given in op.attributes.items()))
    ends = tuple(map(value, op.inputs)), tuple(map(value, op.outputs))
    return op.op_type, op.domain, op.version, attributes, ends


def _constant(constant: Constant) -> Hashable:
    """A description of a constant: its shape and, if it may determine how an operator reads, its value. The
    name stands for a value that is too long to compare."""
    described = "constant", constant.shape, constant.dtype
    if constant.region.size <= TELLING.get(constant.dtype, 0):
        return *described, constant.load().tobytes()
    return *described, constant.name if constant.dtype in NAMED else constant.nbytes


def _freeze(given: object) -> Hashable:
    """A hashable form of an attribute, equal for equal attributes. A sub-graph is only equal to itself."""
    if isinstance(given, np.ndarray):
        return given.shape, str(given.dtype), given.tobytes()
    if isinstance(given, list | tuple):
        return tuple(map(_freeze, given))
    return given if isinstance(given, int | float | str | bytes) else id(given)
