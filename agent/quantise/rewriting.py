"""Rewrites a model's graph for weights of few bits. Rules: the numbers themselves are made elsewhere (blocks.py).

A product becomes MatMulNBits, ONNX Runtime's operator for weights in blocks, which stay so in memory; a bias is added
behind it. A table becomes whole numbers of 8 bits with a scale for each row: standard operators gather both, and multiply.
(A DequantizeLinear of a constant, which would say the same, is folded back to float32 when ONNX Runtime loads a model.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnx import ModelProto, NodeProto, TensorProto, helper

from edgepart.agent.quantise.choice import BLOCK, Choice, Matrix
from edgepart.planner.model.graph import Constant
from edgepart.planner.model.subgraphs import captured_names

MICROSOFT = "com.microsoft"
ACCURACY = 4
"""`accuracy_level`: while ONNX Runtime multiplies, it rounds rows of activations to 8 bits in blocks, as its own builder of
language models wants it. Without that a token of SmolLM2 takes 15 times as long in int8, and 1.5 times in int4."""
BITS: Mapping[str, int] = {"int8": 8, "int4": 4}
OLDEST_IR = 4
"""The oldest version of the file format in which weights need not be inputs as well."""


@dataclass(frozen=True)
class BlockNames:
    """The names of what a matrix of weights becomes."""

    packed: str
    scales: str
    middles: str
    """The zero points; "" if each block's middle is zero."""


@dataclass(frozen=True)
class RowNames:
    """The names of what a table becomes."""

    numbers: str
    scales: str


@dataclass(frozen=True)
class Rewriting:
    """The new weights that the graph asks for."""

    matrices: Mapping[Matrix, BlockNames]
    tables: Mapping[str, RowNames]


def rewrite(model: ModelProto, choice: Choice, constants: Mapping[str, Constant], kind: str) -> Rewriting:
    """Changes `model`: its chosen weights are gone, and their products and gathers take those of the result, which are not
    there yet."""
    names = _Names(model)
    matrices = {one: _block_names(names, one, kind) for one in dict.fromkeys(choice.products.values())}
    tables = {
        one: RowNames(names.new(f"{one}.rows8"), names.new(f"{one}.row_scales"))
        for one in dict.fromkeys(choice.tables.values())
    }
    nodes: list[NodeProto] = []
    for index, node in enumerate(model.graph.node):
        if (matrix := choice.products.get(index)) is not None:
            nodes += _product(names, node, matrix, matrices[matrix], constants[matrix.weight], kind)
        elif (table := choice.tables.get(index)) is not None:
            nodes += _gather(names, node, tables[table], constants[table].dtype)
        else:
            nodes.append(node)
    before = _unread(model)
    _set_nodes(model, nodes)
    _drop_unread(model, before)
    if MICROSOFT not in {one.domain for one in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    model.ir_version = max(model.ir_version, OLDEST_IR)
    return Rewriting(matrices, tables)


class _Names:
    """Makes names that the graph does not have yet."""

    def __init__(self, model: ModelProto) -> None:
        graph = model.graph
        self._taken = {one.name for one in (*graph.initializer, *graph.input, *graph.output)}
        for node in graph.node:
            self._taken.update((node.name, *node.input, *node.output))

    def new(self, wanted: str) -> str:
        found, count = wanted, 1
        while found in self._taken:
            count += 1
            found = f"{wanted}.{count}"
        self._taken.add(found)
        return found


def _block_names(names: _Names, matrix: Matrix, kind: str) -> BlockNames:
    begin = f"{matrix.weight}.{kind}" + (".turned" if matrix.turned else "")
    middles = names.new(f"{begin}.middles") if kind == "int4" else ""
    return BlockNames(names.new(begin), names.new(f"{begin}.scales"), middles)


def _product(
    names: _Names, node: NodeProto, matrix: Matrix, made: BlockNames, weight: Constant, kind: str
) -> list[NodeProto]:
    """The nodes in place of a product."""
    columns, inner = weight.shape if matrix.turned else reversed(weight.shape)
    bias = node.input[2] if len(node.input) > 2 else ""
    out = names.new(f"{node.output[0]}.product") if bias else node.output[0]
    product = helper.make_node(
        "MatMulNBits",
        [node.input[0], made.packed, made.scales, *([made.middles] if made.middles else [])],
        [out],
        node.name,
        domain=MICROSOFT,
        K=inner,
        N=columns,
        bits=BITS[kind],
        block_size=BLOCK,
        accuracy_level=ACCURACY,
    )
    if not bias:
        return [product]
    return [
        product,
        helper.make_node("Add", [out, bias], [node.output[0]], names.new(f"{node.output[0]}/bias")),
    ]


def _gather(names: _Names, node: NodeProto, made: RowNames, dtype: str) -> list[NodeProto]:
    """The nodes in place of a gather."""
    out, rows, number = node.output[0], node.input[1], TensorProto.DataType.Value(dtype.upper())
    numbers, scales, floats = (names.new(f"{out}.{part}") for part in ("numbers", "scales", "floats"))
    return [
        helper.make_node("Gather", [made.numbers, rows], [numbers], node.name, axis=0),
        helper.make_node("Gather", [made.scales, rows], [scales], names.new(f"{out}/scales"), axis=0),
        helper.make_node("Cast", [numbers], [floats], names.new(f"{out}/floats"), to=number),
        helper.make_node("Mul", [floats, scales], [out], names.new(f"{out}/rows")),
    ]


def _set_nodes(model: ModelProto, nodes: Iterable[NodeProto]) -> None:
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)


def _drop_unread(model: ModelProto, before: set[str]) -> None:
    """Takes out weights, and nodes that compute with weights, whose values nothing reads any more, but for what nothing
    read `before`."""
    graph = model.graph
    while gone := _unread(model) - before:
        kept = [node for node in graph.node if not {*filter(None, node.output)} <= gone]
        if len(kept) < len(graph.node):
            _set_nodes(model, kept)
        for listed in (graph.initializer, graph.input):
            for index in reversed(range(len(listed))):
                if listed[index].name in gone:
                    del listed[index]
        before |= gone


def _unread(model: ModelProto) -> set[str]:
    """The values that nothing reads."""
    graph = model.graph
    read = {name for node in graph.node for name in (*node.input, *captured_names(node))}
    made = {name for node in graph.node for name in node.output} | {one.name for one in graph.initializer}
    return made - read - {value.name for value in graph.output}
