"""Open files: how many this process may have, and how many of them strangers and clients get. Door: the system's limit."""

from __future__ import annotations

import resource

SPARE_FILES = 256
"""That the process may open besides clients' connections: links, models, weights."""
MOST_FILES = 16384
"""More than that this process does not ask the system for."""


def open_files() -> int:
    """How many files this process may have open; it asks the system for more where it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return MOST_FILES if soft == resource.RLIM_INFINITY else soft


def for_clients(files: int) -> int:
    """Connections over HTTP at once: all that are not spared, and a quarter where there are few.

    >>> for_clients(1024), for_clients(64)
    (768, 16)
    """
    return max(files - SPARE_FILES, files // 4, 1)


def for_strangers(files: int) -> int:
    """Connections at once that are not known to be a member's.

    >>> for_strangers(1024), for_strangers(64)
    (128, 8)
    """
    return max(files // 8, 1)
