"""Described: the access of an operator that a user described in TDL (planner/tdl). Rules only.

The local node is the operator itself on a part of its inputs, as in the paper's partition-n-reduce. The part is chosen so
that the operator makes `n` elements fewer for `step * n` elements less of its input: it begins at `step * start`, and what
it lacks of the whole axis is what the output lacks. Where the operator pads its input, its results at the part's borders
would see padding in place of the neighbours' elements; these are computed as well, and cut off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from math import prod

from edgepart.planner.access.declare.aligned import combine
from edgepart.planner.access.declare.bound import BoundOperator, axis_names, is_floating
from edgepart.planner.access.declare.derived import Derived, Reads, WholeOperator, local_node
from edgepart.planner.access.declare.protocol import Addend, Axis, Local, Outputs, Reduction
from edgepart.planner.region import Interval, Region, Span, span, span_hull, span_size
from edgepart.planner.tdl.analysis import BoundDescription, BoundIndex, bind_description
from edgepart.planner.tdl.description import OperatorDescription

INNER = "inner"
"""The name of the reduced axis, as of matrix products."""


def described(bound: BoundOperator, descriptions: Sequence[OperatorDescription]) -> Derived:
    """Returns the access by the first description that fits, or a WholeOperator that says why none does."""
    faults = []
    for one in descriptions:
        found = bind_description(one, bound.inputs, bound.outputs, bound.operator.attributes)
        if isinstance(found, BoundDescription):
            return Described(bound, found)
        faults.append(found)
    return WholeOperator(bound, f"its description does not fit it: {'; '.join(faults)}")


class Described(Derived):
    """See the module's docstring."""

    def __init__(self, bound: BoundOperator, found: BoundDescription) -> None:
        self.bound = bound
        self._found = found
        self._plain = frozenset(name for name in found.extents if self._is_plain(name))
        self._before, self._after = self._polluted()
        self._parts: Mapping[str, Interval] = {}
        self.family = self._family()
        self._axes = (*self._kept_axes(), *self._reduced_axes())

    def axes(self) -> tuple[Axis, ...]:
        return self._axes

    def _kept_axes(self) -> Sequence[Axis]:
        outputs = self._found.outputs
        words = axis_names(len(outputs[0]))
        axes = []
        for index, name in enumerate(outputs[0]):
            if name in self._found.cut and self._found.extents[name] > 1:
                places = tuple(names.index(name) if name in names else None for names in outputs)
                extent = self._found.extents[name]
                axes.append(Axis(words[index], index, extent, places=places if len(places) > 1 else ()))
        return axes

    def _reduced_axes(self) -> Sequence[Axis]:
        dtype = self.bound.dtype(0)
        if dtype == "bool" or (not is_floating(dtype) and self.bound.opset < 12):
            return ()  # ONNX has no Max and Min of them.
        long = [one for one in self._found.reduced if self._found.extents[one.name] > 1]
        return [
            Axis(one.name if n else INNER, n, self._found.extents[one.name], reducer=one.reducer)
            for n, one in enumerate(long)
        ]

    def widen(self, outputs: Outputs) -> Outputs:
        ranges = self._ranges(outputs)
        for name in self._found.cut - self._plain:
            (hull,) = span_hull(ranges[name])
            start, stop = hull.start - self._before[name], hull.stop + self._after[name]
            ranges[name] = span((max(start, 0), min(stop, self._found.extents[name])))
        for name in self._only_padding(ranges):
            ranges[name] = span((0, self._found.extents[name]))
        return {
            index: Region(tuple(ranges[name] for name in self._found.outputs[index])) for index in outputs
        }

    def _ranges(self, outputs: Outputs) -> dict[str, Span]:
        """The part of each index that must run to make these regions."""
        wanted: dict[str, Span] = {}
        for index, region in outputs.items():
            for name, one in zip(self._found.outputs[index], region.spans, strict=True):
                if name in self._found.cut:
                    wanted[name] = span(*wanted.get(name, ()), *one)
        return {name: wanted.get(name) or span((0, extent)) for name, extent in self._found.extents.items()}

    def reads(self, computed: Outputs) -> Reads:
        ranges = self._ranges(computed) | {name: (part,) for name, part in self._parts.items()}
        found: list[Region | None] = [None] * len(self.bound.inputs)
        for read in self._found.reads:
            shape = self.bound.shape(read.input)
            spans = (self._part(one, ranges, extent) for one, extent in zip(read.axes, shape, strict=True))
            region, before = Region(tuple(spans)), found[read.input]
            found[read.input] = region if before is None else before.union_spans(region)
        whole = (self.bound.whole(index) for index in range(len(found)))
        return tuple(full if region is None else region for region, full in zip(found, whole, strict=True))

    def _only_padding(self, ranges: Mapping[str, Span]) -> set[str]:
        """The divided indices of which these parts would be made of padding alone, without an element of the input."""
        return {
            name
            for read in self._found.reads
            for one, extent in zip(read.axes, self.bound.shape(read.input), strict=True)
            if read.padded and one is not None and self._size(one, ranges, extent) < 1
            for name in self._found.cut & one.steps.keys()
        }

    def _size(self, one: BoundIndex, ranges: Mapping[str, Span], extent: int) -> int:
        """The length of `_part`, for an index that is not plain."""
        lacks = (
            abs(step) * (self._found.extents[name] - span_size(ranges[name]))
            for name, step in one.steps.items()
        )
        return extent - sum(lacks)

    def _part(self, one: BoundIndex | None, ranges: Mapping[str, Span], extent: int) -> Span:
        """The part of an input's axis on which the operator makes these parts of its indices."""
        if one is None:
            return span((0, extent))
        if one.plain in self._plain:
            return ranges[one.plain]
        start = sum(max(step, 0) * ranges[name][0].start for name, step in one.steps.items())
        return span((start, start + self._size(one, ranges, extent)))

    def nodes(self, computed: Outputs) -> Local:
        return (local_node(self.bound, computed),)

    def work(self, computed: Outputs) -> float:
        found = 0.0
        for index, region in computed.items():
            output = self._found.described.outputs[index]
            names = [one.name for one in output.reduced]
            runs = (self._parts[n].size if n in self._parts else self._found.extents[n] for n in names)
            found += region.size * output.operations * prod(runs)
        return found

    def reduction(self, axis: Axis) -> Reduction:
        """Returns a reduction with one addend of the output's shape, which the operator itself makes from a part of the
        reduced axis."""
        long = [one for one in self._found.reduced if self._found.extents[one.name] > 1]

        def part(of: Interval) -> Described:
            made = copy(self)
            made._parts = {long[axis.index].name: of}
            made._axes = tuple(one for one in self._axes if one.reducer is None)
            return made

        addend = Addend(self.bound.output, self.bound.dtype(0))
        return Reduction((addend,), part, lambda parts: combine(self.bound, axis, parts))

    def _is_plain(self, name: str) -> bool:
        """Whether an index is never changed or added to, and runs over whole axes, so that several intervals of it can be
        made at once."""
        return all(
            one.plain == name and extent == self._found.extents[name]
            for read in self._found.reads
            for one, extent in zip(read.axes, self.bound.shape(read.input), strict=True)
            if one is not None and name in one.steps
        )

    def _polluted(self) -> tuple[dict[str, int], dict[str, int]]:
        """The elements at the beginning and at the end of each index that would see padding where a part of the input has
        a border."""
        before, after = dict.fromkeys(self._found.extents, 0), dict.fromkeys(self._found.extents, 0)
        for read in self._found.reads if self._found.cut else ():
            for one, extent in zip(read.axes, self.bound.shape(read.input), strict=True):
                cut = [] if one is None else sorted(self._found.cut & one.steps.keys())
                if one is None or not cut or not read.padded:
                    continue
                ranges = {name: Interval(0, self._found.extents[name]) for name in one.steps}
                low, high = self._found.interval(one, ranges)
                for name in cut:
                    before[name] = max(before[name], -(low // one.steps[name]))
                    after[name] = max(after[name], -((extent - high) // one.steps[name]))
        return before, after

    def _family(self) -> str:
        first = self._found.described.outputs[0]
        sources = {read.input for read in self._found.reads}
        if first.reduced:
            return "gemm" if len(sources) > 1 and first.reduced[0].reducer == "sum" else "reduce"
        shape = self.bound.outputs[0]
        in_place = all(
            tuple("" if one is None else one.plain for one in read.axes) == self._found.outputs[0]
            for read in self._found.reads
            if self.bound.inputs[read.input] == shape
        )
        divided = all(
            name in self._found.cut or self._found.extents[name] == 1 for name in self._found.outputs[0]
        )
        return "elementwise" if in_place and divided else "other"
