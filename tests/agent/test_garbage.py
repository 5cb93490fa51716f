"""A process that plans leaves alone what is there, and looks for garbage seldom; it still looks."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from edgepart.agent.garbage import YOUNG, collect_seldom


@pytest.fixture
def before() -> Iterator[tuple[int, int, int]]:
    """Python's own measure, which holds again afterwards."""
    threshold = gc.get_threshold()
    yield threshold
    gc.unfreeze()
    gc.set_threshold(*threshold)


def test_garbage_is_looked_for_seldom(before: tuple[int, int, int]) -> None:
    collect_seldom()
    assert gc.isenabled() and gc.get_freeze_count() > 0
    assert gc.get_threshold()[0] == YOUNG > before[0]
    rounds = gc.get_stats()[0]["collections"]
    kept: list[list[int]] = [[] for _ in range(YOUNG // 2)]
    assert gc.get_stats()[0]["collections"] - rounds <= 1
    kept += [[] for _ in range(3 * YOUNG)]
    assert gc.get_stats()[0]["collections"] > rounds
