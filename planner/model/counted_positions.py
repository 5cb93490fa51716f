"""Finds decoders that count the positions of tokens by the rows of their past. A pure rule.

Where the past is put before the new rows, it always has the same number of rows here, and the mask says how many of them
count. A decoder that takes this number for the position of its token would give all tokens the same one, unless
masked_positions.py has changed it. In a graph with bound shapes such positions are constants: the sines and cosines of a
rotation, or a row of a table. They change with the length of the past, and their shapes do not. Masks and shapes change
with it too, and rightly so."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edgepart.planner.model.graph import Graph
from edgepart.planner.model.weights import SMALL_BYTES

_FLOATS = frozenset(["float", "float16", "bfloat16", "double"])


def counted_positions(graph: Graph, longer: Graph) -> Iterator[str]:
    """Yields the floating-point constants that operators read in both graphs, with the same shape and other values.
    `longer` is the same model as `graph` with a longer past."""
    for name in dict.fromkeys(name for operator in graph.operators for name in operator.inputs):
        one, other = graph.constants.get(name), longer.constants.get(name)
        if one is None or other is None or one.dtype not in _FLOATS or one.nbytes > SMALL_BYTES:
            continue
        if one.shape == other.shape and not np.array_equal(one.load(), other.load()):
            yield name
