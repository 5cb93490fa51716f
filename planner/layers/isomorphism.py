"""Kinds of operators: which operators of a graph are the same but for names, as blocks of a network repeat.

Takes a graph; gives a number for each operator, equal for those that are the same. What the cost levels work out about
regions of one of them is true of all. Facts and pure look-ups."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping

import numpy as np

from edgepart.planner.model.graph import Constant, Graph, Operator

TELLING = {"int32": 256, "int64": 256, "bool": 16, "float": 10, "float16": 10, "double": 10, "bfloat16": 10}
"""By type, constants up to so many elements may say how an operator reads (starts, pads, scales): their values count."""

NAMED = frozenset({"int32", "int64", "bool", "string"})
"""Types of constants that may say it too when they are longer: these are only equal to themselves."""

LOOKING_AROUND = frozenset({"MaxUnpool"})
"""Operators whose regions depend on what writes their inputs: no other one is like them."""


def find_kinds(graph: Graph) -> Mapping[str, int]:
    """By operator name, the number of its kind, equal for operators with equal attributes, shapes, types and telling
    constants. Neighbours of an operator do not count."""
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
    """Its shape and, where that may say how an operator reads, its value; a name stands for one too long to compare."""
    described = "constant", constant.shape, constant.dtype
    if constant.region.size <= TELLING.get(constant.dtype, 0):
        return *described, constant.load().tobytes()
    return *described, constant.name if constant.dtype in NAMED else constant.nbytes


def _freeze(given: object) -> Hashable:
    """Attributes of equal operators are equal; a sub-graph is only equal to itself."""
    if isinstance(given, np.ndarray):
        return given.shape, str(given.dtype), given.tobytes()
    if isinstance(given, list | tuple):
        return tuple(map(_freeze, given))
    return given if isinstance(given, int | float | str | bytes) else id(given)
