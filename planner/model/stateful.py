"""Loads a model for deployment or for a trial: with likely shapes, and with the states that devices keep. A rule, but for
the model's file, which is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edgepart.planner.model.assumed_shapes import load_with_likely_shapes
from edgepart.planner.model.context_shapes import load_with_context
from edgepart.planner.model.graph import Graph, State
from edgepart.planner.model.states import Pair, find_states, keep_states
from edgepart.planner.tdl.description import OperatorDescription

Shapes = Mapping[str, tuple[int, ...]]


def load_with_states(
    path: Path | bytes,
    shapes: Shapes,
    pairs: Sequence[Pair] | None = None,
    context: int | None = None,
    operators: Sequence[OperatorDescription] = (),
) -> tuple[Graph, dict[str, tuple[int, ...]]]:
    """The graph with its states, and the shapes that were assumed for inputs missing in `shapes`.

    `pairs` are the states; with None the names of outputs and inputs say which there are. `context` is the most rows of a
    sequence, for a model whose states grow. Without it such states are ordinary inputs and outputs, and a note says so.
    `operators` are descriptions beside those in the file. Raises ModelError and UsageError."""
    if context is not None:
        graph, bound = load_with_context(path, shapes, context, operators=operators)
        assumed = {name: shape for name, shape in bound.items() if name not in shapes}
        return keep_states(graph, pairs) if pairs is not None else graph, assumed
    graph, assumed = load_with_likely_shapes(path, shapes, operators)
    if pairs is not None:
        return keep_states(graph, pairs), assumed
    found = find_states(graph)
    growing = [state for state in found.states if _grows(found, state)]
    if not growing:
        return found, assumed
    more = f" and {len(growing) - 1} more" if len(growing) > 1 else ""
    note = (
        f"state {growing[0].output!r} -> {growing[0].input!r}{more} grows with every step; --context ROWS keeps it on the "
        "devices, without that it is an ordinary input"
    )
    kept = tuple(state for state in found.states if state not in growing)
    return replace(found, states=kept, notes=(*found.notes, note)), assumed


def _grows(graph: Graph, state: State) -> bool:
    """Whether the output may be longer than the input was: an axis that is free in the input has another name in the
    output."""
    before, after = graph.free.get(state.input, ()), graph.free.get(state.output, ())
    if state.grows is not None or not before:
        return state.grows is not None
    named = zip(before, after or (None,) * len(before), strict=True)
    return any(name is not None and name != other for name, other in named)
