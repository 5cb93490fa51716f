"""The disk queue: what is newest is written, everybody who waits is told, and nothing that fails ends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from edgepart.agent.storage.write_queue import DiskQueue


class Disk:
    """Gets on while `free` is set; writes down what it wrote."""

    def __init__(self) -> None:
        self.free, self.begun = threading.Event(), threading.Event()
        self.written: list[str] = []

    def write(self, what: str, ok: bool = True) -> Callable[[], bool]:
        def do() -> bool:
            self.begun.set()
            assert self.free.wait(10)
            self.written.append(what)
            return ok

        return do


def run(work: Callable[[DiskQueue, Disk], Awaitable[None]]) -> Disk:
    async def main() -> Disk:
        queue, disk = DiskQueue(asyncio.get_running_loop()), Disk()
        try:
            await work(queue, disk)
        finally:
            disk.free.set()
            await asyncio.to_thread(queue.stop)
        return disk

    return asyncio.run(main())


def test_of_what_waits_only_the_newest_is_written_and_all_who_wait_are_told() -> None:
    told: list[tuple[str, bool]] = []

    def tell(what: str) -> Callable[[bool], None]:
        return lambda ok: told.append((what, ok))

    async def work(queue: DiskQueue, disk: Disk) -> None:
        for version in range(4):
            queue.put("map", disk.write(f"map {version}"), tell(f"map {version}"))
            await asyncio.to_thread(disk.begun.wait, 10)
        queue.put("hints", disk.write("hints", ok=False), tell("hints"))
        queue.put("term", disk.write("term"), first=True)
        disk.free.set()
        await queue.caught_up()

    assert run(work).written == ["map 0", "term", "map 3", "hints"]
    assert told == [("map 0", True), ("map 1", True), ("map 2", True), ("map 3", True), ("hints", False)]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ZeroDivisionError()])
def test_what_fails_is_told_and_the_next_is_written(error: Exception) -> None:
    def fail() -> bool:
        raise error

    async def work(queue: DiskQueue, disk: Disk) -> None:
        disk.free.set()
        assert not await queue.write("a", fail)
        assert await queue.write("b", disk.write("b"))

    assert run(work).written == ["b"]


def test_whoever_stops_waits_for_what_is_to_be_written() -> None:
    async def work(queue: DiskQueue, disk: Disk) -> None:
        queue.put("a", disk.write("a"))
        queue.put("b", disk.write("b"))

    assert run(work).written == ["a", "b"]


def test_a_write_that_is_under_way_counts_for_how_slow_the_disk_is() -> None:
    async def work(queue: DiskQueue, disk: Disk) -> None:
        assert queue.write_s == 0.0
        queue.put("a", disk.write("a"))
        await asyncio.to_thread(disk.begun.wait, 10)
        first, second = queue.write_s, queue.write_s
        assert 0.0 < first < second

    run(work)
