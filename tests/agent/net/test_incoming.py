"""A connection whose frames are read by its own thread, and by another that waits for them."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepart.agent.net.incoming import IncomingConnection
from edgepart.agent.security import identity
from edgepart.agent.wire.frames import Frame
from tests.agent.net.linked import BOUND_S, Station, stations
from tests.agent.security.test_identity import NOW, admit


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> list[identity.Identity]:
    root: Path = tmp_path_factory.mktemp("members")
    first = identity.create_cluster(root / "0", NOW)
    return [first, admit(first, root / "1")]


@pytest.fixture
def pair(members: list[identity.Identity]) -> Iterator[tuple[Station, Station]]:
    with stations(*members) as (a, b):
        a.transport.connect(b.node_id, [b.address])
        a.until(lambda: bool(a.links))
        b.until(lambda: bool(b.links))
        yield a, b


def connection(pair: tuple[Station, Station]) -> IncomingConnection:
    """The one on which the first station receives data, once its own thread waits for it."""
    a, b = pair
    b.transport.send(a.node_id, "data", Frame("first"))
    a.until(lambda: bool(a.frames))
    found = a.transport.data_from(b.node_id)
    assert found is not None
    borrow(found)
    found.end_loan()
    return found


def borrow(found: IncomingConnection) -> None:
    until = time.monotonic() + BOUND_S
    while not found.borrow():
        assert time.monotonic() < until


def numbers(station: Station) -> list[int]:
    return [frame.header["n"] for _, _, frame in station.frames if frame.header]


def await_readable(found: IncomingConnection) -> None:
    if not found.holds_bytes:
        assert select.select([found.fileno()], [], [], BOUND_S)[0]


def test_whoever_reads_all_frames_come_once_and_in_order(pair: tuple[Station, Station]) -> None:
    a, b = pair
    found, count, mine = connection(pair), 400, [0]
    names: list[str] = []
    a.handle = lambda *_: names.append(threading.current_thread().name)

    def read_now_and_then() -> None:
        while len(numbers(a)) < count:
            if found.borrow():
                for _ in range(3):
                    if found.holds_bytes or select.select([found.fileno()], [], [], 0.001)[0]:
                        found.read()
                        mine[0] += 1
                found.end_loan()
            time.sleep(0)

    thread = threading.Thread(target=read_now_and_then, name="borrower")
    thread.start()
    for n in range(count):
        size = (0, 3, 20_000, 200)[n % 4]
        b.transport.send(a.node_id, "data", Frame("x", {"n": n}, (bytes([n % 256]) * size,)))
    a.until(lambda: len(numbers(a)) == count)
    thread.join(BOUND_S)
    assert numbers(a) == list(range(count))
    assert all(
        bytes(f.body) == bytes([f.header["n"] % 256]) * len(f.body) for _, _, f in a.frames if f.header
    )
    assert names.count("borrower") == mine[0] > 0


def test_a_frame_is_handled_by_the_thread_that_borrows(pair: tuple[Station, Station]) -> None:
    a, b = pair
    found, names = connection(pair), []
    a.handle = lambda *_: names.append(threading.current_thread())
    borrow(found)
    b.transport.send(a.node_id, "data", Frame("x", {"n": 0}))
    await_readable(found)
    found.read()
    assert names == [threading.current_thread()]
    assert not found.borrow(), "It is borrowed already."
    found.end_loan()
    found.give_back()
    b.transport.send(a.node_id, "data", Frame("x", {"n": 1}))
    a.until(lambda: numbers(a) == [0, 1])
    assert names[1] is not threading.current_thread()


def test_what_a_borrower_leaves_unread_is_read_all_the_same(pair: tuple[Station, Station]) -> None:
    a, b = pair
    found = connection(pair)
    borrow(found)
    for n in range(3):
        b.transport.send(a.node_id, "data", Frame("x", {"n": n}))
    await_readable(found)
    found.read()
    found.end_loan()  # And does not come back.
    a.until(lambda: numbers(a) == [0, 1, 2])


def test_the_end_of_the_link_ends_a_loan(pair: tuple[Station, Station]) -> None:
    a, b = pair
    found = connection(pair)
    borrow(found)
    b.transport.close(a.node_id, "enough")
    await_readable(found)
    assert not found.read()
    found.end_loan()
    a.until(lambda: (b.node_id, False) in a.changes())
    assert not found.borrow()
    assert a.transport.data_from(b.node_id) is not found


def test_an_error_while_a_frame_is_handled_ends_the_link(pair: tuple[Station, Station]) -> None:
    a, b = pair
    found = connection(pair)

    def fail(*_: object) -> None:
        raise KeyError("a defect")

    a.handle = fail
    borrow(found)
    b.transport.send(a.node_id, "data", Frame("x", {"n": 0}))
    await_readable(found)
    assert not found.read()
    found.end_loan()
    a.until(lambda: (b.node_id, False) in a.changes())
    assert "a defect" in a.links[-1][2]
