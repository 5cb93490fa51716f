"""Load turns: one piece of work at a time, and what is urgent first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

import pytest

from edgepart.agent.execution.prepared import LoadUrgency
from edgepart.agent.workers.load_turns import LoadTurns
from tests.waiting import BOUND_S, eventually

BACKGROUND, COMING, AWAITED = LoadUrgency


def test_one_turn_at_a_time_and_urgent_work_first() -> None:
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
        held = threads.submit(turns.take, hold, COMING)
        assert began.wait(BOUND_S)
        asked = []
        wanted = [("d", BACKGROUND), ("b", COMING), ("c", COMING), ("a", AWAITED)]
        for count, (name, urgency) in enumerate(wanted, 1):
            asked.append(threads.submit(turns.take, partial(work, name), urgency))
            eventually(partial(waits, count))
        assert done == []
        release.set()
        assert [one.result(BOUND_S) for one in (held, *asked)] == ["held", "d", "b", "c", "a"]
    assert done == ["held", "a", "b", "c", "d"]


@pytest.mark.parametrize("urgency", LoadUrgency)
@pytest.mark.parametrize("under_way", LoadUrgency)
def test_only_more_urgent_work_passes_what_is_under_way(urgency: LoadUrgency, under_way: LoadUrgency) -> None:
    turns, done = LoadTurns(), list[str]()
    with ThreadPoolExecutor() as threads:

        def slow() -> None:
            other = threads.submit(turns.take, lambda: done.append("other"), urgency)
            eventually(lambda: turns.waiting == 1)
            turns.let_pass(under_way)
            if urgency > under_way:
                other.result(BOUND_S)
            done.append("slow")

        turns.take(slow, under_way)
    assert done == (["other", "slow"] if urgency > under_way else ["slow", "other"])


def test_what_fails_tells_only_the_thread_that_asked() -> None:
    turns = LoadTurns()

    def fail() -> None:
        raise ValueError("it fails")

    with ThreadPoolExecutor() as threads:

        def slow() -> str:
            asked = threads.submit(turns.take, fail, AWAITED)
            eventually(lambda: turns.waiting == 1)
            turns.let_pass(COMING)
            with pytest.raises(ValueError, match="it fails"):
                asked.result(BOUND_S)
            return "done"

        assert turns.take(slow, COMING) == "done"
    with pytest.raises(ValueError, match="it fails"):
        turns.take(fail, COMING)
    assert turns.take(lambda: 5, AWAITED) == 5
