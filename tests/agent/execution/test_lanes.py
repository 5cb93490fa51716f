"""How a compute thread waits: for other threads that wake it, and for frames that it reads itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from edgepart.agent.execution.lanes import Lane

BOUND_S = 15.0


class Pipe:
    """A connection of one-byte frames."""

    def __init__(self, take: Callable[[], None] = lambda: None, *, free: bool = True) -> None:
        self._out, self._into = os.pipe()
        self._take = take
        self._free = free
        self.held = 0
        """Frames that were received already."""
        self.broken = False
        self.readers: list[threading.Thread] = []
        self.log: list[str] = []

    def send(self) -> None:
        os.write(self._into, b"x")

    def borrow(self) -> bool:
        self.log.append("borrow")
        return self._free

    def fileno(self) -> int:
        return self._out

    @property
    def holds_bytes(self) -> bool:
        return self.held > 0

    def read(self) -> bool:
        if self.broken:
            return False
        if self.held:
            self.held -= 1
        else:
            os.read(self._out, 1)
        self.readers.append(threading.current_thread())
        self._take()
        return True

    def end_loan(self) -> None:
        self.log.append("end")

    def give_back(self) -> None:
        self.log.append("give back")


class Waiting:
    """A lane whose thread does what it is told to."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.lane = Lane("photos", self.lock)
        self.done = threading.Event()

    @contextmanager
    def waits(self, patience_s: float | None, pipes: tuple[Pipe, ...] = (), times: int = 1) -> Iterator[None]:
        def work() -> None:
            with self.lock:
                for _ in range(times):
                    self.lane.wait(patience_s, pipes)
            self.done.set()

        thread = self.lane.start(work, "lane")
        yield
        assert self.done.wait(BOUND_S)
        thread.join(BOUND_S)
        assert not thread.is_alive()

    def wake(self) -> None:
        with self.lock:
            self.lane.wake()


def test_a_wait_ends_when_another_thread_wakes_the_lane_or_after_a_while() -> None:
    one = Waiting()
    with one.waits(None):
        while not one.done.wait(0.01):  # A wake before the wait counts for nothing, as for a condition.
            one.wake()
    other = Waiting()
    with other.waits(0.01):
        pass
    other.wake()  # Of a lane whose thread has ended.


def test_a_lane_reads_what_it_waits_for_until_that_wakes_it() -> None:
    one, came = Waiting(), []

    def take() -> None:
        came.append(1)
        if len(came) == 3:
            one.wake()

    pipe = Pipe(take)
    with one.waits(None, (pipe,)):
        for _ in range(5):
            pipe.send()
    assert len(came) == 3, "The rest is for another thread."
    assert {thread.name for thread in pipe.readers} == {"lane"}
    assert pipe.log == ["borrow", "end"]


def test_frames_that_were_received_already_are_not_waited_for() -> None:
    one = Waiting()
    pipe = Pipe(one.wake)
    pipe.held = 2
    with one.waits(None, (pipe,)):
        pass
    assert pipe.held == 1


def test_a_connection_that_another_thread_reads_is_left_to_it() -> None:
    one = Waiting()
    pipe = Pipe(one.wake, free=False)
    with one.waits(0.05, (pipe,)):
        pipe.send()
    assert pipe.readers == []
    assert pipe.log == ["borrow"]


@pytest.mark.parametrize("held", [0, 1])
def test_a_connection_that_breaks_is_left_to_the_thread_that_says_so(held: int) -> None:
    """It stays readable for ever, and its own thread can only end the link when the loan has ended."""
    one = Waiting()
    pipe = Pipe()
    pipe.broken, pipe.held = True, held
    with one.waits(None, (pipe,)):
        pipe.send()
    assert pipe.log == ["borrow", "end"]


def test_of_several_connections_all_are_read_and_what_is_not_needed_any_more_is_given_back() -> None:
    one = Waiting()
    left, right, other = Pipe(), Pipe(one.wake), Pipe(one.wake)
    with one.waits(None, (left, right)):
        left.send()
        right.send()
    assert len(right.readers) == 1
    one.done.clear()
    other.send()
    with one.waits(None, (right, other)):
        pass
    assert left.log[-1] == "give back"
    assert "give back" not in right.log
