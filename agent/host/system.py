"""System: reads what the operating system tells about the machine. Door: psutil, /proc and the C library.

Containers, emulators and seccomp may hide any of it. A value that cannot be read is taken from the next best source or is
unknown; that never ends an agent.
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
"""The errors of reading a system that is not as expected: psutil's parsers raise any of these."""
_OUTSIDE = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses that no machine has (they are reserved for documentation). The route to them is the default route; nothing is
sent there."""
_told: set[str] = set()


def read_or_none(what: str, read: Callable[[], T]) -> T | None:
    """The result of `read`; None if it cannot be read, which is logged once for each `what`."""
    try:
        return read()
    except UNREADABLE as error:
        if what not in _told:
            _told.add(what)
            log.warning("the system does not tell %s (%r); it counts as unknown", what, error)
        return None


def text_of(path: Path) -> str:
    """The text of a system file; "" if there is none or this process may not read it."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def have_temporary_folder(own: Path) -> None:
    """Put temporary files of this process and of the processes that it starts into `own`, if no other folder can be written
    to (the root is read-only)."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        os.environ["TMPDIR"] = str(own)


def lower_priority(niceness: int) -> None:
    """Add to the niceness of this thread (of this process, if it has no other), which only root may take back. A sandbox
    that forbids it leaves the priority as it is."""
    read_or_none("how to give work a lower priority", lambda: os.nice(niceness))


def cores() -> int:
    """How many cores this process may run on."""
    allowed = read_or_none("which cores may be used", lambda: len(os.sched_getaffinity(0)))
    return allowed or os.cpu_count() or 1


def memory() -> tuple[int, int]:
    """The available and the total bytes of the machine's memory; 0 if unknown."""
    found = read_or_none("its memory", psutil.virtual_memory)
    if found is not None:
        return int(found.available), int(found.total)
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    free = read_or_none("its free memory", lambda: os.sysconf("SC_AVPHYS_PAGES"))
    total = read_or_none("its whole memory", lambda: os.sysconf("SC_PHYS_PAGES"))
    return page_bytes * max(free or 0, 0), page_bytes * max(total or 0, 0)


def swap() -> tuple[int, int]:
    """The used and the total bytes of swap; 0 if unknown."""
    found = read_or_none("its swap", psutil.swap_memory)
    return (int(found.used), int(found.total)) if found is not None else (0, 0)


def resident_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """The resident memory of this process, mapped files included; if unknown, the most that it ever had."""
    fields = text_of(statm).split()
    if len(fields) > 1 and fields[1].isdigit():
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def own_bytes(process: int) -> int:
    """The resident memory of another process, without mapped files and shared memory, which are counted elsewhere. 0 if it
    is unknown or the process has ended."""
    fields = text_of(Path(f"/proc/{process}/statm")).split()
    if len(fields) < 3 or not (fields[1].isdigit() and fields[2].isdigit()):
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def interface_states() -> dict[str, Any]:
    """psutil's statistics of the network interfaces, by name; {} if unknown."""
    return read_or_none("which of its interfaces are up", psutil.net_if_stats) or {}


def interface_addresses() -> dict[str, list[Any]]:
    """psutil's addresses of the network interfaces, by name; {} if unknown."""
    return read_or_none("its addresses", psutil.net_if_addrs) or {}


def outgoing_addresses() -> list[str]:
    """The addresses of this machine from which it would reach the internet, one per family."""
    found = []
    for there, family in _OUTSIDE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((there, 9))
                found.append(str(probe.getsockname()[0]))
        except OSError:
            continue  # no route in this family
    return found


def thread_times(processes: Iterable[int], proc: Path = Path("/proc")) -> dict[int, tuple[int, int]]:
    """The nanoseconds that each thread of these processes was on a CPU and waited for one, by thread id; {} if the kernel
    does not tell. A process that has ended has no threads."""
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
    """The first 256 bytes of a system file. This costs a quarter of text_of: an idle agent reads dozens of such files every
    two seconds."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(file, 256)
    except OSError:
        return b""  # the thread has just ended
    finally:
        os.close(file)
