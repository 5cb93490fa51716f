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
from dataclasses import replace
from typing import Any

from edgepart.planner.errors import UsageError
from edgepart.planner.tdl.description import (
    DescribedAttribute,
    DescribedInput,
    DescribedOutput,
    OperatorDescription,
    ReducedIndex,
    broken_description_rules,
)
from edgepart.planner.tdl.values import (
    AttributeValue,
    ElementValue,
    InputTensor,
    affine_of,
    combined,
    index_named,
)


def padded(tensor: InputTensor) -> InputTensor:
    """The tensor with padding around it, of which nothing is read: `padded(data)[b, c, x + dx - pads[0]]`."""
    return tensor.with_padding()


def Opaque(*elements: Any) -> ElementValue:
    """Any function of these elements. `:` reads a whole axis, which is then never cut: `Opaque(matrix[b, :, :])[i, j]` is
    an element of what the function makes of a whole matrix."""
    allowed = (replace(one, open=False) if isinstance(one, ElementValue) else one for one in elements)
    return replace(combined(allowed), opaque=True)


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
    made = combined((of(*map(index_named, names)),), cost=0)
    return DescribedOutput(names, made.reads, made.reduced, made.counted, max(1, made.operations))


def _reduce(reducer: str, of: Callable[..., Any], extents: dict[str, Any]) -> ElementValue:
    names = _index_names(of)
    if strange := sorted(extents.keys() - set(names)):
        raise UsageError(f"it has no index {', '.join(strange)}; its indices are {', '.join(names)}")
    if not names:
        raise UsageError(f"{reducer.capitalize()} needs an index to run over")
    inner = combined((of(*map(index_named, names)),), cost=1, keeps=reducer)
    own = (
        ReducedIndex(name, reducer, True, affine_of(extents[name]) if name in extents else None)
        for name in names
    )
    return replace(inner, reduced=(*own, *inner.reduced))


def _index_names(of: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(of).parameters.values()
    if any(one.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for one in parameters):
        raise UsageError("the parameters of a lambda are indices, each with a name of its own")
    return tuple(one.name for one in parameters)
