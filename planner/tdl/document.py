"""Descriptions as JSON, which is how they travel in a model's file. What is read may be anybody's: whatever the text is,
the result is descriptions that keep all rules, or an error. Rules only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from edgepart.planner.errors import ModelError
from edgepart.planner.json_text import parse_json
from edgepart.planner.tdl.affine import AffineIndex, AffineTerm, AttributeInteger, normal
from edgepart.planner.tdl.description import (
    DescribedAttribute,
    DescribedInput,
    DescribedOutput,
    ElementRead,
    OperatorDescription,
    ReducedIndex,
    broken_description_rules,
)

METADATA_KEY = "edgepart.operators"
"""The key of a model's metadata under which its file has descriptions."""

MOST_TEXT = 1 << 20
"""Characters of a text. It is far more than a model's own operators need."""
MOST_INTEGER = 1 << 31
MOST_OF_EACH = 256
"""Entries of each list."""

T = TypeVar("T")


def write_descriptions(descriptions: Iterable[OperatorDescription]) -> str:
    """The text that `read_descriptions` reads."""
    return json.dumps([_write(one) for one in descriptions], separators=(",", ":"), sort_keys=True)


def read_descriptions(text: str) -> tuple[OperatorDescription, ...]:
    """The descriptions in a text of a model's file. Raises ModelError, which names the place, if it is not as
    `write_descriptions` writes it, or if a description breaks a rule."""
    try:
        if len(text) > MOST_TEXT:
            raise ValueError(f"it has {len(text)} characters, more than {MOST_TEXT}")
        found = _list(parse_json(text), _read)
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"the model's descriptions of operators ({METADATA_KEY}) cannot be used: {error}"
        ) from error
    for one in found:
        if faults := list(broken_description_rules(one)):
            raise ModelError(f"the model's description of {one.op_type} cannot be used: {'; '.join(faults)}")
    return found


def _write(one: OperatorDescription) -> dict[str, Any]:
    return {
        "domain": one.domain,
        "type": one.op_type,
        "inputs": [[each.name, each.optional] for each in one.inputs],
        "attributes": [[each.name, each.default] for each in one.attributes],
        "outputs": [_write_output(each) for each in one.outputs],
        "whole": sorted(one.whole),
    }


def _write_output(one: DescribedOutput) -> dict[str, Any]:
    return {
        "indices": list(one.indices),
        "reads": [
            [
                read.input,
                [None if index is None else _write_index(index) for index in read.indices],
                read.leading,
                read.padded,
            ]
            for read in one.reads
        ],
        "reduced": [
            [
                each.name,
                each.reducer,
                each.outermost,
                None if each.extent is None else _write_index(each.extent),
            ]
            for each in one.reduced
        ],
        "counted": sorted(one.counted),
        "operations": one.operations,
    }


def _write_index(one: AffineIndex) -> list[Any]:
    return [
        [term.coefficient, term.index, [[each.name, each.place] for each in term.attributes]]
        for term in one.terms
    ]


def _read(one: Any) -> OperatorDescription:
    return OperatorDescription(
        _text(one["domain"]),
        _text(one["type"]),
        _list(one["inputs"], lambda each: DescribedInput(*_row(each, _text, _flag))),
        _list(one["outputs"], _read_output),
        _list(one["attributes"], lambda each: DescribedAttribute(*_row(each, _text, _default))),
        frozenset(_list(one["whole"], _text)),
    )


def _read_output(one: Any) -> DescribedOutput:
    return DescribedOutput(
        _list(one["indices"], _text),
        _list(one["reads"], lambda each: ElementRead(*_row(each, _integer, _indices, _flag, _flag))),
        _list(one["reduced"], lambda each: ReducedIndex(*_row(each, _text, _text, _flag, _perhaps_index))),
        frozenset(_list(one["counted"], _text)),
        _integer(one["operations"]),
    )


def _indices(value: Any) -> tuple[AffineIndex | None, ...]:
    return _list(value, _perhaps_index)


def _perhaps_index(value: Any) -> AffineIndex | None:
    return None if value is None else normal(_list(value, _term))


def _term(value: Any) -> AffineTerm:
    return AffineTerm(*_row(value, _integer, _text, lambda each: _list(each, _attribute)))


def _attribute(value: Any) -> AttributeInteger:
    return AttributeInteger(*_row(value, _text, _integer))


def _default(value: Any) -> int | tuple[int, ...] | None:
    return None if value is None else _list(value, _integer) if isinstance(value, list) else _integer(value)


def _row(value: Any, *kinds: Callable[[Any], Any]) -> Sequence[Any]:
    """The entries of a list with one entry of each kind."""
    if not isinstance(value, list) or len(value) != len(kinds):
        raise ValueError(f"{_short(value)} should be a list of {len(kinds)}")
    return [kind(each) for kind, each in zip(kinds, value, strict=True)]


def _list(value: Any, kind: Callable[[Any], T]) -> tuple[T, ...]:
    if not isinstance(value, list) or len(value) > MOST_OF_EACH:
        raise ValueError(f"{_short(value)} should be a list of at most {MOST_OF_EACH}")
    return tuple(map(kind, value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{_short(value)} should be a text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{_short(value)} should be true or false")
    return value


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MOST_INTEGER:
        raise ValueError(f"{_short(value)} should be a whole number of at most {MOST_INTEGER}")
    return value


def _short(value: Any) -> str:
    return f"{value!r:.80}"
