"""System: what the machine says of itself, where it says it. Door: psutil, /proc, /sys and the C library.

Containers, emulators and seccomp hide any of it. What cannot be read is unknown: the next best source answers, or nothing
does, and no agent ends for that.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import psutil

log = logging.getLogger(__name__)
T = TypeVar("T")

UNREADABLE = (OSError, ValueError, RuntimeError, LookupError, AttributeError, NotImplementedError)
"""What reads of the system raise where it is not as they expect: psutil's parsers any of these."""
_OUTSIDE = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses that nobody has: what is sent there would leave by the way out, and nothing is sent."""
_told: set[str] = set()


def known(what: str, read: Callable[[], T]) -> T | None:
    """What `read` gives; None where it cannot be read, which the log says once."""
    try:
        return read()
    except UNREADABLE as error:
        if what not in _told:
            _told.add(what)
            log.warning("the system does not tell %s (%r); it counts as unknown", what, error)
        return None


def text_of(path: Path) -> str:
    """What is in a file of the system; "" where there is none, or none for us."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def have_temporary_folder(own: Path) -> None:
    """Where nothing else can be written to (a read-only root), temporary files of this process and of those that it
    starts go into `own`."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        os.environ["TMPDIR"] = str(own)


def cores() -> int:
    """That this process may run on."""
    allowed = known("which cores may be used", lambda: len(os.sched_getaffinity(0)))
    return allowed or os.cpu_count() or 1


def memory() -> tuple[int, int]:
    """Bytes of the machine's memory that can still be had, and all of them; 0 for what is unknown."""
    found = known("its memory", psutil.virtual_memory)
    if found is not None:
        return int(found.available), int(found.total)
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    free = known("its free memory", lambda: os.sysconf("SC_AVPHYS_PAGES"))
    total = known("its whole memory", lambda: os.sysconf("SC_PHYS_PAGES"))
    return page_bytes * max(free or 0, 0), page_bytes * max(total or 0, 0)


def swap() -> tuple[int, int]:
    """Bytes that are in use, and all of them; 0 for what is unknown."""
    found = known("its swap", psutil.swap_memory)
    return (int(found.used), int(found.total)) if found is not None else (0, 0)


def resident_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """Of this process now: its own, and files that are mapped into it; the most that it ever took where that is unknown."""
    fields = text_of(statm).split()
    if len(fields) > 1 and fields[1].isdigit():
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def own_bytes(process: int) -> int:
    """Of another process, without files and memory that it shares: those are counted where they come from. 0 where that
    is unknown, or it has ended."""
    fields = text_of(Path(f"/proc/{process}/statm")).split()
    if len(fields) < 3 or not (fields[1].isdigit() and fields[2].isdigit()):
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def interface_states() -> dict[str, Any]:
    """By name, psutil's statistics; {} where they are unknown."""
    return known("which of its interfaces are up", psutil.net_if_stats) or {}


def interface_addresses() -> dict[str, list[Any]]:
    """By name, psutil's addresses; {} where they are unknown."""
    return known("its addresses", psutil.net_if_addrs) or {}


def outgoing_addresses() -> list[str]:
    """Of this machine, by which it would reach others."""
    found = []
    for there, family in _OUTSIDE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((there, 9))
                found.append(str(probe.getsockname()[0]))
        except OSError:
            continue  # no way out by this family
    return found


def thread_times(processes: Iterable[int], proc: Path = Path("/proc")) -> dict[int, tuple[int, int]]:
    """By thread of these processes, nanoseconds on a CPU and waiting for one; {} where the kernel does not tell. A process
    that has ended has none."""
    found = {}
    for process in processes:
        tasks = f"{proc}/{process}/task"
        try:
            threads = os.listdir(tasks)
        except OSError:
            continue
        for thread in threads:
            fields = _short(f"{tasks}/{thread}/schedstat").split()
            if len(fields) == 3 and all(map(bytes.isdigit, fields)):
                found[int(thread)] = int(fields[0]), int(fields[1])
    return found


def _short(path: str) -> bytes:
    """As text_of, with a quarter of its cost: an idle agent reads dozens of these every two seconds."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(file, 256)
    except OSError:
        return b""  # its thread has just ended
    finally:
        os.close(file)
