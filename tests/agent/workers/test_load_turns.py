"""Load turns: one piece of work at a time, and what is awaited first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

import pytest

from edgepart.agent.workers.load_turns import LoadTurns
from tests.waiting import BOUND_S, eventually


def test_one_turn_at_a_time_and_awaited_work_first() -> None:
    turns, done, began, release = LoadTurns(), list[str](), Event(), Event()

    def work(name: str) -> str:
        done.append(name)
        return name

    def hold() -> str:
        began.set()
        assert release.wait(BOUND_S)
        return work("held")

    def waits(count: int) -> bool:
        return turns.waiting == count

    with ThreadPoolExecutor(8) as threads:
        held = threads.submit(turns.take, hold, False)
        assert began.wait(BOUND_S)
        asked = []
        for count, (name, awaited) in enumerate([("b", False), ("c", False), ("a", True)], 1):
            asked.append(threads.submit(turns.take, partial(work, name), awaited))
            eventually(partial(waits, count))
        assert done == []
        release.set()
        assert [one.result(BOUND_S) for one in (held, *asked)] == ["held", "b", "c", "a"]
    assert done == ["held", "a", "b", "c"]


@pytest.mark.parametrize("awaited", [False, True])
def test_only_awaited_work_passes_what_is_under_way(awaited: bool) -> None:
    turns, done = LoadTurns(), list[str]()
    with ThreadPoolExecutor() as threads:

        def slow() -> None:
            other = threads.submit(turns.take, lambda: done.append("other"), awaited)
            eventually(lambda: turns.waiting == 1)
            turns.let_awaited_pass()
            if awaited:
                other.result(BOUND_S)
            done.append("slow")

        turns.take(slow, False)
    assert done == (["other", "slow"] if awaited else ["slow", "other"])


def test_what_fails_tells_only_the_thread_that_asked() -> None:
    turns = LoadTurns()

    def fail() -> None:
        raise ValueError("it fails")

    with ThreadPoolExecutor() as threads:

        def slow() -> str:
            asked = threads.submit(turns.take, fail, True)
            eventually(lambda: turns.waiting == 1)
            turns.let_awaited_pass()
            with pytest.raises(ValueError, match="it fails"):
                asked.result(BOUND_S)
            return "done"

        assert turns.take(slow, False) == "done"
    with pytest.raises(ValueError, match="it fails"):
        turns.take(fail, False)
    assert turns.take(lambda: 5, True) == 5
