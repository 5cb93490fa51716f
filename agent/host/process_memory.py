"""Process memory: what this process takes of the machine's memory, and how it gives back what it does not need. Door: /proc
and the C library.

The calls that tune the heap do nothing if the C library is not glibc.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import re
import resource
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from edgepart.agent.host.system import resident_bytes, text_of
from edgepart.planner.devices.cluster import Device
from edgepart.planner.errors import UsageError

SERVING_BYTES = 6 << 20
"""Memory that a serving agent takes besides its plans: frames, connections, and what it knows of members."""

WORKER_BYTES = 40 << 20
"""Memory that a worker takes before it has a program. One worker is taken off the limit, as nothing is computed without
one."""
CHECK_S = 1.0
"""How often an agent with a memory limit checks that it keeps to it."""
MOST_CHECK_S = 60.0
"""The longest time between checks: it doubles up to this while giving memory back does not help."""

PROGRAMS = Path("/")
"""The folder of programs and their libraries, which may lie anywhere."""

_LIBC = ctypes.CDLL(None)
_ARENA_MAX = -8
"""M_ARENA_MAX of malloc.h."""
_DONTNEED = 4
"""MADV_DONTNEED of mman.h."""

log = logging.getLogger(__name__)


def give_back() -> None:
    """Return memory to the system that this process has freed but still holds. It takes some milliseconds, so call it after
    large work and not after every request."""
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


def give_back_all() -> None:
    """Return freed memory to the system, and pages of programs and libraries, of which an agent needs few after its start.
    It takes some hundredths of a second."""
    give_back()
    give_back_files(PROGRAMS)


def share_heaps(count: int = 2) -> None:
    """Let all threads share `count` heaps. Otherwise each thread has a heap, and dozens of threads that seldom work would
    each keep a little memory. Call this before threads are started."""
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_ARENA_MAX, count)


def limit_own_memory(
    limit_bytes: int, mapped_bytes: int = 0, status: Path = Path("/proc/self/status")
) -> None:
    """Refuse this process memory of its own beyond `limit_bytes`: Python then raises MemoryError, and C++ std::bad_alloc.

    RLIMIT_DATA counts what is reserved, and a process reserves much that it never uses: 8 MiB for the stack of each
    thread, and the heaps' growth. What is reserved and unused now is therefore allowed in addition, and so are
    `mapped_bytes`, the sizes of files that ONNX Runtime maps privately: their pages can be read again, but count as
    reserved. Call this again when threads were started or other files will be mapped."""
    kilobytes = {
        key: int(value) for key, value in re.findall(r"^(\w+):\s*(\d+) kB$", text_of(status), re.MULTILINE)
    }
    used = kilobytes.get("RssAnon", 0) + kilobytes.get("VmSwap", 0)
    unused_bytes = max(kilobytes.get("VmData", 0) - used, 0) << 10
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = limit_bytes + mapped_bytes + unused_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (soft if hard < 0 else min(soft, hard), hard))


def within(device: Device, limit_bytes: int | None, resident: int) -> Device:
    """The device with the memory that is left for plans under a limit for the whole agent, which takes
    `resident` bytes now. Raises UsageError if nothing is left."""
    if limit_bytes is None:
        return device
    needed = resident + SERVING_BYTES + WORKER_BYTES
    left = limit_bytes - needed
    if left <= 0:
        raise UsageError(
            f"--memory-limit {limit_bytes}: an agent without any plan takes {needed:,} bytes here; "
            "give more than that"
        )
    return replace(device, memory_bytes=float(left))


def give_back_files(folder: Path, smaps: Path = Path("/proc/self/smaps")) -> None:
    """Give back the pages of mapped files below `folder`; they are read again when needed, mostly from the system's cache.

    Mappings with pages that were written stay whole, because those pages are in no file. The root folder includes
    programs, much of which is needed only to start. Nothing happens if the system does not tell what is mapped."""
    try:
        lines = smaps.open(errors="replace")
    except OSError:
        return
    with lines:  # One line at a time, as all of them are half a megabyte.
        for start, stop in _clean_mappings(lines, str(folder.resolve()).rstrip("/")):
            _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), _DONTNEED)


def _clean_mappings(smaps: Iterable[str], folder: str) -> Iterator[tuple[int, int]]:
    """The start and end addresses of mapped files below `folder` of which no page was written.

    >>> lines = "7f00-7f10 r--p 0 fe:01 9 /s/table", "Anonymous:  0 kB", "7f20-7f30 rw-p 0 fe:01 9 /s/x"
    >>> list(_clean_mappings([*lines, "Anonymous: 4 kB"], "/s"))
    [(32512, 32528)]
    """
    here: tuple[int, int] | None = None
    for line in smaps:
        if head := re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+\s*(.*)", line):
            below = head[3].startswith(f"{folder}/") and not head[3].startswith("/dev/")
            here = (int(head[1], 16), int(head[2], 16)) if below else None
        elif here and line.startswith("Anonymous:") and line.split()[1] == "0":
            yield here


class Others(Protocol):
    """The processes that count towards the limit with this one: the workers (device_workers.py)."""

    def own_bytes(self) -> int: ...

    def give_back(self) -> None: ...


async def keep_within(limit_bytes: int, files: Path, others: Others) -> None:
    """Give memory back until cancelled, whenever this process and `others` together have more than the limit
    resident."""
    wait_s = CHECK_S
    while True:
        await asyncio.sleep(wait_s)
        if (before := resident_bytes() + others.own_bytes()) <= limit_bytes:
            wait_s = CHECK_S
            continue
        await asyncio.to_thread(give_back)
        await asyncio.to_thread(others.give_back)
        for folder in (files, PROGRAMS):
            if resident_bytes() + others.own_bytes() > limit_bytes:
                await asyncio.to_thread(give_back_files, folder)
        after = resident_bytes() + others.own_bytes()
        log.info(
            "%.1f MB over the memory limit; gave back %.1f MB",
            *_megabytes(before - limit_bytes, before - after),
        )
        wait_s = CHECK_S if after <= limit_bytes else min(2 * wait_s, MOST_CHECK_S)


def _megabytes(*sizes: int) -> Iterator[float]:
    return (size / 1e6 for size in sizes)
