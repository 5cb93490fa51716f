"""Boxes that are equal are planned with as equals."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.devices.cluster import Device
from edgepart.planner.devices.engine import Engine
from edgepart.planner.devices.equal_devices import EQUAL_SPEED_FACTOR, equalise_devices

PI = Device("a", "pi", 1e10, 2e9, 4e9, 4, families={"conv": 1e10, "gemm": 8e9}, moves={"pool": 1e9})


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Device, ...]:
    count = draw(st.integers(0, 6))
    rates = st.floats(1e9, 1e11)
    return tuple(
        Device(
            f"d{number}",
            draw(st.sampled_from(["pi", "mini-pc"])),
            draw(rates),
            draw(rates),
            draw(st.floats(1e8, 1e10)),
            draw(st.sampled_from([1, 4])),
            families=draw(st.dictionaries(st.sampled_from(["conv", "gemm"]), rates)),
        )
        for number in range(count)
    )


@given(boxes())
def test_names_kinds_and_memory_stay_and_no_speed_moves_far(devices: tuple[Device, ...]) -> None:
    found = equalise_devices(devices)
    assert [(d.name, d.kind, d.threads, d.memory_bytes) for d in found] == [
        (d.name, d.kind, d.threads, d.memory_bytes) for d in devices
    ]
    for was, now in zip(devices, found, strict=True):
        assert 1 / EQUAL_SPEED_FACTOR <= now.flops_per_s / was.flops_per_s <= EQUAL_SPEED_FACTOR
        assert set(was.families) <= set(now.families)


@given(boxes(), st.randoms())
def test_the_order_does_not_matter(devices: tuple[Device, ...], chance: object) -> None:
    mixed = list(devices)
    chance.shuffle(mixed)  # type: ignore[attr-defined]
    assert {d.name: d for d in equalise_devices(mixed)} == {d.name: d for d in equalise_devices(devices)}


def test_of_equals_the_median_counts() -> None:
    """One was disturbed while it measured a short kernel."""
    odd = replace(PI, name="c", flops_per_s=1.05e10, families={"conv": 1.05e10, "gemm": 9e10})
    found = equalise_devices((PI, replace(PI, name="b"), odd))
    assert [d.families for d in found] == [PI.families] * 3
    assert [d.flops_per_s for d in found] == [1e10] * 3


def test_equal_engines_are_equally_fast_and_keep_what_they_cannot_run() -> None:
    npu = Engine("npu", "P", {"conv": 4e10, "gemm": 1e10}, flops_per_s=4e10, copy_bytes_per_s=1e9)
    tried = npu.with_drift(0.5)
    less = replace(npu, families={"conv": 6e10}, flops_per_s=6e10, untried=True, refused=frozenset("x"))
    boxes = (replace(PI, engines=(tried,)), replace(PI, name="b", engines=(less,)), replace(PI, name="c"))
    a, b, c = equalise_devices(boxes)
    assert not c.engines
    (one,), (two,) = a.engines, b.engines
    assert one.flops_per_s == two.flops_per_s == 5e10 / 0.5
    assert one.families == {"conv": 1e11, "gemm": 2e10} and two.families == {"conv": 1e11}
    assert (one.drift, two.drift, two.untried) == (0.5, 0.5, False), "one box has tried it for both"
    assert (one.refused, two.refused) == (frozenset(), frozenset("x"))
    assert one.copy_bytes_per_s == 1e9 / 0.5 and one.copy_s == 0.0


def test_what_is_of_another_kind_or_slower_is_left_alone() -> None:
    throttled = replace(PI, name="b", flops_per_s=5e9, families={"conv": 5e9, "gemm": 4e9})
    other = replace(PI, name="c", kind="mini-pc", families={"conv": 1.01e10, "gemm": 1e9})
    fewer = replace(PI, name="d", threads=1)
    devices = (PI, throttled, other, fewer)
    assert equalise_devices(devices) == devices
