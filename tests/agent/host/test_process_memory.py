"""What an agent takes and gives back. Its own process; sizes are chosen far above what anything else does meanwhile."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgepart.agent.host import process_memory, system
from edgepart.planner.devices.cluster import Device
from edgepart.planner.errors import UsageError

MEGABYTE = 1 << 20
DEVICE = Device("box", "k", 1e9, 1e9, 4e9)


def test_what_is_mapped_and_read_is_resident_until_it_is_given_back(tmp_path: Path) -> None:
    (tmp_path / "table").write_bytes(bytes(64 * MEGABYTE))
    other = tmp_path.parent / "other"
    other.write_bytes(bytes(32 * MEGABYTE))
    table, kept = np.memmap(tmp_path / "table", mode="r"), np.memmap(other, mode="r")
    before = system.resident_bytes()
    assert table[::4096].sum() == kept[::4096].sum() == 0
    read = system.resident_bytes()
    assert read - before > 90 * MEGABYTE
    process_memory.give_back_files(tmp_path)
    given = read - system.resident_bytes()
    assert 50 * MEGABYTE < given < 80 * MEGABYTE  # the other file is not below that folder
    assert table[5000] == 0


def test_what_was_written_into_a_mapping_stays(tmp_path: Path) -> None:
    """It goes to no file, and would be lost."""
    (tmp_path / "table").write_bytes(bytes(MEGABYTE))
    table = np.memmap(tmp_path / "table", mode="c")
    table[7] = 42
    process_memory.give_back_files(tmp_path)
    assert table[7] == 42


def test_programs_are_given_back_too_and_go_on() -> None:
    """What starting needed of them: most of an interpreter's libraries."""
    code = """
import numpy
from edgepart.agent.host import process_memory, system
before = system.resident_bytes()
process_memory.give_back_files(process_memory.PROGRAMS)
given = before - system.resident_bytes()
assert numpy.linalg.inv(numpy.eye(3)).trace() == 3
print(given)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 5 * MEGABYTE


def test_freed_heaps_are_given_back() -> None:
    """In a process of its own: what others allocate between would hold the heap up."""
    code = """
import ctypes
from edgepart.agent.host.process_memory import give_back
from edgepart.agent.host.system import resident_bytes
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
pieces = [libc.malloc(60_000) for _ in range(2000)]
for piece in pieces:
    ctypes.memset(piece, 1, 60_000)
for piece in pieces[:-1]:
    libc.free(piece)
before = resident_bytes()
give_back()
print(before - resident_bytes())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 100_000_000


@pytest.mark.parametrize(
    ("mapped", "asked", "granted"),
    [(0, 32, True), (0, 160, False), (128, 160, True), (128, 320, False)],
)
def test_own_memory_is_limited_and_stacks_of_threads_do_not_count(
    mapped: int, asked: int, granted: bool
) -> None:
    """The 32 threads reserve 256 MiB for their stacks, twice the limit; the interpreter takes about 20 MiB."""
    code = f"""
import threading
from edgepart.agent.host.process_memory import limit_own_memory
end = threading.Event()
threads = [threading.Thread(target=end.wait, daemon=True) for _ in range(32)]
[thread.start() for thread in threads]
limit_own_memory(128 << 20, {mapped} << 20)
try:
    print(len(bytes({asked} << 20)))
except MemoryError:
    print("refused")
end.set()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (str(asked << 20) if granted else "refused")


def test_a_hard_limit_from_outside_is_kept() -> None:
    code = """
import resource
from edgepart.agent.host.process_memory import limit_own_memory
resource.setrlimit(resource.RLIMIT_DATA, (600 << 20, 600 << 20))
limit_own_memory(1 << 40)
print(resource.getrlimit(resource.RLIMIT_DATA))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str((600 << 20, 600 << 20))


def test_a_limit_is_on_the_whole_agent() -> None:
    assert process_memory.within(DEVICE, None, 100 * MEGABYTE) == DEVICE
    left = process_memory.within(DEVICE, 300 * MEGABYTE, 100 * MEGABYTE).memory_bytes
    assert left == 200 * MEGABYTE - process_memory.SERVING_BYTES - process_memory.WORKER_BYTES
    with pytest.raises(UsageError, match="without any plan takes"):
        process_memory.within(DEVICE, 100 * MEGABYTE, 100 * MEGABYTE)


def test_whoever_is_over_the_limit_gives_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Looks are as many as the test lets pass; the wait between them doubles while it does not help."""
    sizes = iter([40, 120, 120, 80, 80, 40, 120, 110, 110, 110, 120, 110, 110, 110])
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) > 5:
            raise asyncio.CancelledError

    class Worker:
        def own_bytes(self) -> int:
            return 10 * MEGABYTE

        def give_back(self) -> None:
            pass

    monkeypatch.setattr(process_memory, "resident_bytes", lambda: next(sizes) * MEGABYTE)
    monkeypatch.setattr(asyncio, "sleep", wait)
    with caplog.at_level("INFO"), pytest.raises(asyncio.CancelledError):
        asyncio.run(process_memory.keep_within(100 * MEGABYTE, tmp_path, Worker()))
    assert waits == [1, 1, 1, 1, 2, 4]
    assert "31.5 MB over the memory limit; gave back 41.9 MB" in caplog.text


def test_the_figures_are_of_this_process() -> None:
    held = mmap.mmap(-1, 64 * MEGABYTE)
    before = system.resident_bytes()
    ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(held)), 1, len(held))
    assert system.resident_bytes() - before > 60 * MEGABYTE
    assert system.resident_bytes() % os.sysconf("SC_PAGE_SIZE") == 0
