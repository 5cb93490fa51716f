"""A process that plans leaves alone what is there, and looks for garbage seldom; it still looks."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from edgepart.agent.planwork.garbage_collection import THRESHOLD_YOUNG, collect_rarely


@pytest.fixture
def eager() -> Iterator[None]:
    """A measure like Python's own, whatever this process did before."""
    threshold = gc.get_threshold()
    gc.set_threshold(THRESHOLD_YOUNG // 50, 10, 10)
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("eager")
def test_garbage_is_looked_for_seldom() -> None:
    collect_rarely()
    assert gc.isenabled() and gc.get_freeze_count() > 0
    assert gc.get_threshold()[0] == THRESHOLD_YOUNG
    rounds = gc.get_stats()[0]["collections"]
    kept: list[list[int]] = [[] for _ in range(THRESHOLD_YOUNG // 2)]
    assert gc.get_stats()[0]["collections"] - rounds <= 1
    kept += [[] for _ in range(3 * THRESHOLD_YOUNG)]
    assert gc.get_stats()[0]["collections"] > rounds
