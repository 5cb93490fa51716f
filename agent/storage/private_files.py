"""Private files: writes the files under STATE/identity, for the agent and for commands. Door: files.

If root runs a command for an agent of another user (`sudo edgepart token create`), that user can read the files.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgepart.agent.storage.atomic_files import move, write_atomic


def write_private(path: Path, data: bytes) -> None:
    """Replace a file atomically, with mode 0600 and the owner of its folder; it is on disk when this returns."""
    owner = path.parent.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        write_atomic(path, data)
        return
    draft = path.with_name(f"{path.name}.draft")
    write_atomic(draft, data)
    os.chown(
        draft, owner.st_uid, owner.st_gid
    )  # before the rename, because the agent may read the file at any time
    move(draft, path)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, so that only one process at a time, agent or command, changes its files."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
