"""What is there is left alone, and garbage is looked for seldom, or not while an agent starts; it still is."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from edgepart.agent.host.garbage_collection import (
    THRESHOLD_YOUNG,
    collect_from_now_on,
    collect_nothing,
    collect_rarely,
)


@pytest.fixture
def eager() -> Iterator[None]:
    """A measure like Python's own, whatever this process did before."""
    threshold = gc.get_threshold()
    gc.set_threshold(THRESHOLD_YOUNG // 50, 10, 10)
    yield
    gc.enable()
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


@pytest.mark.usefixtures("eager")
def test_what_a_start_leaves_is_collected_once_and_what_comes_later_as_usual() -> None:
    collect_nothing()
    gone = weakref.ref(Ring())
    kept: list[list[int]] = [[] for _ in range(2 * THRESHOLD_YOUNG)]
    assert gone() is not None and len(kept) > 0
    collect_from_now_on()
    assert gone() is None and gc.get_freeze_count() > len(kept)
    later = weakref.ref(Ring())
    kept += [[] for _ in range(THRESHOLD_YOUNG)]
    assert later() is None


class Ring:
    """Refers to itself."""

    def __init__(self) -> None:
        self.ring = self
