"""The law for strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.region import Array
from tests.planner.access.law import Case, check_any_region, check_whole, declared
from tests.planner.access.node_cases import node_cases


def _words(*shape: int, letters: str = "abcd") -> Array:
    count = int(np.prod(shape))
    listed = [letters[n % len(letters)] * (n % 3 + 1) for n in range(count)]
    return np.asarray(listed, object).reshape(shape)


def _grams(**said: Any) -> dict[str, Any]:
    pool = {"ngram_counts": [0, 3], "ngram_indexes": [0, 1, 2, 4], "pool_int64s": [2, 3, 5, 5, 6]}
    lengths = {"min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1}
    return {"mode": "TF", **pool, **lengths, **said}


ROWS = np.asarray([[2, 3, 5, 6], [5, 6, 5, 6], [3, 3, 2, 1]])

CASES = [
    Case("StringConcat", [_words(2, 3), _words(3)], version=20),
    Case("StringConcat", [_words(4, 1), _words(2, 1, 3, letters="xyz")], version=20),
    Case("RegexFullMatch", [_words(3, 4)], {"pattern": "a+|c"}, version=20),
    Case("StringNormalizer", [_words(5)], {"is_case_sensitive": 1}, version=10),
    Case("StringNormalizer", [_words(1, 5)], version=10),
    Case("TfIdfVectorizer", [ROWS], _grams(), version=9),
    Case(
        "TfIdfVectorizer",
        [ROWS.astype(np.int32)],
        _grams(mode="TFIDF", weights=[0.5, 2.0, 1.0, 3.0]),
        version=9,
    ),
]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{CASES[n].op_type}-{n}")
@settings(max_examples=6)
@given(data=st.data())
def test_case(number: int, data: st.DataObject) -> None:
    checked = declared(CASES[number])
    assert checked.access.axes()
    check_any_region(checked, data)


@pytest.mark.parametrize("op_type", ["RegexFullMatch", "StringConcat", "TfIdfVectorizer"])
@settings(max_examples=1)
@given(data=st.data())
def test_cases_of_the_onnx_project(op_type: str, data: st.DataObject) -> None:
    for name, case in node_cases(op_type).items():
        if "empty" in name and op_type == "RegexFullMatch":
            continue
        if op_type == "TfIdfVectorizer" and "batch" not in name:
            assert (
                check_whole(case).access.opaque == "it counts in one row of words, from its begin to its end"
            )
            continue
        check_any_region(declared(case), data, tries=2)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (Case("StringNormalizer", [_words(5)], {"stopwords": ["a"], "is_case_sensitive": 1}, 10), "drops"),
        (Case("StringSplit", [_words(5)], {"delimiter": "a"}, version=20, outputs=2), "longest"),
    ],
)
def test_what_cannot_be_split_says_why(case: Case, why: str) -> None:
    access = check_whole(case).access
    assert access.opaque is not None and why in access.opaque


OPERATORS = frozenset({"RegexFullMatch", "StringConcat", "StringNormalizer", "TfIdfVectorizer"})
