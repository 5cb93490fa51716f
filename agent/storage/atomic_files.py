"""Atomic files: writes files so that a crash leaves either the old bytes or the new ones, never a mixture. Door: files.

A file is written under another name, its bytes are flushed to disk, it is renamed, and the folder is flushed. If power
fails, the process is killed or the disk is full between any two of these steps, or within one, the name leads to all of
the old bytes or to all of the new ones. Folders that are created on the way are flushed too.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import secrets
import time
from pathlib import Path
from typing import Any

from edgepart.planner.errors import UsageError
from edgepart.planner.json_text import parse_json

log = logging.getLogger(__name__)

NEW = ".new-"
"""The names of unfinished files begin with this."""
DAMAGED = ".damaged"
"""The names of files that could not be read end with this; they are kept so that people can look at them."""
LEFT_S = 60.0
"""An unfinished file that was not written to for this long was left by a crash."""
_CHUNK_BYTES = 1 << 20


def write_atomic(path: Path, data: bytes | memoryview, *, synced: bool = True) -> None:
    """Replace a file. A reader sees either the old bytes or the new ones, even after a crash. The new ones are on disk when
    this returns. The mode is 0600.

    After an OSError nothing has changed, unless only the last flush failed; a crash may then bring the old bytes back.
    Without `synced` a crash may leave any bytes under the name, so use that only for files that are checked when read.
    """
    make_folder(path.parent)
    temporary = path.with_name(f"{NEW}{secrets.token_hex(8)}")
    try:
        _write(temporary, data, synced)
        os.replace(temporary, path)
    except OSError:
        _forget(temporary)
        raise
    if synced:
        flush_folder(path.parent)


def _write(path: Path, data: bytes | memoryview, synced: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        left = memoryview(data)
        while len(left):
            left = left[os.write(descriptor, left[:_CHUNK_BYTES]) :]
        if synced:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _forget(path: Path) -> None:
    """Delete the remains of a file that could not be written. A failure is only logged, because the caller raises the first
    error."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("%s is left behind: %s", path, error)


def move(source: Path, target: Path) -> None:
    """Rename a file or folder, and replace any that has the new name; the new name is on disk when this returns."""
    make_folder(target.parent)
    os.replace(source, target)
    flush_folder(target.parent)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, with mode 0700; they are on disk when this returns."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_folder(folder.parent)
        make_folder(folder)
        return
    flush_folder(folder.parent)


def flush_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_file_system(folder: Path) -> None:
    """Wait until everything that was written to the file system of a folder is on disk. One such wait replaces one for each
    of many files. OSError if the flush fails."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Not os.sync, which waits for all file systems, and for ever if one of them is on a network that is gone.
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """Wait until the names in a folder, and in all folders below it, are on disk."""
    for inside, _, _ in os.walk(folder, topdown=False):
        flush_folder(Path(inside))


def copy(source: Path, target: Path) -> str:
    """Copy a file, flush the copy to disk, with mode 0600, and return the SHA-256 (hex) of the bytes."""
    hasher = hashlib.sha256()
    with source.open("rb") as reader, open(target, "wb", opener=private) as writer:
        while chunk := reader.read(_CHUNK_BYTES):
            hasher.update(chunk)
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    return hasher.hexdigest()


def private(path: str, flags: int) -> int:
    """Open a file with mode 0600, so that only its owner can use it; an `opener` for `open`."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def read_json(path: Path) -> Any:
    """Return the document in a state file; None if there is no file. UsageError if it is damaged; it then stays as it
    is."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return parse_json(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is damaged ({error}); move it away to start without it") from error


def set_aside(path: Path) -> Path:
    """Rename a damaged file, replacing one that was set aside before, and return its new path.

    UsageError if it cannot be renamed, because the caller would otherwise overwrite it."""
    kept = path.with_name(path.name + DAMAGED)
    try:
        move(path, kept)
    except OSError as error:
        raise UsageError(f"{path} is damaged and cannot be set aside ({error}); move it away") from error
    return kept


def set_aside_copy(path: Path) -> Path:
    """Set aside a copy of a damaged file, and return the copy's path; the file stays, because part of it can be used."""
    kept = path.with_name(path.name + DAMAGED)
    try:
        write_atomic(kept, path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} is damaged in part and cannot be copied ({error}); move it away") from error
    return kept


def sweep(folder: Path) -> None:
    """Delete the unfinished files that a crash left in a folder."""
    for path in folder.glob(f"{NEW}*"):
        try:
            if path.is_file() and path.stat().st_mtime < time.time() - LEFT_S:
                path.unlink()
        except OSError as error:
            log.warning("%s is left behind: %s", path, error)
