"""The language in which users describe operators. A description is a Python function that is called once, with stand-ins
for tensors and indices that write down what is done with them. Rules only.

    @operator("my.domain", "Conv1D")
    def conv1d(data, filters, *, stride=1):
        return lambda b, co, x: Sum(lambda ci, dx: data[b, ci, x * stride + dx] * filters[ci, co, dx])

The function's parameters are the operator's inputs by their places (`=None` for one that may be left out), and its
keyword-only parameters the attributes on which indices depend. It returns a function of an output's indices, or a tuple of
such functions.
"""

from __future__ import annotations

import inspect
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
from edgepart.planner.tdl.description import (
    DescribedAttribute,
    DescribedInput,
    DescribedOutput,
    ElementRead,
    OperatorDescription,
    ReducedIndex,
    broken_description_rules,
)

_DECIDES = "a description cannot compare or decide: it is read once, for all elements and all shapes"


class IndexValue:
    """An index, an attribute, or an affine expression of them."""

    def __init__(self, affine: AffineIndex) -> None:
        self._affine = affine

    @property
    def affine(self) -> AffineIndex:
        return self._affine

    def __add__(self, other: Any) -> Any:
        return _both(self, other, lambda one, two: add(one, two))

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
        return _combined((self, other))

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _with
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _with

    def __neg__(self) -> ElementValue:
        return _combined((self,))

    def __getitem__(self, key: Any) -> ElementValue:
        if not self.opaque:
            raise UsageError("an element has no elements; only the result of an Opaque function has")
        used = [_affine(one).indices() for one in _as_tuple(key)]
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
            return _affine(one)
        except UsageError as error:
            raise UsageError(f"{self.name}: {error}") from None

    def with_padding(self) -> InputTensor:
        return InputTensor(self.number, self.name, padded=True)


def padded(tensor: InputTensor) -> InputTensor:
    """The tensor with padding around it, of which nothing is read: `padded(data)[b, c, x + dx - pads[0]]`."""
    return tensor.with_padding()


def Opaque(*elements: Any) -> ElementValue:
    """Any function of these elements. `:` reads a whole axis, which is then never cut: `Opaque(matrix[b, :, :])[i, j]` is
    an element of what the function makes of a whole matrix."""
    allowed = (replace(one, open=False) if isinstance(one, ElementValue) else one for one in elements)
    return replace(_combined(allowed), opaque=True)


def Sum(of: Callable[..., Any], **extents: Any) -> ElementValue:
    """The sum of `of` over its indices. An index that alone chooses along some axis runs over that axis; the extent of
    another one is given by its name: `Sum(lambda dx: data[x + dx], dx=3)`."""
    return _reduce("sum", of, extents)


def Max(of: Callable[..., Any], **extents: Any) -> ElementValue:
    """The greatest of `of` over its indices, as `Sum` otherwise."""
    return _reduce("max", of, extents)


def Min(of: Callable[..., Any], **extents: Any) -> ElementValue:
    """The least of `of` over its indices, as `Sum` otherwise."""
    return _reduce("min", of, extents)


def Prod(of: Callable[..., Any], **extents: Any) -> ElementValue:
    """The product of `of` over its indices, as `Sum` otherwise."""
    return _reduce("prod", of, extents)


def operator(
    domain: str, op_type: str, *, whole: Iterable[str] = ()
) -> Callable[[Callable[..., Any]], OperatorDescription]:
    """Describes the operator `op_type` of `domain`, or a model's own function of that name. `whole` names indices along
    which it is not to be divided, for what elements alone do not tell.

    The function becomes an OperatorDescription. Raises UsageError, with the place, if it is no description."""

    def describe(function: Callable[..., Any]) -> OperatorDescription:
        code = function.__code__
        try:
            described = _describe(function, domain, op_type, frozenset(whole))
            faults = list(broken_description_rules(described))
        except UsageError as error:
            faults = [str(error)]
        if faults:
            where = f"{code.co_filename}:{code.co_firstlineno}: {function.__name__}"
            raise UsageError(f"{where} does not describe {op_type}: {'; '.join(faults)}")
        return described

    return describe


def _describe(
    function: Callable[..., Any], domain: str, op_type: str, whole: frozenset[str]
) -> OperatorDescription:
    inputs: list[DescribedInput] = []
    attributes: list[DescribedAttribute] = []
    named: dict[str, AttributeValue] = {}
    for name, one in inspect.signature(function).parameters.items():
        if one.kind is inspect.Parameter.KEYWORD_ONLY:
            attributes.append(DescribedAttribute(name, _default(name, one.default)))
            named[name] = AttributeValue(name)
        elif one.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise UsageError(f"{one} has no number; name each input and each attribute")
        else:
            inputs.append(DescribedInput(name, one.default is None))
    made = function(*(InputTensor(n, one.name) for n, one in enumerate(inputs)), **named)
    outputs = tuple(_output(one) for one in (made if isinstance(made, tuple) else (made,)))
    return OperatorDescription(domain, op_type, tuple(inputs), outputs, tuple(attributes), whole)


def _default(name: str, given: Any) -> int | tuple[int, ...] | None:
    """Raises UsageError for a default that is no integer or tuple of integers."""
    if given is inspect.Parameter.empty:
        return None
    if isinstance(given, int):
        return int(given)
    if isinstance(given, tuple | list) and all(isinstance(one, int) for one in given):
        return tuple(given)
    raise UsageError(f"{name}={given!r}: indices depend on attributes that are integers or lists of them")


def _output(of: Any) -> DescribedOutput:
    if not callable(of):
        raise UsageError(f"it returns {of!r}, and not a function of the indices of an output")
    names = _index_names(of)
    made = _combined((of(*map(_named, names)),), cost=0)
    return DescribedOutput(names, made.reads, made.reduced, made.counted, max(1, made.operations))


def _reduce(reducer: str, of: Callable[..., Any], extents: dict[str, Any]) -> ElementValue:
    names = _index_names(of)
    if strange := sorted(extents.keys() - set(names)):
        raise UsageError(f"it has no index {', '.join(strange)}; its indices are {', '.join(names)}")
    if not names:
        raise UsageError(f"{reducer.capitalize()} needs an index to run over")
    inner = _combined((of(*map(_named, names)),), cost=1, keeps=reducer)
    own = (
        ReducedIndex(name, reducer, True, _affine(extents[name]) if name in extents else None)
        for name in names
    )
    return replace(inner, reduced=(*own, *inner.reduced))


def _combined(values: Iterable[Any], cost: int = 1, keeps: str | None = None) -> ElementValue:
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
        return _combined((one, two))
    return IndexValue(do(_affine(one), _affine(two)))


def _affine(one: Any) -> AffineIndex:
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


def _index_names(of: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(of).parameters.values()
    if any(one.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for one in parameters):
        raise UsageError("the parameters of a lambda are indices, each with a name of its own")
    return tuple(one.name for one in parameters)


def _named(name: str) -> IndexValue:
    return IndexValue(single(name))


def _of_attribute(integer: AttributeInteger) -> AffineIndex:
    return normal([AffineTerm(1, "", (integer,))])


def _as_tuple(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _is_all(one: Any) -> bool:
    return isinstance(one, slice) and one.start is one.stop is one.step is None
