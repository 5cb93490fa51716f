"""Binds the free dimensions of a model whose states grow with the steps of a sequence, such as a decoder with caches of
keys and values: to a number of rows in a step, and to the most rows that a sequence may have.

A state is either a buffer, into which an operator writes new rows (GroupQueryAttention), or what an operator puts before
the new rows (Concat). A buffer has as many rows as the sequence may have. Where that is sure to be right, a model with
states of the other kind is rewritten so that they are buffers (rewrites/in_place.py). Else a step reads as many rows less
as it adds, so that all steps have the same shapes. A rule, but for the model's file, which is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import ModelProto, ValueInfoProto

from edgepart.planner.errors import ModelError, NotInPlace, UsageError
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.model.model_file import read_model
from edgepart.planner.model.rewrites.masked_positions import COUNTED, MASK, POSITIONS
from edgepart.planner.model.rewrites.merged_decoder import ALWAYS, is_merged
from edgepart.planner.model.shapes.free_dimensions import free_of, inputs_of
from edgepart.planner.model.states import WRITTEN, Pair, find_states, suggested_pairs
from edgepart.planner.model.weights import SMALL_BYTES
from edgepart.planner.tdl.description import OperatorDescription

Shapes = Mapping[str, tuple[int, ...]]

_FLOATS = frozenset(["float", "float16", "bfloat16", "double"])


def has_growing_states(path: Path | bytes) -> bool:
    """Whether names say that states of the model grow from step to step. Raises ModelError."""
    model = read_model(path)
    return bool(_growing_states(model, inputs_of(model)))


def _growing_states(model: ModelProto, inputs: Sequence[ValueInfoProto]) -> dict[str, int]:
    """The inputs of states that grow, each with the axis along which it does."""
    after, before = ({one.name: one for one in values} for values in (model.graph.output, inputs))
    pairs = suggested_pairs(after, before)
    return {read: axis for output, read in pairs for axis in _growing(before[read], after[output])}


def load_with_context(
    path: Path | bytes,
    shapes: Shapes,
    context: int,
    rows: int = 1,
    batch: int = 1,
    operators: Sequence[OperatorDescription] = (),
) -> tuple[Graph, dict[str, tuple[int, ...]]]:
    """The graph of steps of `rows` rows in each of `batch` sequences of at most `context` rows, with its states, and the
    shapes that its inputs are bound to. `shapes` binds further inputs. Graphs for several `rows` have the same states if
    these are buffers; otherwise if `context` is `context_of_block`.

    Raises UsageError if no state of the model grows, or if `rows` are more than `context`; ModelError if the model cannot
    have these shapes, or counts positions by the rows of its past."""
    if not 0 < rows <= context:
        raise UsageError(f"--context {context}: has to be at least {rows}, the rows of a step")
    model = read_model(path)
    inputs = inputs_of(model)
    pairs = suggested_pairs([one.name for one in model.graph.output], [one.name for one in inputs])
    growing = _growing_states(model, inputs)
    if not growing:
        raise UsageError("--context: no state of this model grows from step to step; leave the option out")
    totals = _totals(model, {output: growing[read] for output, read in pairs if read in growing})
    always = ALWAYS if is_merged(model) else {}

    def fit(past: int, total: int) -> dict[str, tuple[int, ...]]:
        made = {one.name: _shape(one, growing, totals, (batch, past, total, rows)) for one in inputs}
        return {**{name: shape for name, shape in made.items() if shape}, **always}

    fault: ModelError | None = None
    for past in (context, context - rows):
        fitting = fit(past, context)
        bound = {**fitting, **shapes}
        try:
            graph = _load_open(path, bound, growing, operators)
            if written_so := dict(_as_written(graph, bound, pairs, growing)):
                bound |= written_so
                graph = load_graph(path, shapes=bound, operators=operators)
            graph = find_states(graph)
        except ModelError as error:
            fault = error  # The past is no buffer: with as many rows as the mask it is too long.
            continue
        ends = [
            (graph.shape_of(one.output), growing[one.input]) for one in graph.states if one.input in growing
        ]
        if len(ends) == len(growing) and all(end is not None and end[axis] == context for end, axis in ends):
            if past > 0 and (past < context or _is_rewritten(graph)) and POSITIONS not in bound:
                longer = dict(fit(past + 1, context + 1).items() - fitting.items())
                longer |= {name: _lengthened(bound[name], axis) for name, axis in growing.items()}
                _refuse_counting(graph, load_graph(path, shapes={**bound, **longer}, operators=operators))
            if past < context and rows < context:
                graph = _note_copying(graph, fault)
            return _note_counting(graph), bound
    name = path.name if isinstance(path, Path) else "model"
    raise fault or ModelError(
        f"{name}: its states do not have {context} rows after a step; give --shape for each input"
    )


def _is_rewritten(graph: Graph) -> bool:
    """Whether a rule of rewrites/in_place.py has the model write its states in place."""
    return any(graph.producers[one.output].name.startswith(WRITTEN) for one in graph.states)


def _note_copying(graph: Graph, fault: ModelError | None) -> Graph:
    """The graph, with a note that its states are not written in place, and why."""
    unknown = f"{graph.name}: how it puts them before new rows is not known, or it has no {MASK!r}"
    why = fault if isinstance(fault, NotInPlace) else unknown
    return replace(graph, notes=(*graph.notes, f"caches are copied at each step: {why}"))


def _totals(model: ModelProto, written: Mapping[str, int]) -> set[str]:
    """The names of the dimensions that count all rows: those along which the outputs `written` have grown."""
    return {
        name
        for value in model.graph.output
        if value.name in written
        for name in (free_of(value.type) or ())[written[value.name] : written[value.name] + 1]
        if name
    }


def _note_counting(graph: Graph) -> Graph:
    """The graph, with a note if the rule of `masked_positions` had to change it."""
    if not any(operator.name.startswith(COUNTED) for operator in graph.operators):
        return graph
    note = f"the rows that {MASK!r} leaves out count for no position; the model counts all rows of its past"
    return replace(graph, notes=(*graph.notes, note))


def _refuse_counting(graph: Graph, longer: Graph) -> None:
    """Raises ModelError if the model takes the number of rows of its past for the position of its token."""
    if counted := next(_counted_positions(graph, longer), None):
        raise ModelError(
            f"{graph.name}: it takes the number of rows in its past for the position of its token ({counted!r} depends on "
            f"it), and that number is the same in all steps here; export it with an input {POSITIONS!r}, or with the "
            "builder of onnxruntime-genai"
        )


def _counted_positions(graph: Graph, longer: Graph) -> Iterator[str]:
    """Yields the floating-point constants that operators read in both graphs, with the same shape and other values.
    `longer` is the same model as `graph` with a longer past.

    In a graph with bound shapes, positions that count the rows of the past are constants: the sines and cosines of a
    rotation, or a row of a table. They change with the length of the past, and their shapes do not. Masks and shapes change
    with it too, and rightly so. What masked_positions.py has changed is none."""
    for name in dict.fromkeys(name for operator in graph.operators for name in operator.inputs):
        one, other = graph.constants.get(name), longer.constants.get(name)
        if one is None or other is None or one.dtype not in _FLOATS or one.nbytes > SMALL_BYTES:
            continue
        if one.shape == other.shape and not np.array_equal(one.load(), other.load()):
            yield name


def context_of_block(graph: Graph, context: int, rows: int) -> int | None:
    """The context with which a graph of steps of `rows` rows has the states of `graph`, which has steps of one row and this
    context. None if there is none: blocks are longer than the context, or states are of several kinds, or do not grow."""
    if rows >= context or not graph.states:
        return None
    if all(state.in_place for state in graph.states):
        return context
    # What is put before new rows is one row shorter than the context, however many rows a step adds.
    return context - 1 + rows if all(state.grows is not None for state in graph.states) else None


def _growing(before: ValueInfoProto, after: ValueInfoProto) -> Iterator[int]:
    """Yields the axis along which a state grows: its free axis besides the batch, if there is only one. Of several it is
    the one that has another name after a step."""
    free, written = free_of(before.type) or (), free_of(after.type) or ()
    found = [axis for axis, name in enumerate(free) if name is not None and axis > 0]
    if len(found) > 1 and len(written) == len(free):
        found = [axis for axis in found if written[axis] != free[axis]]
    if len(found) == 1:
        yield found[0]


def _lengthened(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], shape[axis] + 1, *shape[axis + 1 :])


def _load_open(
    path: Path | bytes, bound: Shapes, growing: Mapping[str, int], operators: Sequence[OperatorDescription]
) -> Graph:
    """The graph with these shapes. If they do not fit, because an axis of a state is free that does not grow, the graph in
    which these axes are free. Raises ModelError."""
    try:
        return load_graph(path, shapes=bound, operators=operators)
    except ModelError:
        free = {value.name: free_of(value.type) or () for value in inputs_of(read_model(path))}
        opened = {
            name: tuple(
                extent if fixed is None or axis in (0, growing[name]) else None
                for axis, (fixed, extent) in enumerate(zip(free[name], bound[name], strict=True))
            )
            for name in growing
        }
        if all(None not in shape for shape in opened.values()):
            raise
        return load_graph(path, shapes={**bound, **opened}, operators=operators)


def _as_written(
    graph: Graph, bound: Shapes, pairs: Sequence[Pair], growing: Mapping[str, int]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the growing states of which an axis that is free, and does not grow, has another extent in what is written
    (the size of a head, which ONNX Runtime's builder gives a name): each with the shape that it then has to have."""
    for output, read in pairs:
        before, after = bound.get(read), graph.shape_of(output)
        if read not in growing or before is None or after is None or len(before) != len(after):
            continue
        kept = [name is None or axis in (0, growing[read]) for axis, name in enumerate(graph.free[read])]
        fitting = tuple(a if keep else b for keep, a, b in zip(kept, before, after, strict=True))
        if fitting != before:
            yield read, fitting


def _shape(
    value: ValueInfoProto, growing: Mapping[str, int], totals: set[str], extents: tuple[int, int, int, int]
) -> tuple[int, ...] | None:
    """The shape of an input; None if it has no free dimensions. `extents` are those of the batch, the rows before a step,
    the context and the rows of a step."""
    batch, past, context, rows = extents
    free: Sequence[str | None] = free_of(value.type) or ()
    if not any(name is not None for name in free):
        return None
    fixed = [int(dim.dim_value) for dim in value.type.tensor_type.shape.dim]

    def extent(axis: int, name: str | None) -> int:
        if name is None:
            return fixed[axis]
        if axis == 0:
            return batch
        if value.name in growing:
            return past if axis == growing[value.name] else 1
        return context if name in totals or value.name == MASK else rows

    return tuple(extent(axis, name) for axis, name in enumerate(free))
