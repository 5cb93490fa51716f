"""Shared axes: the building block for operators whose outputs have different shapes but share axes, as a recurrent
network's outputs share the batch. Each shared axis runs through inputs and outputs, with some number of elements for each
of its indices. Every other axis is read and made whole. The local node is the operator itself. Rules only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import Any

from edgepart.planner.access.declare.bound import BoundOperator, Shape
from edgepart.planner.access.declare.derived import Derived, Reads, local_node
from edgepart.planner.access.declare.protocol import Axis, Local, Outputs
from edgepart.planner.region import Region, Span, span, span_size


@dataclass(frozen=True, slots=True)
class Runs:
    """An axis of an input or output that runs along a shared axis, with `each` elements for each of its indices."""

    name: str
    each: int = 1

    def elements(self, part: Span) -> Span:
        return span(*((i.start * self.each, i.stop * self.each) for i in part))

    def indices(self, elements: Span) -> Span:
        """Returns the smallest part of the shared axis that has these elements."""
        return span(*((i.start // self.each, -(-i.stop // self.each)) for i in elements))


Tracks = Sequence[Runs | None]
"""The shared axis that each axis of one input or output runs along; None for an axis that is whole."""

Parts = Mapping[str, Span]
"""The part of each shared axis that is made, by the name of the axis."""


class SharedAxes(Derived):
    """See the module's docstring."""

    def __init__(
        self,
        bound: BoundOperator,
        shared: Mapping[str, int],
        inputs: Sequence[Tracks | None],
        outputs: Sequence[Tracks],
        *,
        family: str = "other",
        work: float,
        attributes: Callable[[Parts], Mapping[str, Any]] | None = None,
        optional: bool = False,
    ) -> None:
        """`shared`: the extent of each shared axis, by its name. `inputs`, `outputs`: how each input or
        output runs along the shared axes. `work`: FLOPs of the whole operator. `attributes`: the attributes
        that change with the part that is made. `optional`: whether the node may leave out any output."""
        self.bound = bound
        self.family = family
        self.shared = dict(shared)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._work = work
        self._attributes = attributes
        self._optional = optional

    def axes(self) -> tuple[Axis, ...]:
        return tuple(self._axes())

    def _axes(self) -> Iterator[Axis]:
        """Yields the shared axes that output 0 runs along."""
        for name, extent in self.shared.items():
            index, each = self._place(0, name)
            if index is None or extent < 2:
                continue
            found = [self._place(output, name) for output in range(len(self.bound.outputs))]
            places, counts = tuple(place for place, _ in found), tuple(count for _, count in found)
            yield Axis(
                name,
                index,
                extent * each,
                each,
                places=places if len(places) > 1 else (),
                each=counts if len(set(counts)) > 1 else (),
            )

    def _place(self, output: int, name: str) -> tuple[int | None, int]:
        """Returns the output's axis that runs along a shared one, and its elements for each index; (None, 0) if none
        does."""
        tracks = self.outputs[output] if self.bound.wants(output) else ()
        for place, track in enumerate(tracks):
            if track is not None and track.name == name:
                return place, track.each
        return None, 0

    def parts(self, outputs: Outputs) -> Parts:
        """Returns the part of each shared axis that must run to make `outputs`; an output that does not run along a
        shared axis needs all of it."""
        found = (self._parts_of(index, region) for index, region in outputs.items())
        return reduce(_both, found)

    def _parts_of(self, output: int, region: Region) -> Parts:
        parts = {name: span((0, extent)) for name, extent in self.shared.items()}
        for track, one in zip(self.outputs[output], region.spans, strict=True):
            if track is not None:
                parts[track.name] = track.indices(one)
        return parts

    def widen(self, outputs: Outputs) -> Outputs:
        parts = self.parts(outputs)
        return {k: _region(self.outputs[k], self.bound.outputs[k] or (), parts) for k in outputs}

    def reads(self, computed: Outputs) -> Reads:
        parts = self.parts(computed)
        return tuple(
            None if shape is None or tracks is None else _region(tracks, shape, parts)
            for shape, tracks in zip(self.bound.inputs, self.inputs, strict=True)
        )

    def nodes(self, computed: Outputs) -> Local:
        node = local_node(self.bound, computed)
        if self._optional:
            outputs = tuple(index if index in computed else None for index in range(len(node.outputs)))
            node = replace(node, outputs=outputs[: max(computed) + 1])
        if self._attributes is not None:
            changed = self._attributes(self.parts(computed))
            node = replace(node, attributes={**node.attributes, **changed})
        return (node,)

    def work(self, computed: Outputs) -> float:
        parts = self.parts(computed)
        return self._work * prod(span_size(parts[name]) / extent for name, extent in self.shared.items())


def _both(one: Parts, two: Parts) -> Parts:
    return {name: span(*part, *two[name]) for name, part in one.items()}


def _region(tracks: Tracks, shape: Shape, parts: Parts) -> Region:
    return Region(
        tuple(
            span((0, extent)) if track is None else track.elements(parts[track.name])
            for track, extent in zip(tracks, shape, strict=True)
        )
    )
