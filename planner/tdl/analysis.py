"""Analysis of descriptions (Tofu, section 4): which input regions an output region needs, by symbolic intervals, and along
which indices an operator can be divided. Rules only.

An operator is divided as the paper divides it, by **partition-n-reduce**: each device runs the same operator on a part of
the inputs. The results are pieces of the output (an index of the output was divided), or addends that a reducer combines
(an index of a reduction was). The operator itself counts from 0 on each part, and from this follows what can be divided:

- Every read of an input's axis has to move alike with the index, so that one part of the axis is right for all of them.
- The index must not be a number in a computation, nor go backwards, nor choose from an opaque result.
- An axis on which two indices of an output move is cut along neither; the author may say that one of them stays whole.
- The extent of the index has to follow from the inputs: an index that moves along no input is not divided.
- A reduction is only divided if nothing is done with its result, and if it neither reads padding nor has a fixed extent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from edgepart.planner.region import Interval, Region, Span, span, span_hull
from edgepart.planner.tdl.affine import AffineIndex, AttributeInteger, bounds, constant, single
from edgepart.planner.tdl.description import (
    DescribedOutput,
    ElementRead,
    OperatorDescription,
    ReducedIndex,
)

Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]
"""The shape of each input or output; None for one that is left out."""

LEADING = "leading"
"""Stands for the axes before those that a description names: `data[..., i]`."""


@dataclass(frozen=True, slots=True)
class PartitionStrategy:
    """A basic strategy that was found: a way to divide any operator of a description."""

    index: str
    """An index of an output or of a reduction; LEADING for all axes before the named ones."""
    reducer: str | None
    """How parts are combined: None joins them along the axis of the index (case 1 of the paper), else they are reduced
    (case 2)."""
    halo: bool
    """Whether parts overlap in what they read."""

    def __str__(self) -> str:
        joined = "pieces are joined" if self.reducer is None else f"parts are combined by {self.reducer}"
        return f"{self.index}: {joined}{', with a halo' if self.halo else ''}"


@lru_cache(maxsize=1024)
def find_strategies(described: OperatorDescription) -> tuple[PartitionStrategy, ...]:
    """The ways to divide the operator, whatever the shapes are."""
    first = described.outputs[0]
    found = []
    if first.leading:
        found.append(PartitionStrategy(LEADING, None, halo=False))
    reads = _reads_by_axis(described)
    for name in first.indices:
        if _can_be_cut(name, described, reads):
            found.append(PartitionStrategy(name, None, _has_halo(name, reads)))
    if len(described.outputs) == 1:
        for one in first.reduced:
            if _can_be_reduced(one, first, reads):
                found.append(PartitionStrategy(one.name, one.reducer, _has_halo(one.name, reads)))
    return tuple(found)


Reads = Mapping[tuple[int, int], Sequence[tuple[ElementRead, AffineIndex | None]]]
"""All reads of each axis of each input. Axes are counted from the end, as leading ones come first."""


def _reads_by_axis(described: OperatorDescription) -> Reads:
    found: dict[tuple[int, int], list[tuple[ElementRead, AffineIndex | None]]] = {}
    for read in (read for output in described.outputs for read in output.reads):
        for axis, index in enumerate(read.indices):
            found.setdefault((read.input, axis - len(read.indices)), []).append((read, index))
    return found


def _can_be_cut(name: str, described: OperatorDescription, reads: Reads) -> bool:
    """Whether an index of the outputs can be divided (case 1)."""
    if name in described.whole or any(name in output.counted for output in described.outputs):
        return False
    return _moves_alike(name, reads) and not any(
        _uncut(index, described) - {name} for _, index in _moved(name, reads)
    )


def _uncut(index: AffineIndex, described: OperatorDescription) -> frozenset[str]:
    """The indices of outputs in an expression that the author has not said to be whole."""
    own = {name for output in described.outputs for name in output.indices}
    return index.indices() & own - described.whole


def _can_be_reduced(one: ReducedIndex, output: DescribedOutput, reads: Reads) -> bool:
    """Whether an index of a reduction can be divided (case 2)."""
    if not one.outermost or one.extent is not None or one.name in output.counted:
        return False
    moved = list(_moved(one.name, reads))
    alone = [is_alone(one.name, index) for _, index in moved]
    in_padding = any(read.padded for (read, _), only in zip(moved, alone, strict=True) if not only)
    return any(alone) and not in_padding and _moves_alike(one.name, reads)


def _moved(name: str, reads: Reads) -> Iterator[tuple[ElementRead, AffineIndex]]:
    """Yields the reads that move with an index."""
    for found in reads.values():
        for read, index in found:
            if index is not None and name in index.indices():
                yield read, index


def _moves_alike(name: str, reads: Reads) -> bool:
    """Whether some axis of an input is read in order of the index, and all reads of each such axis move alike."""
    moves = False
    for found in reads.values():
        steps = {constant(0) if index is None else index.coefficient(name) for _, index in found}
        if steps == {constant(0)}:
            continue
        if len(steps) > 1 or next(iter(steps)).goes_down:
            return False
        moves = True
    return moves


def is_alone(name: str, index: AffineIndex) -> bool:
    """Whether an index expression is this index, and nothing else."""
    return index == single(name)


def _has_halo(name: str, reads: Reads) -> bool:
    return any(index.indices() != {name} or _offsets(name, reads) for _, index in _moved(name, reads))


def _offsets(name: str, reads: Reads) -> bool:
    """Whether reads of one axis differ by an offset, as in `a[i] + a[i + 1]`."""
    return any(
        len({index.coefficient("") for _, index in found if index is not None and name in index.indices()})
        > 1
        for found in reads.values()
    )


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
