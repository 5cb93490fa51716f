"""Choices for layers become layouts: BBGraP's equations as a table, and laws of dividing."""

from __future__ import annotations

import random
from itertools import pairwise, product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.access import access_of
from edgepart.planner.access.declare.protocol import Axis
from edgepart.planner.layers.coarsen import coarsen
from edgepart.planner.layout.choices import Choice, Divide, Pull, Whole, _cuts, divide
from edgepart.planner.layout.propagate import LayoutPropagator
from edgepart.planner.model.load import load_graph
from edgepart.planner.region import Region, span
from tests.planner.small_models import convolution, residual


@pytest.mark.parametrize(
    ("extent", "count", "sizes"),
    [(8, 3, [3, 3, 2]), (9, 3, [3, 3, 3]), (7, 4, [2, 2, 2, 1]), (2, 3, [1, 1, 0]), (1, 1, [1])],
)
def test_equal_parts_are_the_floor_and_the_remainder_round_robin(
    extent: int, count: int, sizes: list[int]
) -> None:
    assert [b - a for a, b in divide(extent, [1.0] * count)] == sizes  # Equation 1


@given(st.integers(1, 300), st.lists(st.floats(0.01, 100), min_size=1, max_size=9), st.integers(1, 5))
@settings(max_examples=150)
def test_parts_are_in_proportion_and_cover(extent: int, shares: list[float], quantum: int) -> None:
    cuts = divide(extent, shares, quantum)
    assert cuts[0][0] == 0 and cuts[-1][1] == extent
    assert all(a[1] == b[0] for a, b in pairwise(cuts))
    assert all(start % quantum == 0 or start == extent for start, _ in cuts)
    units = -(-extent // quantum)
    for (start, stop), share in zip(cuts, shares, strict=True):
        assert (
            abs((stop - start) / quantum - units * share / sum(shares)) < 2
        )  # The last unit may be cut short.


@given(
    st.lists(st.integers(1, 3), min_size=2, max_size=4), st.lists(st.integers(1, 20), min_size=4, max_size=4),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_a_grid_over_any_axes_is_one_division_inside_another(
    grid: list[int], extents: list[int], rng: random.Random
) -> None:
    """Each device's part along an axis is its group's, of the devices that agree on all axes before."""
    axes = tuple(Axis(f"a{n}", n, extents[n]) for n in range(len(grid)))
    places = list(product(*map(range, grid)))
    share = {place: rng.choice([0.5, 1.0, 2.0]) for place in places}
    cuts = dict(zip(places, _cuts(axes, tuple(share.values()), tuple(grid)), strict=True))
    for place, bounds in cuts.items():
        for level, axis in enumerate(axes):
            groups = [0.0] * grid[level]
            for other in places:
                if other[:level] == place[:level]:
                    groups[other[level]] += share[other]
            assert bounds[level] == divide(axis.extent, groups)[place[level]]
    assert sum(prod(stop - start for start, stop in bounds) for bounds in cuts.values()) == prod(
        axis.extent for axis in axes
    )


CASES = [
    (8, 3, 1, 1, (1, 1)), (9, 3, 2, 1, (1, 1)), (12, 3, 1, 2, (2, 2)), (16, 5, 3, 1, (0, 2)), (7, 2, 2, 1, (0, 0)),
    (20, 3, 2, 3, (3, 1)), (11, 1, 1, 1, (0, 0)), (14, 7, 2, 1, (3, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("size", "kernel", "stride", "dilation", "pads"), CASES)
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_input_parts_follow_equations_2_to_6(
    size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int], nodes: int
) -> None:
    graph = load_graph(convolution(size, kernel, stride, dilation, pads))
    conv = graph.operators[0]
    shape = graph.shape_of("y")
    assert shape is not None
    parts = [b - a for a, b in divide(shape[2], [1.0] * nodes)]
    true_kernel = (kernel - 1) * dilation + 1  # Equation 2
    for i, part in enumerate(parts):
        if not part:
            continue
        interval = (part - 1) * stride + true_kernel  # Equation 3
        start = stride * sum(parts[:i]) - pads[0]  # Equation 4, before it is cut off at the border
        stop = start + interval  # Equation 5, likewise
        first = sum(parts[:i])
        wanted = Region.full(shape).replace(2, span((first, first + part)))
        need = access_of(conv, graph).needs({0: wanted})[0]
        assert need is not None
        assert need.spans[2] == span((max(0, start), min(size, stop)))  # Equation 6


def choices_for(data: st.DataObject, names: tuple[str, ...]) -> dict[int, Choice]:
    coarse = coarsen(GRAPH)
    made: dict[int, Choice] = {}
    for layer in coarse.layers:
        if layer.exits:
            options: list[Choice] = [Whole((name,)) for name in names]
            shares = tuple((n, data.draw(st.sampled_from([0.5, 1.0, 2.0]))) for n in names)
            options += [Divide((a.name,), shares, widened=w) for a in layer.axes for w in (False, True)]
            if not any(n in GRAPH.outputs for n in layer.exits):
                options.append(Pull())
            made[layer.number] = data.draw(st.sampled_from(options))
    return made


GRAPH = load_graph(residual())


@given(st.data())
@settings(max_examples=40)
def test_any_choices_compute_everything_that_somebody_reads(data: st.DataObject) -> None:
    coarse = coarsen(GRAPH)
    found = LayoutPropagator(coarse).lay_out(choices_for(data, ("a", "b", "c"))).layouts
    for op in GRAPH.operators:
        for device, region in found[op.outputs[0]].regions.items():
            needs = coarse.accesses[op.name].needs({0: region})
            for name, need in zip(op.inputs, needs, strict=True):
                if name in GRAPH.tensors and name not in GRAPH.inputs and need is not None:
                    assert not need.subtract_all(found[name].regions.values()), (op.name, device, name)
    assert not GRAPH.region_of("y").subtract_all(found["y"].regions.values())


def test_outputs_of_the_model_cannot_be_left_to_their_readers() -> None:
    with pytest.raises(ValueError, match="output 'y'"):
        LayoutPropagator(coarsen(GRAPH)).lay_out({})


def test_nothing_inside_a_layer_travels() -> None:
    coarse = coarsen(GRAPH)
    shares = (("a", 1.0), ("b", 1.0))
    choices: dict[int, Choice] = {
        la.number: Divide(("height",), shares) if la.splits("height") else Whole(("a",))
        for la in coarse.layers
        if la.exits
    }
    found = LayoutPropagator(coarse).lay_out(choices).layouts
    assert found["c3"].regions == found["a3"].regions == found["r3"].regions
    assert found["c1"].regions == found["r1"].regions
