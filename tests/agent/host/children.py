"""The child processes that this process has, as the operating system lists them."""

from __future__ import annotations

import psutil


def running(name: str) -> set[psutil.Process]:
    """The children that `start_child` started by that name and that have not ended."""
    found = [one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE]
    return {one for one in found if name in one.cmdline()}
