"""Which ways to divide a layer are weighed."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from benchmarks.models import light

from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layerwise.configurations import (
    MOST_CONFIGURATIONS,
    ConfigurationSpace,
    grids,
    is_on_one_device,
    list_configurations,
    make_space,
    select_configurations,
)
from edgepart.planner.layout.choices import Divide, Reduce, Whole
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.study import Study
from tests.planner.small_models import batched, residual


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load_graph(residual())


def study(
    graph: Graph, *speeds: float, axis: str | None = None, links: dict[tuple[str, str], Link] | None = None
) -> Study:
    devices = tuple(Device(f"d{n}", "k", speed, speed / 4, 4e9) for n, speed in enumerate(speeds))
    return Study(Problem(graph, Cluster(devices, links or {}), "d0", axis=axis))


def layer(memo: Memo, name: str) -> Layer:
    return memo.coarse.layers[memo.coarse.layer_of[name]]


def even(among: ConfigurationSpace) -> dict[str, float]:
    return dict.fromkeys(among.devices, 1.0)


def test_every_axis_and_every_two_over_each_number_of_devices(graph: Graph) -> None:
    asked = study(graph, 1e9, 1e9, 1e9, 1e9)
    among = make_space(asked.memo)
    assert among.teams == (("d0", "d1", "d2", "d3"), ("d0", "d1"))
    found = list_configurations(layer(asked.memo, "conv2"), among, even(among))
    assert len(set(found)) == len(found)
    divided = [(c.axes, len(c.shares), c.grid) for c in found if isinstance(c, Divide)]
    for axis in ("height", "width", "channel"):
        assert ((axis,), 4, ()) in divided and ((axis,), 2, ()) in divided
    for pair in (("channel", "height"), ("channel", "width"), ("height", "width")):
        assert (pair, 4, (2, 2)) in divided
    assert [c for c in found if is_on_one_device(c)] == [Whole((name,)) for name in among.devices]
    assert Whole(among.devices) in found
    sums = [c for c in found if isinstance(c, Reduce)]
    assert {len(c.shares) for c in sums} == {2, 4} and {type(c.then) for c in sums} == {Whole, Divide}
    assert not any(
        isinstance(c, Reduce)
        for c in list_configurations(layer(asked.memo, "conv2"), among, even(among), sums=False)
    )


def test_unequal_devices_get_parts_by_their_speed_on_the_layer_or_on_the_whole_model(graph: Graph) -> None:
    asked = study(graph, 3e9, 1e9)
    among = make_space(asked.memo)
    found = list_configurations(layer(asked.memo, "conv2"), among, {"d0": 1.0, "d1": 1.0})
    rows = [c.shares for c in found if isinstance(c, Divide) and c.axes == ("height",)]
    assert (("d0", 0.5), ("d1", 0.5)) in rows
    assert len(rows) == 2
    assert dict(rows[1]) == pytest.approx(
        {"d0": 0.75, "d1": 0.25}, abs=0.02
    )  # Starting a segment is part of it.


def test_devices_that_differ_are_tried_in_every_number_and_the_well_connected_ones_too(graph: Graph) -> None:
    quick, slow = Link(1e9, 1e-4), Link(1e6, 1e-2)
    names = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    links = {(f"d{a}", f"d{b}"): quick if {a, b} <= {0, 3} else slow for a, b in names}
    among = make_space(study(graph, 4e9, 3e9, 2e9, 1e9, links=links).memo)
    assert among.devices == ("d0", "d1", "d2", "d3")
    assert {len(team) for team in among.teams} == {2, 3, 4}
    assert ("d0", "d1") in among.teams and ("d0", "d3") in among.teams


def test_what_cannot_be_divided_is_whole(graph: Graph) -> None:
    asked = study(graph, 1e9, 1e9)
    among = make_space(asked.memo)
    opaque = Layer(0, layer(asked.memo, "conv2").operators, ("r2",), (), opaque=True)
    found = list_configurations(opaque, among, even(among))
    assert found == (Whole(("d0",)), Whole(("d1",)), Whole(("d0", "d1")))


def test_one_device_has_one_configuration(graph: Graph) -> None:
    asked = study(graph, 1e9)
    assert list_configurations(layer(asked.memo, "conv2"), make_space(asked.memo), {"d0": 1.0}) == (
        Whole(("d0",)),
    )


@pytest.mark.parametrize(
    ("axis", "axes"), [("width", {"width"}), ("height", {"height"}), ("inner", {"inner"})]
)
def test_a_forced_axis_is_the_only_one(graph: Graph, axis: str, axes: set[str]) -> None:
    asked = study(graph, 1e9, 1e9, axis=axis)
    among = make_space(asked.memo)
    found = list_configurations(layer(asked.memo, "conv2"), among, even(among))
    used = {name for c in found if isinstance(c, Divide) for name in c.axes}
    assert used | {c.axis for c in found if isinstance(c, Reduce)} == axes


def test_no_part_is_empty_and_cuts_fall_on_groups() -> None:
    asked = study(load_graph(light("shufflenet")), 1e9, 1e9, 1e9, 1e9)
    among = make_space(asked.memo)
    for one in asked.memo.layers[:20]:
        for choice in list_configurations(one, among, even(among)):
            if isinstance(choice, Divide) and len(choice.axes) == 1:
                axis = one.axis(choice.axes[0])
                assert axis is not None and axis.extent >= len(choice.shares) * axis.quantum


@pytest.mark.parametrize(("parts", "axes"), [(5, 1), (12, 2), (2, 2), (5, 2), (24, 3), (16, 4), (8, 4)])
def test_grids_are_all_products(parts: int, axes: int) -> None:
    every = product(range(2, parts + 1), repeat=axes)
    assert grids(parts, axes) == tuple(one for one in every if prod(one) == parts)


def test_products_of_every_number_of_axes() -> None:
    asked = study(load_graph(batched(6)), *[1e9] * 16)
    among = make_space(asked.memo, whole=True)
    found = list_configurations(layer(asked.memo, "conv"), among, even(among))
    on_all = {(c.axes, c.grid) for c in found if isinstance(c, Divide) and len(c.shares) == 16}
    assert (("batch", "channel", "height", "width"), (2, 2, 2, 2)) in on_all
    assert (("channel", "height", "width"), (2, 2, 4)) in on_all and (("height", "width"), (8, 2)) in on_all
    assert (("batch", "height"), (8, 2)) not in on_all  # There are six images.


def test_what_several_do_no_quicker_than_one_is_not_weighed() -> None:
    whole = [Whole(("a",)), Whole(("b",)), Whole(("a", "b"))]
    split = [Divide(("height",), (("a", s), ("b", 1 - s))) for s in (0.5, 0.9)]
    assert select_configurations([*whole, *split], [2.0, 3.0, 2.5, 1.0, 2.0], lambda choice: False, 9) == (
        0,
        1,
        3,
    )
    assert select_configurations(
        [*whole, *split], [2.0, 3.0, 2.5, 1.0, 2.0], lambda choice: choice == whole[2], 9
    ) == (
        0,
        1,
        2,
        3,
    )


def test_many_devices_have_no_more_configurations_than_few(graph: Graph) -> None:
    asked = study(graph, *[1e9] * 32)
    among = make_space(asked.memo)
    assert [len(team) for team in among.teams] == [32, 16, 8, 4, 2]
    found = list_configurations(layer(asked.memo, "conv2"), among, even(among))
    seconds = [1.0 if is_on_one_device(choice) else 0.5 - 0.001 * n for n, choice in enumerate(found)]
    kept = select_configurations(
        found,
        seconds,
        lambda choice: is_on_one_device(choice) and choice == Whole(("d0",)),
        MOST_CONFIGURATIONS,
    )
    assert len(kept) == MOST_CONFIGURATIONS and kept[0] == 0
    assert min(seconds[n] for n in range(len(found)) if n not in kept) >= max(seconds[n] for n in kept[1:])
