"""Open files: how many this process may have, and how many of them clients and strangers get. Door: the system's limit."""

from __future__ import annotations

import resource

SPARE_FILES = 256
"""Files that are kept for other uses than clients' connections: links, models and weights."""
MOST_FILES = 16384
"""The most open files that this process asks the system for."""


def open_files() -> int:
    """How many files this process may have open, after raising its limit as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return MOST_FILES if soft == resource.RLIM_INFINITY else soft


def for_clients(files: int) -> int:
    """How many HTTP connections there may be at once: all but the SPARE_FILES, or a quarter of the files if that is more.

    >>> for_clients(1024), for_clients(64)
    (768, 16)
    """
    return max(files - SPARE_FILES, files // 4, 1)


def for_strangers(files: int) -> int:
    """How many connections there may be at once from peers that have not proved to be members.

    >>> for_strangers(1024), for_strangers(64)
    (128, 8)
    """
    return max(files // 8, 1)
