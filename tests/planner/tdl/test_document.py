"""Descriptions as text: the same comes back, and any other text is an error that says what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.errors import ModelError
from edgepart.planner.tdl.description import OperatorDescription, broken_description_rules
from edgepart.planner.tdl.document import MOST_TEXT, read_descriptions, write_descriptions
from tests.planner.tdl import standard

ALL = tuple(one for one in vars(standard).values() if isinstance(one, OperatorDescription))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
ANYTHING = st.recursive(
    LEAVES, lambda of: st.lists(of, max_size=3) | st.dictionaries(st.text(max_size=3), of), max_leaves=8
)


def test_what_was_written_is_read() -> None:
    assert len(ALL) > 25
    assert read_descriptions(write_descriptions(ALL)) == ALL


def paths(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values in a document."""
    inner = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    return [at, *(path for key, value in inner for path in paths(value, (*at, key)))]


DOCUMENT = json.loads(write_descriptions([standard.conv2d, standard.layer_normalization]))


@given(st.sampled_from(paths(DOCUMENT)[1:]), ANYTHING)
def test_with_any_value_at_any_place_it_is_read_or_refused(path: tuple[Any, ...], value: Any) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    try:
        found = read_descriptions(json.dumps(document))
    except ModelError as error:
        assert "cannot be used" in str(error)
    else:
        assert not any(list(broken_description_rules(one)) for one in found)
        assert read_descriptions(write_descriptions(found)) == found


@given(st.text() | ANYTHING.map(json.dumps))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert read_descriptions(text) == ()
    except ModelError as error:
        assert "edgepart.operators" in str(error)


def test_a_text_that_is_too_long_is_not_parsed() -> None:
    with pytest.raises(ModelError, match="more than"):
        read_descriptions("[" * (MOST_TEXT + 1))


def test_a_broken_rule_is_named() -> None:
    document = json.loads(json.dumps(DOCUMENT[:1]))
    document[0]["outputs"][0]["indices"][0] = "z"
    with pytest.raises(
        ModelError, match="description of Conv cannot be used: output 0: unknown index b in b"
    ):
        read_descriptions(json.dumps(document))
