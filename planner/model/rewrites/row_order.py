"""Finds out whether the order of the past's rows matters to a model, and which of its values have to be put in order with
them. A rule.

The states of a model that puts its past before new rows could be written in place, if the rows that do not count lay behind
those that do, and not before them. So all rows are moved by the same number, around the end: those of the states, and of
all that is computed of them for each row. What has a column for each row beside these, as a mask has, has to be moved along
where it meets them. It can then depend on the order as it likes (causal masks, windows, biases by distance); what is
computed of the rows themselves cannot. Nor may anything be left of rows that the mask leaves out: in a buffer they may have
any values."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from edgepart.planner.errors import NotInPlace
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.rewrites.masked_positions import MASK
from edgepart.planner.model.rewrites.past_before_rows import Growing
from edgepart.planner.model.rewrites.row_facts import Alongside, Followed, PastRows, Reading
from edgepart.planner.model.rewrites.row_rules import follow

ROWS = 2
"""The axis of rows in states that are written in place, as plans have it (IN_PLACE_ROWS in planner/plans/plan.py)."""


@dataclass(frozen=True)
class Moved:
    """An input of an operator that has to be put into the order of the rows."""

    reader: str
    """The operator's first output."""
    value: str
    alongside: Alongside


def find_moved(graph: Graph, growing: Growing) -> tuple[Moved, ...]:
    """The values that have to be put into the order of the rows. `graph` is the model with a past that is padded to a fixed
    length. Raises NotInPlace, which says why, if the order of the rows may matter in another way."""
    sequences = _sequences(graph)
    past_rows = {
        one.joined: _state(graph, growing, number, sequences) for number, one in enumerate(growing.states)
    }
    of_past = _following(graph, [one.past for one in growing.states])
    of_mask = _following(graph, [MASK]) - of_past
    begins, moved = set(past_rows), list[Moved]()
    for op in graph.operators:
        if begins.intersection(op.outputs):
            continue
        if any(name in past_rows for name in op.captured):
            raise NotInPlace(f"{op.op_type} {op.name!r} reads rows of the past in a branch or a loop")
        read = {number: past_rows[name] for number, name in enumerate(op.inputs) if name in past_rows}
        if not read:
            continue
        masks = frozenset(number for number, name in enumerate(op.inputs) if name in of_mask)
        found = _checked(follow(reading := Reading(graph, op, read, masks, sequences)), reading, growing)
        moved += [Moved(op.outputs[0], op.inputs[one.number], one) for one in found.alongside]
        past_rows |= found.writes
    presents = {one.present for one in growing.states}
    if shown := [name for name in graph.outputs if name in past_rows and name not in presents]:
        raise NotInPlace(f"the output {shown[0]!r} has rows of the past")
    return tuple(moved)


def _sequences(graph: Graph) -> int:
    shape = graph.shape_of(MASK) if MASK in graph.tensors else None
    if shape is None or len(shape) != 2:
        raise NotInPlace(f"{MASK!r} has no row for each sequence")
    return shape[0]


def _state(graph: Graph, growing: Growing, number: int, sequences: int) -> PastRows:
    """Where rows are in a state. Raises NotInPlace if it cannot be written in place."""
    one = growing.states[number]
    shape = graph.shape_of(one.past)
    if shape is None:
        raise NotInPlace(f"the shape of state {one.past!r} is not known")
    if one.axis != ROWS:
        raise NotInPlace(f"the rows of state {one.past!r} are along axis {one.axis}, not {ROWS}")
    if shape[0] != sequences:
        raise NotInPlace(f"the first axis of state {one.past!r} is not that of the sequences")
    known = {one.joined, one.read if one.read != one.past else one.joined}
    if any(known.isdisjoint(op.outputs) for name in {one.past, one.read} for op in graph.consumers[name]):
        raise NotInPlace(f"the past of state {one.past!r} is also read without the new rows")
    kinds = graph.tensors[one.past].dtype, graph.tensors[one.joined].dtype
    if kinds[0] != kinds[1] and kinds != ("float", "float16"):
        raise NotInPlace(f"state {one.past!r} is of {kinds[0]}, and the model computes with {kinds[1]}")
    return PastRows(one.axis, 0)


def _checked(found: Followed, reading: Reading, growing: Growing) -> Followed:
    """What was found. Raises NotInPlace if shapes contradict it."""
    for name, one in found.writes.items():
        shape = reading.shape(name)
        if (
            shape[one.rows] != growing.context + one.sinks
            or shape[one.batch] != reading.sequences * one.inner
        ):
            raise reading.refuse("has another number of rows than the past and the step")
    return found


def _following(graph: Graph, names: Iterable[str]) -> Set[str]:
    """The names of all values that depend on these."""
    found = set(names)
    for op in graph.operators:
        if not found.isdisjoint((*op.inputs, *op.captured)):
            found.update(op.outputs)
    return found - {""}
