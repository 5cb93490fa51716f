"""Einsum: each letter of the equation that the result keeps is an axis that can be cut; each other letter is summed.
Rules only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads, Inner
from edgepart.planner.access.declare.bound import BoundOperator, Shape
from edgepart.planner.access.declare.derived import Derived, WholeOperator
from edgepart.planner.access.declare.protocol import Axis

Labels = tuple[str, ...]
"""One label for each axis: a letter, or "...2" for the axis of an ellipsis that has two more axes of the
ellipsis after it. Ellipses of different ranks therefore broadcast as in numpy."""


@dataclass(frozen=True, slots=True)
class Equation:
    """An equation with its ellipses written out."""

    terms: tuple[Labels, ...]
    result: Labels

    @property
    def summed(self) -> Labels:
        """The labels that the result lacks, in the order of the equation."""
        return tuple(dict.fromkeys(label for label in chain(*self.terms) if label not in self.result))


def equation(text: str, ranks: Sequence[int]) -> Equation | None:
    """Parses `text` for operands of `ranks`. Returns None if the operands do not fit, or if the result cannot
    be determined.

    >>> equation("...ij, ...jk", (3, 2)).result
    ('...0', 'i', 'k')
    """
    left, arrow, right = text.replace(" ", "").partition("->")
    written = left.split(",")
    if len(written) != len(ranks):
        return None
    dots = [rank - len(term.replace("...", "")) for term, rank in zip(written, ranks, strict=True)]
    if any(count < 0 or (count and "..." not in term) for term, count in zip(written, dots, strict=True)):
        return None
    widest = max(dots)
    if not arrow:
        once = Counter(left.replace("...", "").replace(",", ""))
        right = "..." * ("..." in left) + "".join(sorted(one for one, count in once.items() if count == 1))
    if widest and "..." not in right:
        return None
    terms = tuple(_labels(term, count) for term, count in zip(written, dots, strict=True))
    result = _labels(right, widest)
    if len(set(result)) < len(result) or not set(result) <= set(chain(*terms)):
        return None
    return Equation(terms, result)


def _labels(term: str, count: int) -> Labels:
    before, _, after = term.partition("...")
    return (*before, *(f"...{n}" for n in reversed(range(count))), *after)


def einsum(bound: BoundOperator) -> Derived:
    shapes = [bound.shape(index) for index in range(len(bound.inputs))]
    found = equation(bound.text("equation", ""), [len(shape) for shape in shapes])
    if found is None or len(found.result) != len(bound.output):
        return WholeOperator(bound, "its equation does not fit the ranks of its inputs")
    extents = _extents(found, shapes)
    names = {label: _name(label, found) for label in found.summed}

    def read(label: str, extent: int) -> Along | Inner | None:
        if extent == 1:  # Broadcast, or nothing to cut.
            return None
        return Inner(names[label]) if label in names else Along(found.result.index(label))

    reads: list[AxisReads] = [
        [read(label, extent) for label, extent in zip(labels, shape, strict=True)]
        for labels, shape in zip(found.terms, shapes, strict=True)
    ]
    summed = tuple(
        Axis(name, 0, extents[label], reducer="sum") for label, name in names.items() if extents[label] > 1
    )
    work = _multiplications(found, extents) / prod(bound.output)
    return Aligned(bound, reads, family=_family(found), work=work, reduced=summed)


def _name(label: str, found: Equation) -> str:
    """Returns the name of a summed axis: "inner" as in MatMul, unless there are several."""
    return "inner" if len(found.summed) == 1 else f"inner_{label}"


def _extents(found: Equation, shapes: Sequence[Shape]) -> dict[str, int]:
    extents: dict[str, int] = {}
    for label, extent in zip(chain(*found.terms), chain(*shapes), strict=True):
        extents[label] = max(extents.get(label, 1), extent)
    return extents


def _multiplications(found: Equation, extents: dict[str, int]) -> float:
    """Returns the FLOPs of the whole operator if operands are multiplied from left to right, and each label
    is summed as soon as no later operand has the label."""
    total, held = 0.0, frozenset(found.terms[0])
    if len(found.terms) == 1:
        return float(prod(extents[label] for label in held)) if found.summed else 0.0
    for n, term in enumerate(found.terms[1:], 1):
        together = held | set(term)
        total += 2.0 * prod(extents[label] for label in together)
        held = together & frozenset(chain(found.result, *found.terms[n + 1 :]))
    return total


def _family(found: Equation) -> str:
    if len(found.terms) > 1:
        return "gemm"
    return "reduce" if found.summed else "move"


DECLARATIONS = {"Einsum": einsum}
