"""Finds models that put the past of each growing state before a step's new rows (Concat), as optimum exports decoders, and
sees by their shapes whether their states are to be written in place. Rules over protos."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from edgepart.planner.errors import NotInPlace
from edgepart.planner.model.rewrites.masked_positions import MASK
from edgepart.planner.model.rewrites.merged_decoder import CACHE_BRANCH
from edgepart.planner.model.states import Pair, suggested_pairs
from edgepart.planner.model.subgraphs import inline_branch

Shapes = Mapping[str, tuple[int | None, ...]]
TOKENS = "input_ids"
"""The input that has the tokens of a step."""


@dataclass(frozen=True)
class PutBefore:
    """A state whose past is put before a step's new rows. Some exports compute with another type than their states have."""

    past: str
    read: str
    """The past as it is put before the new rows: the past itself, or a Cast of it."""
    new: str
    """The new rows."""
    joined: str
    """The past and the new rows."""
    present: str
    """The same in the state's type: `joined` itself, or a Cast of it."""
    axis: int
    """The axis of the rows."""


@dataclass(frozen=True)
class Growing:
    """A model all of whose growing states are of this kind, and the sizes of its steps."""

    states: tuple[PutBefore, ...]
    context: int
    """The rows of a state that is written in place, and the columns of the mask."""
    rows: int
    """The rows that a step adds."""
    counted: tuple[str, int]
    """An input, and the axis along which it has as many elements."""

    def padded(self, shapes: Shapes) -> Shapes:
        """The shapes with which the model itself is loaded: with a past that is shorter by the rows of a step."""
        shorter = dict(shapes)
        for one in self.states:
            shape = list(shapes[one.past])
            shape[one.axis] = self.context - self.rows
            shorter[one.past] = tuple(shape)
        return shorter


def has_masked_past(model: ModelProto, shapes: Shapes) -> bool:
    """Whether `find_growing` may find anything: a model for which this is not so need not be copied to be looked at."""
    return MASK in shapes and bool(_pairs(model))


def find_growing(model: ModelProto, shapes: Shapes) -> Growing | None:
    """The growing states of a model, if these shapes say that they are to be written in place: their pasts have as many
    rows as the mask has columns. None otherwise. Raises NotInPlace if the model puts the past of some of its states before
    new rows, and not of all."""
    columns = (shapes.get(MASK) or (None,))[-1]
    pairs = _pairs(model)
    states, pasts = tuple(_put_before(model, pairs)), {read for _, read in pairs}
    if not states or columns is None:
        return None
    asked = [(shapes.get(one.past) or ())[one.axis : one.axis + 1] == (columns,) for one in states]
    counted = next(_inputs_of_rows(model, shapes, pasts), None)
    if not all(asked) or counted is None:
        return None
    rows = shapes[counted[0]][counted[1]]
    if rows is None or not 0 < rows < columns:  # A block that fills the context has no past.
        return None
    others = pasts - {one.past for one in states}
    for value in model.graph.input:
        if value.name in others and any(
            _is_free(value, axis) and extent == columns
            for axis, extent in enumerate(shapes.get(value.name, ()))
        ):
            raise NotInPlace(f"the past of state {value.name!r} is not put right before the new rows")
    return Growing(states, columns, rows, counted)


def _pairs(model: ModelProto) -> tuple[Pair, ...]:
    return suggested_pairs([one.name for one in model.graph.output], [one.name for one in model.graph.input])


def _put_before(model: ModelProto, pairs: Sequence[Pair]) -> Iterator[PutBefore]:
    writers = {name: node for node in model.graph.node for name in node.output}
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in model.graph.input}
    for present, past in pairs:
        node = writers.get(present)
        if node is not None and node.op_type in ("Cast", "Identity"):
            node = writers.get(node.input[0])
        if node is None or node.op_type != "Concat" or len(node.input) != 2:
            continue
        read, new = node.input
        cast = writers.get(read)
        if read == past or (cast is not None and cast.op_type == "Cast" and cast.input[0] == past):
            yield PutBefore(past, read, new, node.output[0], present, _axis(node) % max(1, ranks[past]))


def _axis(node: NodeProto) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == "axis"), 0)


def _inputs_of_rows(model: ModelProto, shapes: Shapes, pasts: set[str]) -> Iterator[tuple[str, int]]:
    """Yields the inputs that have an element for each row of a step, each with the axis: those whose second axis is free,
    beside the mask and the states. Tokens come first."""
    for value in sorted(model.graph.input, key=lambda value: value.name != TOKENS):
        known = len(shapes.get(value.name, ())) > 1 and _is_free(value, 1)
        if known and value.name not in pasts and value.name != MASK:
            yield value.name, 1


def _is_free(value: ValueInfoProto, axis: int) -> bool:
    dims = value.type.tensor_type.shape.dim
    return len(dims) > axis and not bool(dims[axis].HasField("dim_value"))


def open_decided(model: ModelProto) -> ModelProto:
    """The model with the branch that a merged decoder takes in place of its `If`. Changes `model`."""
    graph = model.graph
    decided = [one for one in graph.initializer if one.name == CACHE_BRANCH]
    node = next((one for one in graph.node if CACHE_BRANCH in one.input and one.op_type == "If"), None)
    if not decided or node is None:
        return model
    branch = next(one.g for one in node.attribute if one.name == "then_branch" and _is_graph(one))
    taken = {name for one in graph.node for name in (*one.input, *one.output)}
    taken |= {one.name for one in (*graph.input, *graph.initializer)}
    made = inline_branch(node, branch, taken)
    nodes = [one for other in graph.node for one in (made.node if other is node else [other])]
    copies = [NodeProto.FromString(one.SerializeToString()) for one in nodes]
    left = [
        TensorProto.FromString(t.SerializeToString()) for t in graph.initializer if t.name != CACHE_BRANCH
    ]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(copies)
    graph.initializer.extend([*left, *made.initializer])
    graph.sparse_initializer.extend(made.sparse_initializer)
    return model


def _is_graph(attribute: AttributeProto) -> bool:
    return bool(attribute.HasField("g"))
