"""What a free dimension of a model's inputs is taken as where the user says nothing: a shape that requests are likely to
have, so that what is predicted and compared means something. Rules; the user is told of each shape that is assumed.

A batch is of one. Pictures have 224 rows and columns and 3 channels, texts 128 tokens, other series 128 steps, and sound
without a second dimension is a second of 16,000 samples. What fits none of that stays 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from onnx import TensorProto, TypeProto, ValueInfoProto

from edgepart.planner.errors import ModelError, UsageError
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import free_of, inputs_of, load_graph, read_model

Shapes = Mapping[str, tuple[int, ...]]

SIDE = 224
CHANNELS = 3
STEPS = 128
SAMPLES = 16_000
WHOLE = (TensorProto.INT32, TensorProto.INT64)
"""Elements that name something: tokens, say."""
PICTURE_CHANNELS = (1, 3, 4)
"""A last dimension of so many is one of colours."""
SUM = re.compile(r"\s*(\w+)\s*\+\s*(\w+)\s*")
BATCH = re.compile(r"batch|\bn\b|\bb\b|\bbs\b", re.IGNORECASE)
LINE = re.compile(r"height|width|rows|columns|\bh\b|\bw\b", re.IGNORECASE)
PAST = re.compile(r"past", re.IGNORECASE)


def load_assuming(path: Path | bytes, shapes: Shapes) -> tuple[Graph, dict[str, tuple[int, ...]]]:
    """As `load_graph`, with likely shapes for what `shapes` leaves open, and which these are; notes say so too. Where the
    model cannot be read with those, its free dimensions are 1, and a note asks for their shapes.

    ModelError, UsageError."""
    guessed = assumed(inputs_of(read_model(path)), shapes)
    if not guessed:
        return load_graph(path, shapes=shapes), {}
    try:
        graph = load_graph(path, shapes={**shapes, **guessed})
    except (ModelError, UsageError):
        graph = load_graph(path, shapes=shapes)
        names = ", ".join(f"--shape {name}=D0,D1,..." for name in guessed)
        text = f"the free dimensions may be far from what you use, and so is what is said of speed and memory; give {names}"
        return replace(graph, notes=(*graph.notes, text)), {}
    notes = (
        f"input {name}: the shape {','.join(map(str, shape))} is assumed; --shape {name}=D0,D1,... says another"
        for name, shape in guessed.items()
    )
    return replace(graph, notes=(*notes, *graph.notes)), guessed


def assumed(inputs: Sequence[ValueInfoProto], given: Shapes) -> dict[str, tuple[int, ...]]:
    """By input that `given` does not have, its likely shape; without those of which only the batch is free."""
    symbols = _known(inputs, given)
    for value in inputs:
        if value.name not in given:
            for axis, name in enumerate(free_of(value.type) or ()):
                if name and not SUM.fullmatch(name):
                    symbols.setdefault(name, _extent(value.type, axis, name))
    found = {}
    for value in inputs:
        free = free_of(value.type) or ()
        if value.name in given or not any(name is not None for name in free):
            continue
        shape = tuple(
            _fixed(value.type, axis) if name is None else _value(value.type, axis, name, symbols)
            for axis, name in enumerate(free)
        )
        if any(extent != 1 for extent, name in zip(shape, free, strict=True) if name is not None):
            found[value.name] = shape
    return found


def _known(inputs: Sequence[ValueInfoProto], given: Shapes) -> dict[str, int]:
    """What the shapes that are given say of named dimensions."""
    return {
        name: extent
        for value in inputs
        for name, extent in zip(free_of(value.type) or (), given.get(value.name, ()), strict=False)
        if name
    }


def _value(kind: TypeProto, axis: int, name: str, symbols: Mapping[str, int]) -> int:
    if name in symbols:
        return symbols[name]
    if parts := SUM.fullmatch(name):
        addends = [int(part) if part.isdigit() else symbols.get(part, 0) for part in parts.groups()]
        return max(sum(addends), 1)
    return _extent(kind, axis, name)


def _extent(kind: TypeProto, axis: int, name: str) -> int:
    """By what the input looks like."""
    rank, element = len(kind.tensor_type.shape.dim), kind.tensor_type.elem_type
    if BATCH.search(name) or PAST.search(name) or (axis == 0 and not LINE.search(name)):
        return 1
    if LINE.search(name) and rank < 4:
        return SIDE
    if rank >= 4 and element not in WHOLE:
        rows, columns, channels = _axes_of_pictures(kind, rank)
        if axis == channels:
            return CHANNELS
        if axis in (rows, columns):
            return max(_fixed(kind, columns if axis == rows else rows), 0) or SIDE
        return 1
    if rank == 2 and element not in WHOLE:
        return SAMPLES
    return STEPS if rank in (2, 3) else 1


def _axes_of_pictures(kind: TypeProto, rank: int) -> tuple[int, int, int]:
    """Of rows, columns and channels."""
    last = _fixed(kind, rank - 1) in PICTURE_CHANNELS and _fixed(kind, rank - 3) not in PICTURE_CHANNELS
    return (rank - 3, rank - 2, rank - 1) if last else (rank - 2, rank - 1, rank - 3)


def _fixed(kind: TypeProto, axis: int) -> int:
    """-1 where it is free."""
    dim = kind.tensor_type.shape.dim[axis]
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else -1
