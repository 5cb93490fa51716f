"""Chooses likely shapes for inputs with free dimensions for which the user gives no shape, so that
predictions and comparisons mean something. Rules; notes tell the user each assumed shape.

A batch has one sample. Pictures have 224 rows and columns and 3 channels, texts have 128 tokens, other series
have 128 steps, and sound with no axes but batch and time is a second of 16,000 samples. Any other free
dimension is 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from onnx import TensorProto, TypeProto, ValueInfoProto

from edgepart.planner.errors import ModelError, UsageError
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.model.model_file import read_model
from edgepart.planner.model.shapes.free_dimensions import free_of, inputs_of
from edgepart.planner.tdl.description import OperatorDescription

Shapes = Mapping[str, tuple[int, ...]]

PICTURE_SIDE = 224
CHANNELS = 3
SERIES_STEPS = 128
SOUND_SAMPLES = 16_000
TOKEN_TYPES = (TensorProto.INT32, TensorProto.INT64)
"""Element types of identifiers, such as tokens. Inputs of these types are neither pictures nor sound."""
PICTURE_CHANNELS = (1, 3, 4)
"""Extents by which a last dimension is recognised as the colour channels."""
SUM_OF_NAMES = re.compile(r"\s*(\w+)\s*\+\s*(\w+)\s*")
BATCH_NAME = re.compile(r"batch|\bn\b|\bb\b|\bbs\b", re.IGNORECASE)
PICTURE_AXIS_NAME = re.compile(r"height|width|rows|columns|\bh\b|\bw\b", re.IGNORECASE)
PAST_NAME = re.compile(r"past", re.IGNORECASE)


def load_with_likely_shapes(
    path: Path | bytes, shapes: Shapes, operators: Sequence[OperatorDescription] = ()
) -> tuple[Graph, dict[str, tuple[int, ...]]]:
    """The graph as `load_graph` gives it, and the likely shapes that were assumed for inputs missing in
    `shapes`; notes of the graph name these shapes too. If the model cannot be read with them, its free
    dimensions are 1, and a note asks for shapes. `operators` are descriptions beside those in the file.

    Raises ModelError and UsageError as `load_graph` does."""
    guessed = likely_shapes(inputs_of(read_model(path)), shapes)
    if not guessed:
        return load_graph(path, shapes=shapes, operators=operators), {}
    try:
        graph = load_graph(path, shapes={**shapes, **guessed}, operators=operators)
    except (ModelError, UsageError):
        graph = load_graph(path, shapes=shapes, operators=operators)
        names = ", ".join(f"--shape {name}=D0,D1,..." for name in guessed)
        text = f"the free dimensions may be far from what you use, and so is what is said of speed and memory; give {names}"
        return replace(graph, notes=(*graph.notes, text)), {}
    notes = (
        f"input {name}: the shape {','.join(map(str, shape))} is assumed; --shape {name}=D0,D1,... says another"
        for name, shape in guessed.items()
    )
    return replace(graph, notes=(*notes, *graph.notes)), guessed


def likely_shapes(inputs: Sequence[ValueInfoProto], given: Shapes) -> dict[str, tuple[int, ...]]:
    """Maps inputs that are not in `given` to likely shapes. Inputs whose free dimensions would all be 1 are
    left out."""
    symbols = _given_extents(inputs, given)
    for value in inputs:
        if value.name not in given:
            for axis, name in enumerate(free_of(value.type) or ()):
                if name and not SUM_OF_NAMES.fullmatch(name):
                    symbols.setdefault(name, _likely_extent(value.type, axis, name))
    found = {}
    for value in inputs:
        free = free_of(value.type) or ()
        if value.name in given or not any(name is not None for name in free):
            continue
        shape = tuple(
            _fixed_extent(value.type, axis) if name is None else _free_extent(value.type, axis, name, symbols)
            for axis, name in enumerate(free)
        )
        if any(extent != 1 for extent, name in zip(shape, free, strict=True) if name is not None):
            found[value.name] = shape
    return found


def _given_extents(inputs: Sequence[ValueInfoProto], given: Shapes) -> dict[str, int]:
    """Extents of named dimensions that follow from the given shapes."""
    return {
        name: extent
        for value in inputs
        for name, extent in zip(free_of(value.type) or (), given.get(value.name, ()), strict=False)
        if name
    }


def _free_extent(kind: TypeProto, axis: int, name: str, symbols: Mapping[str, int]) -> int:
    if name in symbols:
        return symbols[name]
    if parts := SUM_OF_NAMES.fullmatch(name):
        addends = [int(part) if part.isdigit() else symbols.get(part, 0) for part in parts.groups()]
        return max(sum(addends), 1)
    return _likely_extent(kind, axis, name)


def _likely_extent(kind: TypeProto, axis: int, name: str) -> int:
    """The likely extent of a free axis, from its name and from the rank, element type and fixed axes of the input."""
    rank, element = len(kind.tensor_type.shape.dim), kind.tensor_type.elem_type
    if (
        BATCH_NAME.search(name)
        or PAST_NAME.search(name)
        or (axis == 0 and not PICTURE_AXIS_NAME.search(name))
    ):
        return 1
    if PICTURE_AXIS_NAME.search(name) and rank < 4:
        return PICTURE_SIDE
    if rank >= 4 and element not in TOKEN_TYPES:
        rows, columns, channels = _axes_of_pictures(kind, rank)
        if axis == channels:
            return CHANNELS
        if axis in (rows, columns):
            return max(_fixed_extent(kind, columns if axis == rows else rows), 0) or PICTURE_SIDE
        return 1
    if rank == 2 and element not in TOKEN_TYPES:
        return SOUND_SAMPLES
    return SERIES_STEPS if rank in (2, 3) else 1


def _axes_of_pictures(kind: TypeProto, rank: int) -> tuple[int, int, int]:
    """The numbers of the axes of rows, columns and channels."""
    last = (
        _fixed_extent(kind, rank - 1) in PICTURE_CHANNELS
        and _fixed_extent(kind, rank - 3) not in PICTURE_CHANNELS
    )
    return (rank - 3, rank - 2, rank - 1) if last else (rank - 2, rank - 1, rank - 3)


def _fixed_extent(kind: TypeProto, axis: int) -> int:
    """The extent of a fixed axis; -1 for a free one."""
    dim = kind.tensor_type.shape.dim[axis]
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else -1
