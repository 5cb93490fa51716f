"""Stacked rows: the inputs of several requests as those of one, and its answer as theirs. Rules over numpy: no door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgepart.agent.wire.tensors import Value
from edgepart.planner.region import Array

RowsKey = tuple[tuple[str, str, tuple[int, ...]], ...]
"""The name, type and row's shape of each input."""


def rows_of(inputs: Mapping[str, Value]) -> tuple[int, RowsKey] | None:
    """The number of rows of all inputs, and what two requests must have in common to be stacked. None if the inputs have no
    rows, or not equally many."""
    rows: set[int] = set()
    key = []
    for name, value in sorted(inputs.items()):
        if not isinstance(value, np.ndarray) or value.ndim == 0:
            return None
        rows.add(value.shape[0])
        key.append((name, value.dtype.name, value.shape[1:]))
    return (rows.pop(), tuple(key)) if len(rows) == 1 else None


def shaped(inputs: Mapping[str, Value], rows: int) -> dict[str, Value]:
    """Arrays with the shapes and types of `inputs`, but with `rows` rows. They take no memory, and their values mean
    nothing."""
    found: dict[str, Value] = {}
    for name, value in inputs.items():
        assert isinstance(value, np.ndarray)
        found[name] = np.broadcast_to(value[:1], (rows, *value.shape[1:]))
    return found


def stack(requests: Sequence[Mapping[str, Value]], rows: int) -> dict[str, Value]:
    """The rows of all requests, in their order, and then copies of the last row, so that there are `rows`."""
    found: dict[str, Value] = {}
    for name in requests[0]:
        arrays: list[Array] = [np.asarray(inputs[name]) for inputs in requests]
        if lacking := rows - sum(len(array) for array in arrays):
            last = arrays[-1][-1:]
            arrays.append(np.broadcast_to(last, (lacking, *last.shape[1:])))
        found[name] = np.concatenate(arrays)
    return found


def cut(outputs: Mapping[str, Value], counts: Sequence[int], rows: int) -> list[dict[str, Value]] | str:
    """The outputs of each request, of which there are `counts` rows each, from those of the run of `rows` rows; or why that
    cannot be done."""
    for name, value in outputs.items():
        if not isinstance(value, np.ndarray) or value.ndim == 0 or len(value) != rows:
            shape = value.shape if isinstance(value, np.ndarray) else type(value).__name__
            return f"output {name!r} of {rows} rows is {shape}, and has no row for each"
    found: list[dict[str, Value]] = []
    begin = 0
    for count in counts:
        # Copies: a view would keep the whole run's answer in memory as long as one client reads slowly.
        found.append(
            {name: np.array(np.asarray(value)[begin : begin + count]) for name, value in outputs.items()}
        )
        begin += count
    return found
