"""The numbered log against a plain list, and its listeners."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.chronicle.numbered_log import NumberedLog


@given(st.integers(1, 7), st.integers(0, 20), st.integers(-3, 25))
def test_a_reader_gets_what_came_after_its_place(most: int, count: int, place: int) -> None:
    log: NumberedLog[str] = NumberedLog(most)
    for number in range(1, count + 1):
        log.add(f"entry {number}")
    seen = place if 0 <= place <= count else 0
    after = [(number, f"entry {number}") for number in range(seen + 1, count + 1)]
    page = log.after(place)
    assert list(page.entries) == after[-most:]
    assert page.forgotten == len(after) - len(page.entries)
    assert log.last == count


def test_listeners_are_told_until_they_stop_and_lives_differ() -> None:
    log: NumberedLog[int] = NumberedLog(3)
    heard: list[int] = []
    with log.listening(lambda: heard.append(log.last)), log.listening(lambda: heard.append(-log.last)):
        log.add(10)
    log.add(11)
    assert heard == [1, -1]
    assert log.life != NumberedLog[int](3).life


def test_a_listener_ends_with_the_block_that_fails() -> None:
    log: NumberedLog[int] = NumberedLog(3)
    heard: list[int] = []
    with pytest.raises(KeyError), log.listening(lambda: heard.append(1)):
        raise KeyError
    log.add(1)
    assert not heard
