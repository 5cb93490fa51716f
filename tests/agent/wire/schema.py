"""Values of any annotated type, within its bounds: what the laws of agent/wire/bounds.py are tried with."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from edgepart.agent.wire.bounds import Many, Number, OneOf, Text, WholeNumber

ANY: SearchStrategy[Any] = st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3)
CHARACTERS = st.characters()  # those that no encoding takes (half of a pair) too
FEW = 3


def values(annotation: Any) -> SearchStrategy[Any]:
    """All that may be in a field of this type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return ANY
    if origin is Annotated:
        return bounded(arguments[0], arguments[1:])
    if is_dataclass(annotation) and isinstance(annotation, type):
        return records(annotation)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values, arguments))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return st.lists(values(arguments[0]), max_size=FEW).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=FEW)
    atoms: dict[Any, SearchStrategy[Any]] = {
        str: st.text(CHARACTERS, max_size=9),
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False),
        bool: st.booleans(),
        bytes: st.binary(max_size=9),
        type(None): st.none(),
    }
    return atoms[annotation]


def bounded(annotation: Any, bounds: tuple[Any, ...]) -> SearchStrategy[Any]:
    found = values(annotation)
    for bound in bounds:
        match bound:
            case WholeNumber(least, most):
                found = st.sampled_from([least, most]) | st.integers(least, most)
            case Number(least, most, above):
                found = st.floats(max(least, above), most, exclude_min=above >= least)
            case Text(most, least, ""):
                found = st.text(CHARACTERS, min_size=least, max_size=min(most, 9))
            case Text(most, least, pattern):
                found = st.from_regex(pattern, fullmatch=True).filter(
                    lambda text: not Text(most, least).fault(text)
                )
            case OneOf(choices):
                found = st.sampled_from(choices)
            case Many():
                continue  # few are drawn
    return found


def records(cls: type[Any]) -> SearchStrategy[Any]:
    """Those that the class itself takes."""
    hints = get_type_hints(cls, include_extras=True)
    drawn = st.fixed_dictionaries({f.name: values(hints[f.name]) for f in fields(cls)})

    def make(found: dict[str, Any]) -> Any:
        try:
            return cls(**found)
        except ValueError:
            return None

    return drawn.map(make).filter(lambda record: record is not None)
