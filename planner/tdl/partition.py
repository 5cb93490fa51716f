"""Partition: along which indices an operator can be divided, found from its description (Tofu, section 4). Rules only.

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

from edgepart.planner.tdl.affine import AffineIndex, constant, single
from edgepart.planner.tdl.description import (
    DescribedOutput,
    ElementRead,
    OperatorDescription,
    ReducedIndex,
)

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
