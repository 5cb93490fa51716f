"""The law for Einsum, with drawn equations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.access import access_of
from edgepart.planner.access.operators.einsum import equation
from edgepart.planner.region import Array, Region, span
from tests.planner.access.law import Case, check_any_region, check_whole, declared, floats
from tests.planner.access.node_cases import node_cases

OPERATORS = frozenset({"Einsum"})
LETTERS = "abcdij"


@st.composite
def einsums(draw: st.DrawFn) -> Case:
    """One to three operands of few letters, some of extent 1 (broadcast) in one of them; ellipses; any order of what
    is kept, or none told."""
    extents = {letter: draw(st.integers(2, 4)) for letter in LETTERS}
    count = draw(st.sampled_from([1, 2, 2, 2, 3]))
    dots = draw(st.sampled_from([0, 0, 1, 2]))
    terms, inputs = [], []
    for n in range(count):
        letters = draw(st.lists(st.sampled_from(LETTERS), max_size=3, unique=n > 0))
        shape = [extents[letter] for letter in letters]
        once = [k for k, letter in enumerate(letters) if letters.count(letter) == 1]
        if once and draw(st.integers(0, 5)) == 0:
            shape[draw(st.sampled_from(once))] = 1
        term = "".join(letters)
        if dots:
            at = draw(st.integers(0, len(letters)))
            term = term[:at] + "..." + term[at:]
            shape[at:at] = [draw(st.sampled_from([1, 3, 3])), 2][:dots]
        terms.append(term)
        inputs.append(floats(*shape, seed=n))
    text = (", " if draw(st.booleans()) else ",").join(terms)
    if draw(st.booleans()):
        used = sorted({letter for term in terms for letter in term.replace(".", "")})
        kept = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
        text += " -> " + "..." * bool(dots) + "".join(kept)
    return Case("Einsum", inputs, {"equation": text}, version=draw(st.sampled_from([12, 17])))


@settings(max_examples=60)
@given(einsums(), st.data())
def test_drawn_equations(case: Case, data: st.DataObject) -> None:
    check_any_region(declared(case), data)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (",ij->ij", [(), (2, 3)]),
        ("->", [()]),
        ("ij,jk->ik", [(2, 1), (3, 4)]),
        ("...ij->...ji", [(2, 3, 4)]),
        ("ii->i", [(4, 4)]),
        ("ii->", [(4, 4)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bhqd,bhkd->bhqk", [(1, 2, 3, 4), (1, 2, 5, 4)]),
        ("ab,bc,cd", [(2, 3), (3, 4), (4, 5)]),
    ],
)
@settings(max_examples=4)
@given(data=st.data())
def test_equations(text: str, shapes: list[tuple[int, ...]], data: st.DataObject) -> None:
    inputs = [floats(*shape, seed=n) for n, shape in enumerate(shapes)]
    check_any_region(declared(Case("Einsum", inputs, {"equation": text})), data)


@settings(max_examples=3)
@given(data=st.data())
def test_integers_are_summed_exactly(data: st.DataObject) -> None:
    def whole(*shape: int) -> Array:
        return np.arange(np.prod(shape), dtype=np.int64).reshape(shape)

    check_any_region(declared(Case("Einsum", [whole(3, 4), whole(4, 5)], {"equation": "ij,jk"})), data)


@settings(max_examples=2)
@given(data=st.data())
def test_cases_of_the_onnx_project(data: st.DataObject) -> None:
    """Those in bfloat16 left out: the runtime has no kernel for them."""
    found = [case for name, case in node_cases("Einsum").items() if "bfloat16" not in name]
    assert len(found) >= 5
    for case in found:
        check_any_region(declared(case), data, tries=1)


def test_letters_are_axes_of_their_own() -> None:
    access = declared(Case("Einsum", [floats(2, 3, 4), floats(2, 4, 5)], {"equation": "bij,bjk->bik"})).access
    found = [(axis.name, axis.extent, axis.reducer) for axis in access.axes()]
    assert found == [("batch", 2, None), ("sequence", 3, None), ("feature", 5, None), ("inner", 4, "sum")]
    wanted = {0: Region((span((0, 1)), span((1, 3)), span((0, 5))))}
    assert access.needs(wanted) == (Region.box((0, 1), (1, 3), (0, 4)), Region.box((0, 1), (0, 4), (0, 5)))
    assert access.flops(wanted) == 2 * 2 * 5 * 4
    assert access.family == "gemm"


def test_several_sums_have_names_of_their_own() -> None:
    access = declared(Case("Einsum", [floats(2, 3, 4)], {"equation": "ijk->k"})).access
    assert [axis.name for axis in access.axes() if axis.reducer] == ["inner_i", "inner_j"]


@pytest.mark.parametrize(
    ("text", "ranks"), [("ij,jk", (2,)), ("ij", (3,)), ("...i->i", (2,)), ("ij->ii", (2,)), ("ij->ik", (2,))]
)
def test_an_equation_that_does_not_fit_is_none(text: str, ranks: tuple[int, ...]) -> None:
    assert equation(text, ranks) is None


def test_an_equation_that_is_not_understood_runs_whole() -> None:
    checked = check_whole(Case("Einsum", [floats(3, 4)], {"equation": "ij"}))
    operator = replace(checked.graph.operators[0], attributes={"equation": "ijk"})
    access = access_of(operator, checked.graph)
    assert access.opaque is not None and "equation" in access.opaque
