"""Symbolic intervals against all elements one by one, and descriptions that do not fit a node."""

# mypy: allow-untyped-defs

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.region import Region
from edgepart.planner.tdl.affine import AffineIndex, AffineTerm, AttributeInteger, bounds, normal
from edgepart.planner.tdl.analysis import BoundDescription, bind_description
from edgepart.planner.tdl.description import OperatorDescription
from edgepart.tdl import Opaque, Sum, operator, padded

terms = st.builds(
    AffineTerm,
    st.integers(-3, 3),
    st.sampled_from(["", "x", "y", "k"]),
    st.sampled_from(
        [(), (AttributeInteger("step"),), (AttributeInteger("step"), AttributeInteger("pads", 1))]
    ),
)
RANGES = {"x": (2, 5), "y": (0, 1), "k": (0, 3)}


@given(st.lists(terms, max_size=5).map(normal), st.integers(0, 2), st.integers(0, 3))
def test_the_symbolic_interval_is_that_of_all_values(index: AffineIndex, step: int, pad: int) -> None:
    integer = {AttributeInteger("step"): step, AttributeInteger("pads", 1): pad}.__getitem__
    names, ranges = list(RANGES), [range(*bound) for bound in RANGES.values()]
    values = [index.value(integer, dict(zip(names, at, strict=True))) for at in product(*ranges)]
    ends = {f"{name}.start": start for name, (start, _) in RANGES.items()}
    ends |= {f"{name}.stop": stop for name, (_, stop) in RANGES.items()}
    low, high = (bound.value(integer, ends) for bound in bounds(index))
    assert low <= min(values) and max(values) < high
    if not any(len({term.coefficient > 0 for term in index.coefficient(name).terms}) > 1 for name in names):
        assert (low, high) == (min(values), max(values) + 1)  # `x - x * step` is bounded term by term.


@operator("my", "It")
def it(data, weights, offset=None, *, step=1, pads=(0, 0)):
    return lambda b, x: (
        Sum(lambda c, k: padded(data)[b, c, x * step + k * 2 - pads[0]] * weights[k, c]) + offset[b, 0]
    )


@settings(max_examples=50)
@given(st.data())
def test_the_regions_that_are_read_are_those_of_all_elements(data: st.DataObject) -> None:
    """The plain twin runs over every combination of the indices."""
    step, pad, kernel, rows, width = (
        data.draw(st.integers(low, high)) for low, high in [(1, 3), (0, 2), (1, 3), (1, 3), (7, 9)]
    )
    out = (width + 2 * pad - 2 * (kernel - 1) - 1) // step + 1
    inputs = ((rows, 2, width), (kernel, 2), (rows, 1))
    found = bind_description(it, inputs, ((rows, out),), {"step": step, "pads": [pad, pad]})
    assert isinstance(found, BoundDescription)
    bounds_of = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in (rows, out)]
    wanted = Region.box(*((start, stop) for start, stop in bounds_of))
    read: tuple[set[tuple[int, ...]], ...] = (set(), set(), set())
    for b, x in product(*(range(start, stop) for start, stop in bounds_of)):
        read[2].add((b, 0))
        for c, k in product(range(2), range(kernel)):
            read[1].add((k, c))
            read[0].add((b, c, x * step + 2 * k - pad))
    if wanted.is_empty:
        return
    for region, elements, shape in zip(found.input_regions({0: wanted}), read, inputs, strict=True):
        hull = Region.box(*((min(axis), max(axis) + 1) for axis in zip(*elements, strict=True)))
        assert region == hull.intersect(Region.full(shape))


@pytest.mark.parametrize(
    ("inputs", "output", "attributes", "said"),
    [
        ([(2, 3, 8)], (2, 8), {}, "leaves out the input weights"),
        ([(2, 3, 8), (1, 3), (2, 1), (1,)], (2, 8), {}, "the node has 4 inputs and 1 outputs"),
        ([(2, 8), (1, 3)], (2, 8), {}, "data has 2 axes, and is read with 3 indices"),
        ([(2, 3, 8), (1, 3)], (2, 8, 1), {}, "output 0 has 3 axes, and 2 indices are described"),
        ([(2, 3, 8), (1, 3), (1, 1)], (2, 8), {}, "axis 0 of offset would be read from 0 to 1, and it has 1"),
        ([(2, 4, 8), (1, 3)], (2, 8), {}, "index c has 2 extents"),
        ([(2, 3, 8), (1, 3)], (2, 8), {"step": "two"}, "its attribute step is 'two'"),
        ([(2, 3, 8), (1, 3)], (2, 8), {"pads": 3}, "no integer in its attribute pads[0]"),
        ([(2, 3, 8), (1, 3)], (2, 8), {"step": -1}, "step is -1, and is multiplied with an index"),
    ],
)
def test_a_node_that_does_not_fit(
    inputs: list[tuple[int, ...]], output: tuple[int, ...], attributes: dict[str, Any], said: str
) -> None:
    found = bind_description(it, inputs, [output], attributes)
    assert isinstance(found, str) and said in found


def test_an_index_without_an_axis_needs_an_extent() -> None:
    @operator("my", "Window")
    def window(a):
        return lambda i: Sum(lambda k: a[i + k])

    found = bind_description(window, [(8,)], [(6,)], {})
    assert found == "index k has no axis of its own; give its extent: Sum(..., k=3)"


def test_leading_axes_are_aligned_at_their_end_as_in_numpy() -> None:
    @operator("my", "Scale")
    def scale(x, by):
        return lambda: Opaque(x[...], by[...])

    assert isinstance(scale, OperatorDescription)
    found = bind_description(scale, [(2, 3, 4), (1, 4)], [(2, 3, 4)], {})
    assert isinstance(found, BoundDescription)
    wanted = {0: Region.box((1, 2), (0, 2), (2, 4))}
    assert found.input_regions(wanted) == (wanted[0], Region.box((0, 1), (2, 4)))
