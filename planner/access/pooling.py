"""Pooling: windows over space, channel by channel, and the global pools. What a window at the edge of a
piece counts is what it counts in the whole: only padding of the whole is ever padding of a piece. Pure."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from edgepart.planner.access.aligned import Aligned, Along, AxisReads, Inner
from edgepart.planner.access.bound import Bound, axis_names
from edgepart.planner.access.derived import Derived, Reads, Whole, local_node, split_axes
from edgepart.planner.access.language import Axis, Local, Outputs
from edgepart.planner.access.window import windows
from edgepart.planner.region import Region


class Pool(Derived):
    """MaxPool, AveragePool, LpPool."""

    family = "pool"

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.windows = windows(bound, bound.integers("kernel_shape") or (), bound.shape(0)[2:])
        rank = len(bound.output)
        self._axes = split_axes(bound.output, range(rank), axis_names(rank, spatial=True))

    def axes(self) -> tuple[Axis, ...]:
        return self._axes

    def widen(self, outputs: Outputs) -> Outputs:
        batch, channel, *space = outputs[0].spans
        extents = self.bound.output[2:]
        boxes = (w.widen(s, e) for w, s, e in zip(self.windows, space, extents, strict=True))
        return {0: Region((batch, channel, *boxes))}

    def reads(self, computed: Outputs) -> Reads:
        batch, channel, *space = computed[0].spans
        read = (w.read(one[0]) for w, one in zip(self.windows, space, strict=True))
        return (Region((batch, channel, *read)),)

    def nodes(self, computed: Outputs) -> Local:
        space = [one[0] for one in computed[0].spans[2:]]
        pads = [w.pads(out) for w, out in zip(self.windows, space, strict=True)]
        over = any(w.hangs_over(out) for w, out in zip(self.windows, space, strict=True))
        attributes = self.bound.with_attributes(
            auto_pad=None,
            pads=[begin for begin, _ in pads] + [end for _, end in pads],
            ceil_mode=1 if over else None,
        )
        return (replace(local_node(self.bound), attributes=attributes),)

    def work(self, computed: Outputs) -> float:
        return float(computed[0].size * prod(w.kernel for w in self.windows))


def pool(bound: Bound) -> Derived:
    if bound.wants(1):
        return Whole(bound, "it gives the indices of the maxima in the whole tensor")
    if bound.integers("kernel_shape") is None:
        return Whole(bound, "it has no kernel_shape")
    return Pool(bound)


def global_pool(bound: Bound) -> Derived:
    """Each spatial axis is reduced: a part of the rows gives its own mean, maximum or norm."""
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
