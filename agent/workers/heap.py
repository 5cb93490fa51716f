"""Heap: what the C library of a worker process is told about memory. A rule.

Sessions have no arenas of their own (execution/runtime/cpu_sessions.py), so each run takes the memory of its large tensors
from the system and gives it back. In pages of 4 kB that took a third of the time of a detector of text, whose tensors have
up to tens of megabytes. In pages of 2 MB it takes next to none, and the process keeps no more memory than before.
"""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "GLIBC_TUNABLES"
HUGE_PAGES = "glibc.malloc.hugetlb"
"""Asks the kernel for pages of 2 MB, of which it gives what is free. Since glibc 2.35; others ignore it, and so does a
kernel whose transparent huge pages are off."""


def ask_for_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker process whose heap has huge pages, unless its user decided otherwise.

    >>> ask_for_huge_pages({"HOME": "/root"})
    {'HOME': '/root', 'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=1'}
    >>> ask_for_huge_pages({"GLIBC_TUNABLES": "glibc.malloc.check=0"})
    {'GLIBC_TUNABLES': 'glibc.malloc.check=0:glibc.malloc.hugetlb=1'}
    >>> ask_for_huge_pages({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"})
    {'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=0'}
    """
    tunables = environment.get(VARIABLE, "")
    if HUGE_PAGES in tunables:
        return dict(environment)
    return {**environment, VARIABLE: ":".join(filter(None, (tunables, f"{HUGE_PAGES}=1")))}
