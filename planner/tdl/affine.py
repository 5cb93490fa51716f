"""Affine index expressions such as `x * strides[0] + dx - pads[0]`: a sum of terms, each with at most one index. Facts,
and their arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from edgepart.planner.errors import UsageError


@dataclass(frozen=True, slots=True, order=True)
class AttributeInteger:
    """An integer that each node of the operator has in an attribute."""

    name: str
    place: int = -1
    """The place in a list of integers; -1 if the attribute is one integer."""

    def __str__(self) -> str:
        return self.name if self.place < 0 else f"{self.name}[{self.place}]"


@dataclass(frozen=True, slots=True)
class AffineTerm:
    """A product: coefficient, attributes, and perhaps an index."""

    coefficient: int
    index: str = ""
    """The name of the index; "" for a constant term."""
    attributes: tuple[AttributeInteger, ...] = ()

    def __str__(self) -> str:
        factors = [text for text in (self.index, *map(str, self.attributes)) if text]
        if not factors or abs(self.coefficient) != 1:
            factors.append(str(abs(self.coefficient)))
        return "*".join(factors)


@dataclass(frozen=True, slots=True)
class AffineIndex:
    """A sum of terms in normal form: sorted, no two that could be added, none of coefficient 0."""

    terms: tuple[AffineTerm, ...] = ()

    def indices(self) -> frozenset[str]:
        return frozenset(term.index for term in self.terms if term.index)

    def coefficient(self, index: str) -> AffineIndex:
        """What an index is multiplied with; the constant terms for ""."""
        kept = [term for term in self.terms if term.index == index]
        return normal(AffineTerm(term.coefficient, "", term.attributes) for term in kept)

    @property
    def goes_down(self) -> bool:
        """Whether it may be negative where all indices and attributes are at least 0."""
        return any(term.coefficient < 0 for term in self.terms)

    def value(self, integer: Callable[[AttributeInteger], int], at: Mapping[str, int]) -> int:
        """Its value for these attributes and indices."""
        return sum(
            term.coefficient * (at[term.index] if term.index else 1) * prod(map(integer, term.attributes))
            for term in self.terms
        )

    def __str__(self) -> str:
        text = "".join(f" {'-' if term.coefficient < 0 else '+'} {term}" for term in self.terms)
        return "0" if not text else text[3:] if text.startswith(" + ") else f"-{text[3:]}"


def constant(value: int) -> AffineIndex:
    return normal([AffineTerm(value)])


def single(index: str) -> AffineIndex:
    return normal([AffineTerm(1, index)])


def normal(terms: Iterable[AffineTerm]) -> AffineIndex:
    """The sum of the terms.

    >>> str(normal([AffineTerm(2, "x"), AffineTerm(-1), AffineTerm(1, "x")]))
    'x*3 - 1'
    """
    found: dict[tuple[bool, str, tuple[AttributeInteger, ...]], int] = {}
    for term in terms:
        key = (not term.index, term.index, tuple(sorted(term.attributes)))
        found[key] = found.get(key, 0) + term.coefficient
    return AffineIndex(
        tuple(AffineTerm(c, index, attributes) for (_, index, attributes), c in sorted(found.items()) if c)
    )


def add(one: AffineIndex, two: AffineIndex, times: int = 1) -> AffineIndex:
    """`one + times * two`."""
    more = (AffineTerm(term.coefficient * times, term.index, term.attributes) for term in two.terms)
    return normal([*one.terms, *more])


def multiply(one: AffineIndex, two: AffineIndex) -> AffineIndex:
    """Raises UsageError if an index would be multiplied with an index."""
    if one.indices() and two.indices():
        raise UsageError(
            f"({one}) * ({two}) is not affine: an index may be multiplied with numbers and attributes only"
        )
    return normal(
        AffineTerm(a.coefficient * b.coefficient, a.index or b.index, (*a.attributes, *b.attributes))
        for a in one.terms
        for b in two.terms
    )


def bounds(of: AffineIndex) -> tuple[AffineIndex, AffineIndex]:
    """The symbolic interval of an index expression (Tofu, section 4.2): its least value, and one more than its greatest,
    as affine expressions of `i.start` and `i.stop` for each of its indices `i`. Attributes count as at least 0.

    >>> [str(bound) for bound in bounds(normal([AffineTerm(2, "x"), AffineTerm(1, "dx"), AffineTerm(-1)]))]
    ['dx.start + x.start*2 - 1', 'dx.stop + x.stop*2 - 3']
    """
    low, high = [AffineTerm(0)], [AffineTerm(1)]
    for term in of.terms:
        if not term.index:
            low.append(term)
            high.append(term)
            continue
        first = AffineTerm(term.coefficient, f"{term.index}.start", term.attributes)
        last = (
            AffineTerm(term.coefficient, f"{term.index}.stop", term.attributes),
            AffineTerm(-term.coefficient, "", term.attributes),
        )
        low.extend((first,) if term.coefficient > 0 else last)
        high.extend(last if term.coefficient > 0 else (first,))
    return normal(low), normal(high)
