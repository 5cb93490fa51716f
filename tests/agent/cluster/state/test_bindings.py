"""Which shapes a request binds, and which inputs cannot be bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.api.deployment_name import check_name
from edgepart.agent.cluster.state.bindings import (
    MAX_EXTENT,
    bind_infos,
    find_binding,
    format_shapes,
    is_variant,
    parent_of,
    read_binding,
    variant_name,
)
from edgepart.agent.wire.control import Version
from edgepart.planner.errors import FrameError, RequestError, UsageError
from edgepart.planner.plans.plan import Plan, ValueInfo
from edgepart.planner.plans.plan_bytes import plan_from_bytes, plan_to_bytes

VERSION = Version(1, "a")
TEXT = ValueInfo("text", "int64", (1, 1), ("batch", "length"))
MASK = ValueInfo("mask", "float", (1, 1), ("batch", "length"))
IMAGE = ValueInfo("image", "float", (1, 3, 1, 1), ("batch", None, "", ""))
FIXED = ValueInfo("scale", "float", (4,))
ALL = (TEXT, MASK, IMAGE, FIXED)


def array(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


@given(*[st.integers(0, 4)] * 4)
def test_what_fits_is_bound_and_the_first_binding_is_none(
    batch: int, length: int, rows: int, cols: int
) -> None:
    shapes = {"text": (batch, length), "mask": (batch, length), "image": (batch, 3, rows, cols)}
    inputs = {name: array(*shape) for name, shape in shapes.items()} | {"scale": array(4)}
    found = find_binding(ALL, inputs)
    assert found == ({} if (batch, length, rows, cols) == (1, 1, 1, 1) else shapes)
    assert list(found) == sorted(found)
    bound = bind_infos(ALL, found)
    assert read_binding(bound) == shapes
    assert bound[3] == FIXED
    assert find_binding(bound, inputs) == {}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"mask": (2, 6)},
            "dimension 'length' is 5 in input 'text' and 6 in input 'mask'; it must be the same",
        ),
        ({"image": (1, 3, 8, 8)}, "dimension 'batch' is 2 in input 'text' and 1 in input 'image'"),
        (
            {"image": (2, 4, 8, 8)},
            r"input 'image' has shape .*; expected image: float \[batch, 3, any, any\]",
        ),
        ({"image": (2, 3, 8)}, r"input 'image' has shape \[2, 3, 8\]; expected image: float \[batch, 3, any"),
        ({"text": ()}, r"input 'text' has shape \[\]; expected text: int64 \[batch, length\]"),
        ({"image": (2, 3, 0, MAX_EXTENT + 1)}, "a dimension may be up to 2147483647"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, tuple[int, ...]], complaint: str) -> None:
    shapes = {"text": (2, 5), "mask": (2, 5), "image": (2, 3, 8, 8)} | changes
    with pytest.raises(RequestError, match=complaint):
        find_binding(ALL, {name: array(*shape) for name, shape in shapes.items()})


def test_what_has_no_shape_is_left_to_others() -> None:
    assert find_binding(ALL, {"text": array(1, 1), "mask": [1, 2], "scale": array(9)}) == {}
    assert find_binding((ValueInfo("list", "sequence", None),), {"list": [1]}) == {}


def test_a_variants_name_is_no_users_and_everywhere_the_same() -> None:
    name = variant_name("net.v2", VERSION, {"x": (1, 2), "y": ()})
    assert name == variant_name("net.v2", VERSION, {"y": (), "x": (1, 2)})
    others = [
        variant_name("net.v3", VERSION, {"x": (1, 2), "y": ()}),
        variant_name("net.v2", Version(2, "a"), {"x": (1, 2), "y": ()}),
        variant_name("net.v2", VERSION, {"x": (1, 2), "y": (1,)}),
        variant_name("net.v2", VERSION, {"x": (12,), "y": ()}),
    ]
    assert len({name, *others}) == 5
    assert is_variant(name) and parent_of(name) == "net.v2"
    assert not is_variant("net.v2") and parent_of("net.v2") == "net.v2"
    with pytest.raises(UsageError):
        check_name(name)
    assert format_shapes({"x": (1, 2), "y": ()}) == "x=1,2 y="


def test_free_dimensions_travel_with_the_plan() -> None:
    plan = Plan("m", "single", {}, (), ALL, (replace(FIXED, free=("",)),))
    data = plan_to_bytes(plan)
    assert plan_from_bytes(data) == plan
    assert [info.open_shape for info in plan.inputs] == [(-1, -1), (-1, -1), (-1, 3, -1, -1), (4,)]
    assert plan.outputs[0].open_shape == (-1,)
    free: Any
    for free in (("a",), ("a", 3)):
        with pytest.raises(FrameError):
            plan_from_bytes(plan_to_bytes(replace(plan, inputs=(replace(TEXT, free=free),))))
