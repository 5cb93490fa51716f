"""Stand-ins with which a description is read: indices, tensors and elements that write down what is done with them. Rules
only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from edgepart.planner.errors import UsageError
from edgepart.planner.tdl.affine import (
    AffineIndex,
    AffineTerm,
    AttributeInteger,
    add,
    constant,
    multiply,
    normal,
    single,
)
from edgepart.planner.tdl.description import ElementRead, ReducedIndex

_DECIDES = "a description cannot compare or decide: it is read once, for all elements and all shapes"


class IndexValue:
    """An index, an attribute, or an affine expression of them."""

    def __init__(self, affine: AffineIndex) -> None:
        self.affine = affine

    def __add__(self, other: Any) -> Any:
        return _both(self, other, add)

    def __sub__(self, other: Any) -> Any:
        return _both(self, other, lambda one, two: add(one, two, -1))

    def __mul__(self, other: Any) -> Any:
        return _both(self, other, multiply)

    def __rsub__(self, other: Any) -> Any:
        return _both(other, self, lambda one, two: add(one, two, -1))

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> IndexValue:
        return IndexValue(add(constant(0), self.affine, -1))

    def _not_affine(self, *_: Any) -> NoReturn:
        raise UsageError(
            f"only +, - and * make an affine index, and {self.affine} is divided, or used in another way; "
            "read the whole axis in an Opaque function instead"
        )

    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = (
        _not_affine
    )
    __index__ = __int__ = __float__ = _not_affine

    def _decide(self, *_: Any) -> NoReturn:
        raise UsageError(_DECIDES)

    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _decide
    __eq__ = __ne__ = _decide


class AttributeValue(IndexValue):
    """An attribute: by itself one integer, or with a number in brackets one of a list."""

    def __init__(self, name: str) -> None:
        super().__init__(_of_attribute(AttributeInteger(name)))
        self._name = name

    def __getitem__(self, place: int) -> IndexValue:
        if not isinstance(place, int) or place < 0:
            raise UsageError(f"{self._name}[{place!r}]: the place in an attribute is a number from 0 on")
        return IndexValue(_of_attribute(AttributeInteger(self._name, place)))

    __iter__ = None


@dataclass(frozen=True, eq=False)
class ElementValue:
    """A value that is computed from elements: the right side of a description."""

    reads: tuple[ElementRead, ...] = ()
    reduced: tuple[ReducedIndex, ...] = ()
    counted: frozenset[str] = frozenset()
    operations: int = 0
    open: bool = False
    """Whether it is read with `:`, as only an opaque function may."""
    opaque: bool = False
    """Whether it is the result of an opaque function, of which an element may be chosen."""

    def _with(self, other: Any) -> ElementValue:
        return combined((self, other))

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _with
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _with

    def __neg__(self) -> ElementValue:
        return combined((self,))

    def __getitem__(self, key: Any) -> ElementValue:
        if not self.opaque:
            raise UsageError("an element has no elements; only the result of an Opaque function has")
        used = [affine_of(one).indices() for one in _as_tuple(key)]
        return replace(self, counted=self.counted.union(*used), opaque=False)

    def _decide(self, *_: Any) -> NoReturn:
        raise UsageError(f"{_DECIDES}; what depends on a comparison is an Opaque function of its elements")

    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _decide
    __eq__ = __ne__ = _decide


class InputTensor:
    """An input of the operator, of which elements are read."""

    __iter__ = None

    def __init__(self, number: int, name: str, *, padded: bool = False) -> None:
        self.number = number
        self.name = name
        self._padded = padded

    def __getitem__(self, key: Any) -> ElementValue:
        indices = _as_tuple(key)
        leading = bool(indices) and indices[0] is Ellipsis
        indices = indices[1:] if leading else indices
        found = [None if _is_all(one) else self._index(one) for one in indices]
        return ElementValue(
            (ElementRead(self.number, tuple(found), leading, self._padded),), open=None in found
        )

    def _index(self, one: Any) -> AffineIndex:
        if one is Ellipsis or isinstance(one, slice):
            raise UsageError(
                f"{self.name}: `...` comes first, and of a whole axis `:` is read, without bounds"
            )
        try:
            return affine_of(one)
        except UsageError as error:
            raise UsageError(f"{self.name}: {error}") from None

    def with_padding(self) -> InputTensor:
        return InputTensor(self.number, self.name, padded=True)


def combined(values: Iterable[Any], cost: int = 1, keeps: str | None = None) -> ElementValue:
    """A value that depends on all of these. Reductions in it are no longer outermost, unless it is one value, alone at the
    top (`cost` 0) or in a reduction that does the same (`keeps`)."""
    reads: list[ElementRead] = []
    reduced: list[ReducedIndex] = []
    counted: set[str] = set()
    operations = cost
    for value in values:
        if isinstance(value, InputTensor):
            raise UsageError(f"{value.name} is a tensor; choose an element of it, such as {value.name}[i]")
        if not isinstance(value, ElementValue):
            if value is None or isinstance(value, str):
                raise UsageError(f"{value!r} is no value that is computed from elements")
            counted |= value.affine.indices() if isinstance(value, IndexValue) else set()
            continue
        if value.open:
            raise UsageError("`:` reads a whole axis, which only an Opaque function may")
        reads += value.reads
        for one in value.reduced:
            stays = cost == 0 or one.reducer == keeps
            reduced.append(replace(one, outermost=one.outermost and stays))
        counted |= value.counted
        operations += value.operations
    return ElementValue(tuple(dict.fromkeys(reads)), tuple(reduced), frozenset(counted), operations)


def _both(one: Any, two: Any, do: Callable[[AffineIndex, AffineIndex], AffineIndex]) -> Any:
    """The result of arithmetic between indices, or between an index and elements."""
    if isinstance(one, ElementValue) or isinstance(two, ElementValue):
        return combined((one, two))
    return IndexValue(do(affine_of(one), affine_of(two)))


def affine_of(one: Any) -> AffineIndex:
    if isinstance(one, IndexValue):
        return one.affine
    if isinstance(one, int):
        return constant(one)
    if isinstance(one, ElementValue):
        raise UsageError(
            "an element cannot be an index, as its value is known only at run time; "
            "read the whole axis in an Opaque function instead"
        )
    raise UsageError(f"{one!r} is no index; an index is made of the function's parameters and whole numbers")


def _of_attribute(integer: AttributeInteger) -> AffineIndex:
    return normal([AffineTerm(1, "", (integer,))])


def _as_tuple(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _is_all(one: Any) -> bool:
    return isinstance(one, slice) and one.start is one.stop is one.step is None


def index_named(name: str) -> IndexValue:
    return IndexValue(single(name))
