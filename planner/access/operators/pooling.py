"""Pooling: windows over space, channel by channel, and the global pools. A window at the edge of a piece
counts the same elements as in the whole tensor, because a piece is padded only where the whole tensor is.
Rules only."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import prod

import numpy as np

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads, Inner
from edgepart.planner.access.declare.bound import BoundOperator, Shape, axis_names
from edgepart.planner.access.declare.derived import Derived, Reads, WholeOperator, local_node, split_axes
from edgepart.planner.access.declare.protocol import Axis, Local, LocalNode, Outputs
from edgepart.planner.access.declare.reducers import chain
from edgepart.planner.access.declare.window import windows
from edgepart.planner.region import Region


class Pool(Derived):
    """MaxPool, AveragePool, LpPool."""

    family = "pool"

    def __init__(self, bound: BoundOperator) -> None:
        self.bound = bound
        self.windows = windows(bound, bound.integers("kernel_shape") or (), bound.shape(0)[2:])
        rank = len(bound.output)
        self._axes = split_axes(bound.output, range(rank), axis_names(rank, spatial=True))

    def axes(self) -> tuple[Axis, ...]:
        return self._axes

    def widen(self, outputs: Outputs) -> Outputs:
        batch, channel, *space = reduce(Region.union_spans, outputs.values()).spans
        extents = self.bound.output[2:]
        boxes = (w.widen(s, e) for w, s, e in zip(self.windows, space, extents, strict=True))
        return dict.fromkeys(outputs, Region((batch, channel, *boxes)))

    def reads(self, computed: Outputs) -> Reads:
        batch, channel, *space = next(iter(computed.values())).spans
        read = (w.read(one[0]) for w, one in zip(self.windows, space, strict=True))
        return (Region((batch, channel, *read)),)

    def nodes(self, computed: Outputs) -> Local:
        space = [one[0] for one in next(iter(computed.values())).spans[2:]]
        pads = [w.pads(out) for w, out in zip(self.windows, space, strict=True)]
        over = any(w.hangs_over(out) for w, out in zip(self.windows, space, strict=True))
        attributes = self.bound.with_attributes(
            auto_pad=None,
            pads=[begin for begin, _ in pads] + [end for _, end in pads],
            ceil_mode=1 if over else None,
        )
        node = replace(local_node(self.bound, computed), attributes=attributes)
        read = self.reads(computed)[0]
        assert read is not None
        if 1 not in computed or read == Region.full(self.bound.shape(0)):
            return (node,)
        columns = bool(self.bound.attribute("storage_order", 0))
        return (
            replace(node, outputs=(node.outputs[0], "inside")),
            *relocate("inside", 1, read, self.bound.shape(0), columns),
        )

    def work(self, computed: Outputs) -> float:
        made = next(iter(computed.values()))
        return float(made.size * prod(w.kernel for w in self.windows))


def relocate(source: str, target: int, read: Region, shape: Shape, columns: bool) -> Local:
    """Returns nodes that turn positions in the packed array of `read` into positions in the whole tensor of `shape`.
    Space counts fastest, its last axis first or, with `columns`, its first axis first; then channels, then samples."""
    axes = [np.arange(extent) for extent in shape[2:]]
    # For each axis, from the fastest to the slowest: the indices that `read` holds, and the whole extent.
    digits = [(Region((one,)).crop(axis), len(axis)) for one, axis in zip(read.spans[2:], axes, strict=True)]
    digits = digits if columns else digits[::-1]
    planes = np.arange(prod(shape[:2])).reshape(shape[:2])
    nodes: list[LocalNode] = []
    left, step = source, 1
    for n, (places, extent) in enumerate(digits):
        count = np.asarray(len(places), np.int64)
        nodes.append(LocalNode("Mod", (left, count), (f"digit_{n}",)))
        nodes.append(LocalNode("Div", (left, count), (f"left_{n}",)))
        nodes.append(LocalNode("Gather", (places * step, f"digit_{n}"), (f"place_{n}",)))
        left, step = f"left_{n}", step * extent
    held = Region(read.spans[:2]).crop(planes).reshape(-1)
    nodes.append(LocalNode("Gather", (held * step, left), ("plane",)))
    return (*nodes, *chain("Add", ["plane", *(f"place_{n}" for n in range(len(digits)))], target, "position"))


def pool(bound: BoundOperator) -> Derived:
    kernel = bound.integers("kernel_shape")
    if kernel is None:
        return WholeOperator(bound, "it has no kernel_shape")
    if len(kernel) != len(bound.shape(0)) - 2:
        return WholeOperator(bound, "its kernel_shape does not fit its input")
    if bound.wants(1) and bound.opset < 10:
        return WholeOperator(bound, "it gives indices in an opset that has no remainders to move them by")
    return Pool(bound)


def global_pool(bound: BoundOperator) -> Derived:
    """Declares the global pools. Each spatial axis is reduced: a part of it gives its own mean, maximum or norm."""
    shape = bound.shape(0)
    names = axis_names(len(shape), spatial=True)
    reads: AxisReads = [Along(0), Along(1), *map(Inner, names[2:])]
    reducer = _GLOBAL.get(bound.operator.op_type)
    if reducer == "norm" and bound.attribute("p", 2) != 2:
        reducer = None
    reduced = tuple(
        Axis(names[axis], axis, shape[axis], reducer=reducer)
        for axis in range(2, len(shape))
        if reducer and shape[axis] > 1
    )
    work = float(prod(shape[2:]))
    return Aligned(bound, [reads], family="reduce", work=work, names=names, reduced=reduced)


_GLOBAL = {"GlobalAveragePool": "mean", "GlobalLpPool": "norm", "GlobalMaxPool": "max"}


DECLARATIONS = {
    "AveragePool": pool,
    "GlobalAveragePool": global_pool,
    "GlobalLpPool": global_pool,
    "GlobalMaxPool": global_pool,
    "LpPool": pool,
    "MaxPool": pool,
}
