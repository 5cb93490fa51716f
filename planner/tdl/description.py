"""What is known of a described operator: the elements that it reads, its reductions, and the rules that every description
keeps. Facts only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edgepart.planner.tdl.affine import AffineIndex

REDUCERS = ("sum", "max", "min", "prod")
"""What a reduction may do with its elements. Each is commutative and associative."""
MOST_AXES = 16
MOST_READS = 256


@dataclass(frozen=True, slots=True)
class DescribedInput:
    """An input of the operator, by its place."""

    name: str
    optional: bool = False
    """Whether a node may leave it out."""


@dataclass(frozen=True, slots=True)
class DescribedAttribute:
    """An attribute of the operator on which its indices depend."""

    name: str
    default: int | tuple[int, ...] | None
    """What a node has that does not give it; None if every node gives it."""


@dataclass(frozen=True, slots=True)
class ElementRead:
    """Elements of one input that one element of an output needs."""

    input: int
    indices: tuple[AffineIndex | None, ...]
    """The index on each axis; None where all of the axis is read."""
    leading: bool = False
    """Whether axes come before these, and run along the leading axes of the output: `data[..., i]`."""
    padded: bool = False
    """Whether indices may be outside the input: there is padding, of which nothing is read."""


@dataclass(frozen=True, slots=True)
class ReducedIndex:
    """An index that a reduction runs over."""

    name: str
    reducer: str
    """One of REDUCERS."""
    outermost: bool
    """Whether nothing is done with the result of the reduction, so that results of parts can be combined."""
    extent: AffineIndex | None = None
    """How far it runs; None if it runs over an axis of an input."""


@dataclass(frozen=True, slots=True)
class DescribedOutput:
    """An output of the operator, by its place."""

    indices: tuple[str, ...]
    """The name of the index on each axis, of the last axes if there are leading ones."""
    reads: tuple[ElementRead, ...]
    reduced: tuple[ReducedIndex, ...] = ()
    counted: frozenset[str] = frozenset()
    """Indices that count as numbers, or choose an element of an opaque result. What has such an index is not made in
    parts, as each part would count from 0."""
    operations: int = 1
    """Arithmetic operations for each combination of all indices."""

    @property
    def leading(self) -> bool:
        """Whether the output has axes before those that are named."""
        return any(read.leading for read in self.reads)


@dataclass(frozen=True, slots=True)
class OperatorDescription:
    """The description of one operator, for inputs of these ranks."""

    domain: str
    op_type: str
    inputs: tuple[DescribedInput, ...]
    outputs: tuple[DescribedOutput, ...]
    attributes: tuple[DescribedAttribute, ...] = ()
    whole: frozenset[str] = frozenset()
    """Indices along which the author says that the operator is not to be divided."""

    @property
    def key(self) -> tuple[str, str]:
        """Domain and type, with "" for ai.onnx."""
        return ("" if self.domain == "ai.onnx" else self.domain, self.op_type)

    @property
    def form(self) -> tuple[tuple[int, tuple[int, bool]], ...]:
        """The axes that it names of each input. Two descriptions of an operator differ in it."""
        return tuple(
            sorted({(r.input, (len(r.indices), r.leading)) for out in self.outputs for r in out.reads})
        )


def broken_description_rules(described: OperatorDescription) -> Iterator[str]:
    """Yields what is wrong with a description, whoever wrote it; nothing for a good one."""
    names = [
        *(one.name for one in described.inputs),
        *(one.name for one in described.attributes),
    ]
    if not described.op_type:
        yield "the operator has no type"
    if not described.outputs:
        yield "it describes no output"
    if len(set(names)) < len(names):
        yield f"two of its inputs and attributes share a name: {', '.join(names)}"
    for number, output in enumerate(described.outputs):
        for fault in _faults_of(output, described):
            yield f"output {number}: {fault}"
    ranks: dict[int, tuple[int, bool]] = {}
    for read in (read for output in described.outputs for read in output.reads):
        form = (len(read.indices), read.leading)
        if read.input < len(described.inputs) and ranks.setdefault(read.input, form) != form:
            name = described.inputs[read.input].name
            yield f"{name} is read with {ranks[read.input][0]} indices and with {form[0]}; it has one rank"
    known = {name for output in described.outputs for name in output.indices}
    summed = {one.name for output in described.outputs for one in output.reduced}
    if both := sorted(known & summed):
        yield f"{', '.join(both)} is an index of an output and of a reduction; give each its own name"
    if strange := sorted(described.whole - known):
        yield f"no output has an index {', '.join(strange)}, of which it says that it stays whole"


def _faults_of(output: DescribedOutput, described: OperatorDescription) -> Iterator[str]:
    if output.operations < 1:
        yield f"it takes {output.operations} operations for an element"
    if len(output.indices) > MOST_AXES or len(output.reads) > MOST_READS:
        yield f"it has more than {MOST_AXES} axes, or reads more than {MOST_READS} elements"
    reduced = [one.name for one in output.reduced]
    names = (*output.indices, *reduced)
    for same in (output.indices, reduced):
        if len(set(same)) < len(same):
            yield f"two indices share a name: {', '.join(same)}"
    if not all(name.isidentifier() for name in names):
        yield f"an index has no name: {', '.join(map(repr, names))}"
    if strange := sorted(output.counted - set(names)):
        yield f"no index is called {', '.join(strange)}"
    attributes = {one.name for one in described.attributes}
    for one in output.reduced:
        if one.reducer not in REDUCERS:
            yield f"{one.reducer!r} is no reducer; there are {', '.join(REDUCERS)}"
        if one.extent is not None and one.extent.indices():
            yield f"the extent of {one.name} is {one.extent}, and may not depend on an index"
    for read in output.reads:
        if not 0 <= read.input < len(described.inputs):
            yield f"it reads input {read.input}, and there are {len(described.inputs)}"
        if len(read.indices) > MOST_AXES:
            yield f"it reads a tensor of more than {MOST_AXES} axes"
    used = [index for read in output.reads for index in read.indices if index is not None]
    used += [one.extent for one in output.reduced if one.extent is not None]
    for index in used:
        if strange := sorted(index.indices() - set(names)):
            yield (
                f"unknown index {', '.join(strange)} in {index}; its indices are {', '.join(names) or 'none'}"
            )
        for name in {integer.name for term in index.terms for integer in term.attributes} - attributes:
            yield f"unknown attribute {name} in {index}"
