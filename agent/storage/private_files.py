"""Private files: how what is under STATE/identity is written by the agent and by commands. Door: files.

A command that root runs for an agent of another user (`sudo edgepart token create`) leaves files that this user can read.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgepart.agent.storage.atomic_files import move, write_atomic


def write_private(path: Path, data: bytes) -> None:
    """Replaces a file, whole, 0600 and on disk when this returns; it belongs to whom its folder belongs."""
    owner = path.parent.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        write_atomic(path, data)
        return
    draft = path.with_name(f"{path.name}.draft")
    write_atomic(draft, data)
    os.chown(draft, owner.st_uid, owner.st_gid)  # before it has its name: the agent may read it at any time
    move(draft, path)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time, agent or command, changes what is in the folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
