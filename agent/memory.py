"""Memory: what this process takes of the machine's, and how it gives back what it does not need. Door: /proc and the C
library.

Where the C library is not glibc, it has its own ways, and these calls do nothing.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace
from pathlib import Path

from edgepart.planner.cluster import Device
from edgepart.planner.errors import UsageError

SERVING_BYTES = 16 << 20
"""What an agent comes to take while it serves, besides its plans: frames, connections, what it knows of others."""

_LIBC = ctypes.CDLL(None)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ARENA_MAX = -8
"""M_ARENA_MAX of malloc.h."""


def resident_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """Of this process now: its own, and files that are mapped into it."""
    return int(statm.read_text().split()[1]) * _PAGE_BYTES


def give_back() -> None:
    """What was freed, and is kept for the next time, becomes the machine's again. Some milliseconds: for the moments
    after something large, not for every request."""
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


def share_heaps(count: int = 2) -> None:
    """Threads share so many heaps, where each has its own otherwise: dozens that live for a frame now and then would
    keep a little in each. Before they are started."""
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_ARENA_MAX, count)


def within(device: Device, limit_bytes: int | None, resident: int) -> Device:
    """The device with what a limit on the whole agent, which takes `resident` now, leaves for plans. UsageError where
    that is nothing."""
    if limit_bytes is None:
        return device
    left = limit_bytes - resident - SERVING_BYTES
    if left <= 0:
        raise UsageError(
            f"--memory-limit {limit_bytes}: an agent without any plan takes {resident + SERVING_BYTES:,} bytes here; "
            "give more than that"
        )
    return replace(device, memory_bytes=float(left))
