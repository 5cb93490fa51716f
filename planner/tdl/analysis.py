"""Analysis of a description for one node (Tofu, section 4.2): symbolic intervals give the input regions that an output
region needs. Rules only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from edgepart.planner.region import Interval, Region, Span, span, span_hull
from edgepart.planner.tdl.affine import AffineIndex, AttributeInteger, bounds, single
from edgepart.planner.tdl.description import ElementRead, OperatorDescription, ReducedIndex
from edgepart.planner.tdl.partition import LEADING, find_strategies, is_alone

Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]
"""The shape of each input or output; None for one that is left out."""


@dataclass(frozen=True, slots=True)
class BoundIndex:
    """An index expression for the attributes of one node."""

    steps: Mapping[str, int]
    """What each index is multiplied with."""
    low: AffineIndex
    high: AffineIndex
    """The bounds of the interval that is read, by the bounds of the indices (affine.bounds)."""
    plain: str
    """The index, if it is alone and not changed; else ""."""


@dataclass(frozen=True, slots=True)
class BoundRead:
    """A read for the shapes and attributes of one node."""

    output: int
    input: int
    axes: tuple[BoundIndex | None, ...]
    """How each axis is read; None for a whole one."""
    padded: bool


@dataclass(frozen=True)
class BoundDescription:
    """A description, for the shapes and attributes of one node."""

    described: OperatorDescription
    inputs: tuple[Shape | None, ...]
    extents: Mapping[str, int]
    """The extent of each index of outputs and reductions."""
    outputs: tuple[tuple[str, ...], ...]
    """The index on each axis of each output; ":0", ":1" ... for leading ones."""
    reads: tuple[BoundRead, ...]
    integer: Mapping[AttributeInteger, int]
    cut: frozenset[str]
    """The indices of outputs along which the operator can be divided."""
    reduced: tuple[ReducedIndex, ...]
    """The indices of a reduction along which it can be divided."""

    def input_regions(self, outputs: Mapping[int, Region]) -> tuple[Region | None, ...]:
        """The elements of each input that are read for these regions of outputs, in the smallest product of spans; None
        for an input that is not read. These are the intervals of the symbolic analysis, with the padding left out."""
        found: list[Region | None] = [None] * len(self.inputs)
        for read in self.reads:
            shape = self.inputs[read.input]
            if read.output not in outputs or shape is None:
                continue
            named = zip(self.outputs[read.output], outputs[read.output].spans, strict=True)
            ranges = {name: span((0, extent)) for name, extent in self.extents.items()} | dict(named)
            spans = [self._span(one, ranges, extent) for one, extent in zip(read.axes, shape, strict=True)]
            region, before = Region(tuple(spans)), found[read.input]
            found[read.input] = region if before is None else before.union_spans(region)
        return tuple(found)

    def _span(self, one: BoundIndex | None, ranges: Mapping[str, Span], extent: int) -> Span:
        if one is None:
            return span((0, extent))
        if one.plain:
            return ranges[one.plain]
        if any(not ranges[name] for name in one.steps):
            return ()
        low, high = self.interval(one, {name: span_hull(ranges[name])[0] for name in one.steps})
        return span((max(low, 0), min(high, extent)))

    def interval(self, one: BoundIndex, ranges: Mapping[str, Interval]) -> tuple[int, int]:
        """The least index that is read, and one more than the greatest, where indices run over these ranges."""
        at = {f"{name}.start": ranges[name].start for name in one.steps}
        at |= {f"{name}.stop": ranges[name].stop for name in one.steps}
        return one.low.value(self.integer.__getitem__, at), one.high.value(self.integer.__getitem__, at)


def bind_description(
    described: OperatorDescription, inputs: Shapes, outputs: Shapes, attributes: Mapping[str, object]
) -> BoundDescription | str:
    """The description for one node, or the reason why it does not fit the node's shapes and attributes."""
    try:
        return _NodeBinding(described, tuple(inputs), tuple(outputs), attributes).bind()
    except _Misfit as fault:
        return str(fault)


class _Misfit(Exception):
    """The description and the node do not fit each other; the text says how."""


class _NodeBinding:
    """One description being bound to one node."""

    def __init__(
        self,
        described: OperatorDescription,
        inputs: tuple[Shape | None, ...],
        outputs: tuple[Shape | None, ...],
        attributes: Mapping[str, object],
    ) -> None:
        self._of = described
        self._inputs = inputs
        self._shapes = outputs
        self._extents: dict[str, int] = {}
        self._integer = {
            AttributeInteger(name, place): value
            for name, default in ((one.name, one.default) for one in described.attributes)
            for place, value in _integers(name, attributes.get(name, default))
        }

    def bind(self) -> BoundDescription:
        self._check_counts()
        names = tuple(self._name_axes(n, shape) for n, shape in enumerate(self._shapes))
        reads = tuple(
            self._read(n, read) for n, read in self._present_reads() if self._inputs[read.input] is not None
        )
        for output in self._of.outputs:
            for one in output.reduced:
                self._extents[one.name] = self._reduced_extent(one, reads)
        found = BoundDescription(
            self._of, self._inputs, self._extents, names, reads, self._integer, frozenset(), ()
        )
        self._check_ranges(found)
        ways = find_strategies(self._of)
        moved = {name for read in reads for one in read.axes if one is not None for name in one.steps}
        leading = [name for name in names[0] if name[0] == ":" and any(w.index == LEADING for w in ways)]
        cut = moved & {*leading, *(way.index for way in ways if way.reducer is None)}
        summed = {way.index for way in ways if way.reducer is not None}
        reduced = tuple(one for one in self._of.outputs[0].reduced if one.name in summed & moved)
        return BoundDescription(
            self._of, self._inputs, self._extents, names, reads, self._integer, frozenset(cut), reduced
        )

    def _check_counts(self) -> None:
        of = self._of
        given, made = len(self._inputs), len(self._shapes)
        if given > len(of.inputs) or made > len(of.outputs):
            raise _Misfit(
                f"the node has {given} inputs and {made} outputs, and {len(of.inputs)} and {len(of.outputs)} are described"
            )
        for n, one in enumerate(of.inputs):
            if not one.optional and (n >= given or self._inputs[n] is None):
                raise _Misfit(f"the node leaves out the input {one.name}, which is described as always there")

    def _present_reads(self) -> Iterator[tuple[int, ElementRead]]:
        for n, output in enumerate(self._of.outputs[: len(self._shapes)]):
            if self._shapes[n] is not None:
                yield from ((n, read) for read in output.reads if read.input < len(self._inputs))

    def _name_axes(self, number: int, shape: Shape | None) -> tuple[str, ...]:
        """The indices of an output's axes; notes their extents."""
        if shape is None:
            return ()
        output = self._of.outputs[number]
        before = len(shape) - len(output.indices)
        if before < 0 or (before and not output.leading):
            raise _Misfit(
                f"output {number} has {len(shape)} axes, and {len(output.indices)} indices are described"
            )
        names = (*(f":{axis}" for axis in range(before)), *output.indices)
        for name, extent in zip(names, shape, strict=True):
            if self._extents.setdefault(name, extent) != extent:
                raise _Misfit(
                    f"index {name} has {extent} values in output {number} and {self._extents[name]} before"
                )
        return names

    def _read(self, number: int, read: ElementRead) -> BoundRead:
        shape = self._inputs[read.input]
        assert shape is not None
        name, before = self._of.inputs[read.input].name, len(shape) - len(read.indices)
        if before < 0 or (before and not read.leading):
            raise _Misfit(f"{name} has {len(shape)} axes, and is read with {len(read.indices)} indices")
        own = self._shapes[number]
        assert own is not None
        leads = len(own) - len(self._of.outputs[number].indices)
        if before > leads:
            raise _Misfit(f"{name} has {before} leading axes, and output {number} has {leads}")
        axes: list[BoundIndex | None] = []
        for axis in range(before):
            # As in numpy, leading axes are aligned at their end, and one of extent 1 is read for all.
            lead = axis + leads - before
            axes.append(None if shape[axis] == 1 else self._index(single(f":{lead}")))
        axes += [None if index is None else self._index(index) for index in read.indices]
        return BoundRead(number, read.input, tuple(axes), read.padded)

    def _index(self, index: AffineIndex) -> BoundIndex:
        for term in index.terms:
            for integer in term.attributes:
                if integer not in self._integer:
                    raise _Misfit(f"the node has no integer in its attribute {integer}")
                if term.index and self._integer[integer] < 0:
                    raise _Misfit(
                        f"its attribute {integer} is {self._integer[integer]}, and is multiplied with an index"
                    )
        steps = {name: self._value(index.coefficient(name)) for name in sorted(index.indices())}
        plain = next((name for name in steps if is_alone(name, index)), "")
        return BoundIndex({name: step for name, step in steps.items() if step}, *bounds(index), plain)

    def _value(self, of: AffineIndex) -> int:
        return of.value(self._integer.__getitem__, {})

    def _reduced_extent(self, one: ReducedIndex, reads: Sequence[BoundRead]) -> int:
        if one.extent is not None:
            extent = self._value(self._index(one.extent).low) if one.extent.terms else 0
            if extent < 1:
                raise _Misfit(f"index {one.name} would have {extent} values")
            return extent
        found = set()
        for read in reads:
            for axis, shape in zip(read.axes, self._inputs[read.input] or (), strict=True):
                if axis is not None and axis.plain == one.name:
                    found.add(shape)
        if len(found) != 1:
            said = f"{len(found)} extents" if found else "no axis of its own"
            raise _Misfit(
                f"index {one.name} has {said}; give its extent: {one.reducer.capitalize()}(..., {one.name}=3)"
            )
        return found.pop()

    def _check_ranges(self, found: BoundDescription) -> None:
        """Raises _Misfit if an index can leave an input that is not padded."""
        for read in found.reads:
            name = self._of.inputs[read.input].name
            for axis, one in enumerate(read.axes):
                if one is None:
                    continue
                ranges = {index: Interval(0, self._extents[index]) for index in one.steps}
                low, high = found.interval(one, ranges)
                extent = (self._inputs[read.input] or ())[axis]
                if not (read.padded and not one.plain) and not 0 <= low < high <= extent:
                    raise _Misfit(
                        f"axis {axis} of {name} would be read from {low} to {high - 1}, and it has {extent} elements; "
                        f"if there is padding, read padded({name})"
                    )


def _integers(name: str, value: object) -> Iterator[tuple[int, int]]:
    """Yields the places and integers of an attribute: place -1 for one integer. Raises _Misfit for another type."""
    if value is None:
        return
    if isinstance(value, int):
        yield -1, value
        return
    if not isinstance(value, list | tuple) or not all(isinstance(one, int) for one in value):
        raise _Misfit(f"its attribute {name} is {value!r}, and indices depend on integers only")
    yield from enumerate(value)
