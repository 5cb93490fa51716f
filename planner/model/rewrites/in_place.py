"""Has models that put their past before new rows write these into the past instead. A rule over protos.

The model that comes of it takes the mask and the states as models by ONNX Runtime's builder do: a state is a buffer with as
many rows as a sequence may have, and so many columns has the mask, with ones up to the last row of the step. New rows are
written behind those that were there. The nodes that are added count in the shapes of a request's inputs, so that the same
model makes steps of one row and of blocks, of one sequence and of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, helper

from edgepart.planner.errors import NotInPlace
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.protos import element_type
from edgepart.planner.model.rewrites.masked_positions import MASK
from edgepart.planner.model.rewrites.past_before_rows import Growing, PutBefore
from edgepart.planner.model.rewrites.row_order import Moved, find_moved
from edgepart.planner.model.states import WRITTEN
from edgepart.planner.model.subgraphs import captured_names, describe_node

_LEAST_OPSET = 13
"""The operator set since which ReduceSum and Unsqueeze take their axes as an input."""
_MASK = f"{WRITTEN}.mask"
"""The mask as the model had it: with ones up to its last column."""
_BEFORE, _LEFT, _ORDER, _ROWS = (f"{WRITTEN}.{end}" for end in ("before", "left", "order", "rows"))


def write_in_place(model: ModelProto, graph: Graph, growing: Growing) -> ModelProto:
    """The model with states that are written in place. `graph` is the same model with a past that is padded to a fixed
    length. Changes `model`. Raises NotInPlace, which says why, if the model may depend on the order of its past's rows."""
    opsets = {one.version for one in model.opset_import if one.domain in ("", "ai.onnx")}
    if min(opsets, default=0) < _LEAST_OPSET:
        raise NotInPlace(f"its operator set is older than {_LEAST_OPSET}")
    moved = find_moved(graph, growing)
    nodes = list(model.graph.node)
    apart = {MASK, *(one.past for one in growing.states)}
    if nested := next((node for node in nodes if not apart.isdisjoint(captured_names(node))), None):
        raise NotInPlace(f"{describe_node(nested)} reads the mask or a past in a branch or a loop")
    writers = {name: node for node in nodes for name in node.output if name}
    if unknown := [one.reader for one in moved if one.reader not in writers]:
        raise NotInPlace(f"the operator that writes {unknown[0]!r} is not in the file as such")
    _read_other_mask(nodes)
    made = _Additions(graph, growing)
    before = made.move_all(moved, writers)
    made_in_place = made.states(nodes)
    result = list(_prepare(model, growing))
    for node in nodes:
        result += before.get(id(node), ())
        result += made_in_place.get(id(node), [node])
    copies = [NodeProto.FromString(one.SerializeToString()) for one in result]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    _forget_lengths(model)
    return model


def _read_other_mask(nodes: Sequence[NodeProto]) -> None:
    for node in nodes:
        node.input[:] = [_MASK if name == MASK else name for name in node.input]


def _forget_lengths(model: ModelProto) -> None:
    """What the file says of lengths inside the model is not true any more."""
    for value in model.graph.value_info:
        for dim in value.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.ClearField("value")


def _prepare(model: ModelProto, growing: Growing) -> Iterator[NodeProto]:
    """Yields nodes that count rows, [batch, 1] each, and write the mask and the order that follow from them."""
    mask = next(value for value in model.graph.input if value.name == MASK)
    of, (counted, axis) = f"{WRITTEN}.{{}}".format, growing.counted
    yield _integers(of("zero"), [0])
    yield _integers(of("one"), [1])
    yield _integers(of("scalar_zero"), 0)
    yield _integers(of("scalar_one"), 1)
    yield _integers(of("axis"), [axis])
    yield _node("Shape", [counted], of("counted_shape"))
    yield _node("Gather", [of("counted_shape"), of("axis")], of("count"), axis=0)
    yield _node("Shape", [MASK], of("mask_shape"))
    yield _node("Gather", [of("mask_shape"), of("one")], of("context"), axis=0)
    yield _node("Sub", [of("context"), of("count")], of("room"))
    # How many rows there are before the step, and how many the model has to leave out before these.
    yield _node("Cast", [MASK], of("ones"), to=TensorProto.INT64)
    yield _node("ReduceSum", [of("ones"), of("one")], of("after"), keepdims=1)
    yield _node("Sub", [of("after"), of("count")], of("difference"))
    yield _node("Min", [of("difference"), of("room")], of("least"))
    yield _node("Max", [of("least"), of("zero")], _BEFORE)
    yield _node("Sub", [of("room"), _BEFORE], _LEFT)
    yield _node("Squeeze", [of("context")], of("context_scalar"))
    yield _node("Range", [of("scalar_zero"), of("context_scalar"), of("scalar_one")], of("columns"))
    yield _node("GreaterOrEqual", [of("columns"), _LEFT], of("is_read"))
    yield _node("Cast", [of("is_read")], _MASK, to=mask.type.tensor_type.elem_type)
    # Which of the model's columns belongs to each row of a buffer.
    yield _node("Add", [of("columns"), _LEFT], of("unwrapped"))
    yield _node("Mod", [of("unwrapped"), of("context")], _ORDER)
    # The rows of a buffer that the step writes.
    yield _node("Squeeze", [of("count")], of("count_scalar"))
    yield _node("Range", [of("scalar_zero"), of("count_scalar"), of("scalar_one")], of("new"))
    yield _node("Add", [_BEFORE, of("new")], _ROWS)


class _Additions:
    """The nodes that are added for states, and for values that are put into the order of their rows."""

    def __init__(self, graph: Graph, growing: Growing) -> None:
        self._graph = graph
        self._growing = growing
        self._orders: dict[tuple[int, tuple[int, int, int]], str] = {}
        self._moved: dict[tuple[str, str], str] = {}
        self._indices: dict[tuple[int, ...], str] = {}

    def move_all(self, moved: Sequence[Moved], writers: dict[str, NodeProto]) -> dict[int, list[NodeProto]]:
        """Have the readers of these values read them in another order; the nodes before each reader, by its id."""
        before: dict[int, list[NodeProto]] = {}
        for one in moved:
            reader = writers[one.reader]
            added = before.setdefault(id(reader), [])
            reader.input[one.alongside.number] = self._move(one, reader.input[one.alongside.number], added)
        return before

    def _move(self, one: Moved, value: str, added: list[NodeProto]) -> str:
        """The name of a value in the order of the rows; nodes that write it are added if there are none yet."""
        rank, place = one.alongside.rank, one.alongside.past_rows.place
        key = value, f"{rank}.{place}"
        if key in self._moved:
            return self._moved[key]
        name = self._moved[key] = f"{WRITTEN}.{len(self._moved)}"
        order = self._order(rank, place, added)
        added += [
            _node("Shape", [order], f"{name}.order_shape"),
            _node("Expand", [value, f"{name}.order_shape"], f"{name}.each"),
            _node("Shape", [f"{name}.each"], f"{name}.shape"),
            _node("Expand", [order, f"{name}.shape"], f"{name}.order"),
            _node("GatherElements", [f"{name}.each", f"{name}.order"], name, axis=place[0]),
        ]
        return name

    def _order(self, rank: int, place: tuple[int, int, int], added: list[NodeProto]) -> str:
        """The name of the order, with so many axes."""
        (rows, batch, inner), key = place, (rank, place)
        if key in self._orders:
            return self._orders[key]
        if rows < batch:
            raise NotInPlace("a value has the sequences of a batch behind the rows of the past")
        name = self._orders[key] = f"{_ORDER}.{len(self._orders)}"
        source = _ORDER
        if inner > 1:
            added += [
                _integers(f"{name}.middle", [1]),
                _node("Unsqueeze", [_ORDER, f"{name}.middle"], f"{name}.of_sequence"),
                _integers(f"{name}.inner", [1, inner, 1]),
                _node("Expand", [f"{name}.of_sequence", f"{name}.inner"], f"{name}.repeated"),
                _integers(f"{name}.joined", [-1, self._growing.context]),
                _node("Reshape", [f"{name}.repeated", f"{name}.joined"], f"{name}.of_inner"),
            ]
            source = f"{name}.of_inner"
        added += [
            _integers(f"{name}.axes", [axis for axis in range(rank) if axis not in (rows, batch)]),
            _node("Unsqueeze", [source, f"{name}.axes"], name),
        ]
        return name

    def states(self, nodes: Sequence[NodeProto]) -> dict[int, list[NodeProto]]:
        """What takes the place of nodes, by their ids."""
        found = {}
        states = self._growing.states
        joined = {one.joined: one for one in states}
        pasts = {name: one for one in states for name in (one.past, one.read)}
        left_out = {one.read for one in states} - {one.past for one in states}
        left_out |= {one.present for one in states} - joined.keys()
        for node in nodes:
            output = next(iter(node.output), "")
            if output in joined:
                found[id(node)] = list(self._write(joined[output], node.name))
            elif output in left_out:
                found[id(node)] = []
            elif node.op_type == "Shape" and node.input[0] in pasts:
                found[id(node)] = list(self._shape(pasts[node.input[0]], node))
        return found

    def _write(self, one: PutBefore, name: str) -> Iterator[NodeProto]:
        """Yields nodes that write the new rows of a state into its past."""
        shape = self._graph.shape_of(one.new) or ()
        indices = self._indices.get(shape)
        if indices is None:
            indices = self._indices[shape] = f"{_ROWS}.{len(self._indices)}"
            yield _integers(
                f"{indices}.axes", [axis for axis in range(len(shape)) if axis not in (0, one.axis)]
            )
            yield _node("Unsqueeze", [_ROWS, f"{indices}.axes"], f"{indices}.alone")
            yield _node("Shape", [one.new], f"{indices}.shape")
            yield _node("Expand", [f"{indices}.alone", f"{indices}.shape"], indices)
        of_state, inside = (element_type(self._graph.tensors[it].dtype) for it in (one.past, one.joined))
        new = one.new
        if of_state != inside:
            new = f"{WRITTEN}.{one.present}.new"
            yield _node("Cast", [one.new], new, to=of_state)
        yield helper.make_node(
            "ScatterElements",
            [one.past, indices, new],
            [one.present],
            name=f"{WRITTEN}.{name or one.present}",
            axis=one.axis,
        )
        if of_state != inside:
            yield _node("Cast", [one.present], one.joined, to=inside)
        elif one.joined != one.present:
            yield _node("Identity", [one.present], one.joined)

    def _shape(self, one: PutBefore, node: NodeProto) -> Iterator[NodeProto]:
        """Yields nodes that write what `node` wrote: the shape of a past that is shorter by the rows of a step."""
        name, rank = f"{WRITTEN}.{node.output[0]}", len(self._graph.shape_of(one.past) or ())
        yield _integers(f"{name}.axis", [int(axis == one.axis) for axis in range(rank)])
        yield _node("Shape", [one.past], f"{name}.full")
        yield _node("Mul", [f"{name}.axis", f"{WRITTEN}.count"], f"{name}.less")
        begin, end = (
            next((int(a.i) for a in node.attribute if a.name == which), usual)
            for which, usual in (("start", 0), ("end", rank))
        )
        if (begin, end) == (0, rank):
            yield _node("Sub", [f"{name}.full", f"{name}.less"], node.output[0])
            return
        yield _node("Sub", [f"{name}.full", f"{name}.less"], f"{name}.shape")
        yield _integers(f"{name}.begin", [begin])
        yield _integers(f"{name}.end", [end])
        yield _node("Slice", [f"{name}.shape", f"{name}.begin", f"{name}.end"], node.output[0])


def _node(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(kind, inputs, [output], name=f"{output}/{kind}", **attributes)


def _integers(name: str, value: int | Sequence[int]) -> NodeProto:
    values = [value] if isinstance(value, int) else list(value)
    dims = [] if isinstance(value, int) else [len(values)]
    tensor = helper.make_tensor(name, TensorProto.INT64, dims, values)
    return helper.make_node("Constant", [], [name], name=f"{name}/Constant", value=tensor)
