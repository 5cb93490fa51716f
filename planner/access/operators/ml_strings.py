"""String operators: element-wise where each string becomes one value, row by row where n-grams are counted. Rules
only."""

from __future__ import annotations

from collections.abc import Callable

from edgepart.planner.access.declare.aligned import Aligned, Along
from edgepart.planner.access.declare.bound import BoundOperator
from edgepart.planner.access.declare.derived import Derived, WholeOperator
from edgepart.planner.access.operators.elementwise import elementwise


def normalizer(bound: BoundOperator) -> Derived:
    if bound.attribute("stopwords"):
        return WholeOperator(bound, "the words that it drops decide how much it writes")
    return elementwise(bound)


def n_grams(bound: BoundOperator) -> Derived:
    """Declares TfIdfVectorizer, whose input is [rows, words] or [words]."""
    if len(bound.output) < 2:
        return WholeOperator(bound, "it counts in one row of words, from its begin to its end")
    work = float(bound.shape(0)[1] * int(bound.attribute("max_gram_length", 1)))
    return Aligned(bound, [[Along(0), None]], whole=(1,), family="other", work=work / bound.output[1])


DECLARATIONS: dict[str, Callable[[BoundOperator], Derived]] = {
    "RegexFullMatch": elementwise,
    "StringConcat": elementwise,
    "StringNormalizer": normalizer,
    "TfIdfVectorizer": n_grams,
}

_LONGEST = "the longest of all that it cuts up decides the shape of what it writes"

OPAQUE = {("", "StringSplit"): _LONGEST, ("com.microsoft", "Tokenizer"): _LONGEST}
