"""Aligned: the word for operators that do to a crop of their inputs what they do to the whole.

Element-wise work, contractions, reductions, normalisations and transpositions are all of this kind: each
axis of an input either runs along an axis of the output (perhaps in steps of a block), or is read whole.
The local node is the operator itself. Works for regions with several intervals on an axis too. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import lcm
from typing import Any

from edgepart.planner.access.bound import Bound, Shape
from edgepart.planner.access.derived import Derived, Reads, local_node, rounded, split_axes
from edgepart.planner.access.language import Axis, Local, Outputs
from edgepart.planner.region import Region, Span, span


@dataclass(frozen=True, slots=True)
class Along:
    """An input axis that runs along an output axis: index `i` of the output reads `i * times // per`."""

    axis: int
    times: int = 1
    per: int = 1

    def read(self, out: Region, extent: int) -> Span:
        one = out.spans[self.axis]
        if self.times == 1 and self.per == 1:
            return one
        bounds = ((i.start * self.times // self.per, -(-i.stop * self.times // self.per)) for i in one)
        return span(*((start, min(stop, extent)) for start, stop in bounds))


AxisReads = Sequence[Along | None]
"""Per axis of one input: along which output axis it runs; None where it is read whole."""


def broadcast(shape: Shape | None, output: Shape) -> AxisReads | None:
    """How an input that is broadcast to `output` (aligned at the last axis) is read."""
    if shape is None:
        return None
    offset = len(output) - len(shape)
    return [None if extent == 1 else Along(axis + offset) for axis, extent in enumerate(shape)]


def vector(shape: Shape | None, axis: int, extent: int, per: int = 1) -> AxisReads | None:
    """How a scalar, or one value for each index (or block of `per`) of output axis `axis`, is read."""
    if shape is None:
        return None
    along = len(shape) == 1 and shape[0] > 1 and shape[0] == -(-extent // per)
    return [Along(axis, per=per)] if along else [None] * len(shape)


class Aligned(Derived):
    """See the module's docstring. Several outputs must have one shape."""

    def __init__(
        self,
        bound: Bound,
        reads: Sequence[AxisReads | None],
        *,
        whole: Iterable[int] = (),
        family: str = "elementwise",
        work: float = 1.0,
        reduced: tuple[Axis, ...] = (),
        names: Sequence[str] | None = None,
        attributes: Callable[[Region], Mapping[str, Any]] | None = None,
        quanta: Mapping[int, int] | None = None,
    ) -> None:
        """`whole`: output axes that cannot be cut. `work`: FLOPs for each element of the region that is made.
        `attributes`: those that change with the region. `quanta`: by axis, beside the ones `reads` imply."""
        self.bound = bound
        self.family = family
        self._reads = tuple(reads)
        self._work = work
        self._attributes = attributes
        self._whole = frozenset(whole)
        shape = bound.output
        extra = quanta or {}
        self._quanta = [extra.get(axis, 1) for axis in range(len(shape))]
        for along in (a for one in self._reads if one is not None for a in one if a is not None):
            self._quanta[along.axis] = lcm(self._quanta[along.axis], along.per)
        kept = [axis for axis in range(len(shape)) if axis not in self._whole]
        self._axes = split_axes(shape, kept, names, self._quanta) + reduced
        self._exact = not self._whole and all(q == 1 for q in self._quanta)

    def axes(self) -> tuple[Axis, ...]:
        return self._axes

    def widen(self, outputs: Outputs) -> Outputs:
        if self._exact and len(outputs) == 1:
            return outputs
        region = self._widened(reduce(Region.union_spans, outputs.values()))
        return dict.fromkeys(outputs, region)

    def _widened(self, region: Region) -> Region:
        shape = self.bound.output
        return Region(
            tuple(
                span((0, extent)) if axis in self._whole else rounded(one, self._quanta[axis], extent)
                for axis, (one, extent) in enumerate(zip(region.spans, shape, strict=True))
            )
        )

    def reads(self, computed: Outputs) -> Reads:
        region = next(iter(computed.values()))
        found: list[Region | None] = []
        for shape, read in zip(self.bound.inputs, self._reads, strict=True):
            if shape is None or read is None:
                found.append(None)
                continue
            spans = (
                span((0, extent)) if along is None else along.read(region, extent)
                for along, extent in zip(read, shape, strict=True)
            )
            found.append(Region(tuple(spans)))
        return tuple(found)

    def nodes(self, computed: Outputs) -> Local:
        node = local_node(self.bound, computed)
        if self._attributes is None:
            return (node,)
        changed = self._attributes(next(iter(computed.values())))
        return (replace(node, attributes={**node.attributes, **changed}),)

    def work(self, computed: Outputs) -> float:
        return next(iter(computed.values())).size * self._work
