"""Has decoders count the positions of their tokens in the mask, where they count them by the rows of their past. A pure
rule.

Some exports have no input for positions (Gemma and others by optimum): a token's position is the number of rows in the
past. That is right as long as the past has a row for each token. Here the past is padded on the left to a fixed length, and
the mask says which rows count; every step would have the same position. So the number of rows that the mask leaves out is
subtracted from positions before the sine and cosine of a rotation are computed from them. Nothing changes where the mask
leaves none out. Masks and shapes, which the same number serves, are right with the padding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, helper

from edgepart.planner.model.states import suggested_pairs

MASK = "attention_mask"
"""The input that has an entry for each row of the past and of the step."""
POSITIONS = "position_ids"
"""The input that says which token of its sequence each row is."""
COUNTED = "masked_positions"
"""What the names of the operators and values that this module adds begin with."""
_LEAST_OPSET = 13
"""The operator set since which ReduceSum takes its axes as an input."""
_FLOATS = frozenset([TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
_VIEWS = frozenset(["Cast", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze"])
"""Operators that repeat the elements of their first input."""


def count_positions_in_mask(model: ModelProto) -> ModelProto:
    """The model, which rotates by positions without the rows that the mask leaves out. Changes `model`."""
    graph = model.graph
    given = {value.name for value in graph.input}
    opsets = {one.version for one in model.opset_import if one.domain in ("", "ai.onnx")}
    if MASK not in given or POSITIONS in given or min(opsets, default=0) < _LEAST_OPSET:
        return model
    pasts = {read for _, read in suggested_pairs([one.name for one in graph.output], given)}
    casts = {cast.output[0] for cast in _casts_of_positions(graph.node, pasts)}
    counted: dict[str, tuple[int, str]] = {}
    for index, node in enumerate(graph.node):
        if not casts.isdisjoint(node.output):
            first = counted.setdefault(node.input[0], (index, f"{COUNTED}.{len(counted)}"))
            node.input[0] = first[1]
    for positions, (index, name) in reversed(counted.items()):
        for made in reversed(list(_count_in_mask(positions, name))):
            graph.node.insert(
                index, made
            )  # Where they are read, so that the operators of a layer stay together.
    return model


def _casts_of_positions(nodes: Sequence[NodeProto], pasts: set[str]) -> Iterator[NodeProto]:
    """Yields the nodes that make floating-point numbers of positions, from which angles of a rotation are computed."""
    writers = {name: node for node in nodes for name in node.output if name}
    counts = _counts_of_rows(nodes, pasts)
    seen: set[str] = set()
    waiting = [
        name for node in nodes if node.op_type in ("Cos", "Sin") and not node.domain for name in node.input
    ]
    while waiting:
        name = waiting.pop()
        node = writers.get(name)
        if node is None or name in seen:
            continue
        seen.add(name)
        if _makes_floats(node, writers) and _begins_behind_past(node.input[0], writers, counts):
            yield node
        else:
            waiting.extend(node.input)


def _counts_of_rows(nodes: Sequence[NodeProto], pasts: set[str]) -> set[str]:
    """The names of the values that follow from the shapes of the past."""
    readers: Mapping[str, list[NodeProto]] = defaultdict(list)
    for node in nodes:
        for name in node.input:
            readers[name].append(node)
    waiting = [
        node.output[0]
        for name in pasts
        for node in readers[name]
        if node.op_type == "Shape" and not node.domain
    ]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(made for node in readers[name] for made in node.output if made)
    return found


def _makes_floats(node: NodeProto | None, writers: Mapping[str, NodeProto]) -> bool:
    """Whether a node is the first one to make floating-point numbers of something else."""
    if node is None or node.op_type != "Cast" or node.domain:
        return False
    to = {attribute.i for attribute in node.attribute if attribute.name == "to"}
    return not to.isdisjoint(_FLOATS) and not _makes_floats(writers.get(node.input[0]), writers)


def _begins_behind_past(name: str, writers: Mapping[str, NodeProto], counts: set[str]) -> bool:
    """Whether a value has the numbers of a step's rows, of which the first is the number of rows in the past."""
    node = writers.get(name)
    while node is not None and node.op_type in _VIEWS:
        node = writers.get(node.input[0])
    if node is None or node.domain:
        return False
    if node.op_type == "Range":
        return node.input[0] in counts
    return node.op_type == "Add" and len(counts.intersection(node.input)) == 1


def _count_in_mask(positions: str, name: str) -> Iterator[NodeProto]:
    """Yields nodes that write `positions`, [batch, ..., rows], without the rows of the past that the mask leaves out."""

    def of(end: str) -> str:
        return f"{name}.{end}"

    yield _integers(of("zero"), 0)
    yield _integers(of("one"), 1)
    yield _integers(of("last"), -1)
    yield _integers(of("end"), 2**31 - 1)
    # How many columns the past has: those of the mask, but for a step's rows.
    yield _node("Shape", [MASK], of("mask_shape"))
    yield _node("Gather", [of("mask_shape"), of("one")], of("columns"), axis=0)
    yield _node("Shape", [positions], of("shape"))
    yield _node("Gather", [of("shape"), of("last")], of("rows"), axis=0)
    yield _node("Sub", [of("columns"), of("rows")], of("past"))
    # How many of them the mask leaves out, for each sequence: [batch, 1].
    yield _node("Slice", [MASK, of("zero"), of("past"), of("one")], of("past_mask"))
    yield _node("Cast", [of("past_mask")], of("past_ones"), to=TensorProto.INT64)
    yield _node("ReduceSum", [of("past_ones"), of("one")], of("kept"), keepdims=1)
    yield _node("Sub", [of("past"), of("kept")], of("left_out"))
    # The same with as many axes as the positions have: [batch, 1, ..., 1].
    yield _node("Slice", [of("shape"), of("one"), of("end")], of("axes"))
    yield _node("Div", [of("axes"), of("axes")], of("ones"))
    yield _node("Concat", [of("last"), of("ones")], of("form"), axis=0)
    yield _node("Reshape", [of("left_out"), of("form")], of("shift"))
    yield _node("Cast", [positions], of("unmasked"), to=TensorProto.INT64)
    yield _node("Sub", [of("unmasked"), of("shift")], name)


def _node(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(kind, inputs, [output], name=output, **attributes)


def _integers(name: str, value: int) -> NodeProto:
    tensor = helper.make_tensor(name, TensorProto.INT64, [1], [value])
    return helper.make_node("Constant", [], [name], name=name, value=tensor)
