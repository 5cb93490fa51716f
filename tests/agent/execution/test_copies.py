"""Recipes of blocked pieces against their plain twins: whatever is held and wanted in blocks, the numbers are the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.agent.execution.copies import Scratch, plan_copy
from edgepart.agent.execution.nchwc_array import to_blocked, to_plain
from edgepart.agent.wire.tensors import Value
from edgepart.planner.plans.plan import Piece
from edgepart.planner.region import Array, Region, Span, span

SHAPE = (2, 12, 3, 5)
WHOLE = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
BLOCKS = (2, 4)


@st.composite
def spans(draw: st.DrawFn, extent: int, step: int) -> Span:
    """Intervals of `extent`, in whole steps."""
    chosen = draw(st.sets(st.integers(0, extent // step - 1), min_size=1))
    return span(*((n * step, (n + 1) * step) for n in chosen))


@st.composite
def regions(draw: st.DrawFn, block: int) -> Region:
    """Regions of WHOLE in whole blocks of channels; not always at the bounds of the tensor's own blocks."""
    channels = draw(spans(SHAPE[1], max(block, 1)))
    shift = draw(st.integers(0, 1)) if channels[-1].stop < SHAPE[1] else 0
    moved = span(*((one.start + shift, one.stop + shift) for one in channels))
    others = [draw(spans(extent, 1)) for extent in SHAPE]
    return Region((others[0], moved, *others[2:]))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Region, int, list[tuple[Region, int]]]:
    """What is wanted, what is held, and in which blocks each is (0: plain)."""
    block = draw(st.sampled_from(BLOCKS))
    wanted = draw(st.sampled_from((0, block)))
    blocks = draw(st.lists(st.sampled_from((0, block)), min_size=1, max_size=4))
    return draw(regions(wanted)), wanted, [(draw(regions(one)), one) for one in blocks]


def stored(region: Region, block: int) -> Array:
    plain = np.ascontiguousarray(region.crop(WHOLE))
    return to_blocked(plain, block) if block else plain


@settings(max_examples=300)
@given(cases(), st.booleans())
def test_a_recipe_gives_the_same_numbers_in_whatever_order_they_are_held(
    case: tuple[Region, int, list[tuple[Region, int]]], whole_too: bool
) -> None:
    want, block, have = case
    have += [(Region.full(SHAPE), have[0][1])] if whole_too else []
    slots = {n: Piece("t", region) for n, (region, _) in enumerate(have)}
    blocks = {n: one for n, (_, one) in enumerate(have)}
    held: dict[int, Value] = {n: stored(region, one) for n, (region, one) in enumerate(have)}
    twin = plan_copy(Piece("t", want), slots)
    found = plan_copy(Piece("t", want), slots, blocks, block)
    assert (found is None) == (twin is None)
    if found is None:
        return
    scratch = Scratch()
    for memory in (np.empty, scratch.empty, scratch.empty):
        scratch.clear()
        made = found.make(held, memory)
        assert made.shape == want.shape and made.flags.c_contiguous
        np.testing.assert_array_equal(to_plain(made, block) if block else made, want.crop(WHOLE))
    copied = sum(c.size for c in found.copies)
    assert found.converted <= copied <= want.size
    assert bool(found.converted) == any(blocks[slot] != block for slot in found.slots)


def test_a_blocked_piece_that_is_wanted_as_it_is_held_is_not_copied() -> None:
    held = {0: WHOLE, 1: stored(Region.full(SHAPE), 4)}
    slots = dict.fromkeys(held, Piece("t", Region.full(SHAPE)))
    for block, slot in ((0, 0), (4, 1)):
        found = plan_copy(slots[0], slots, {1: 4}, block)
        assert found is not None and found.make(held) is held[slot]


def test_scratch_is_used_again_and_its_arrays_do_not_overlap() -> None:
    scratch = Scratch()
    addresses = []
    for _ in range(3):
        scratch.clear()
        one = scratch.empty((3, 5), np.dtype(np.float32))
        two = scratch.empty((7,), np.dtype(np.int8))
        one[...], two[...] = 1, 2
        assert (one == 1).all() and (two == 2).all()
        addresses.append((one.ctypes.data, two.ctypes.data))
    assert addresses[1] == addresses[2]
    assert all(address % 64 == 0 for address in addresses[2])
    assert scratch.empty((1,), np.dtype(object)).dtype == object
    assert 0 < scratch.nbytes < 512
