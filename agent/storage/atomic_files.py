"""Durable: files that are whole or not there, whatever happens while they are written. Door: files.

A file is written under another name, its bytes are flushed to disk, it gets its name, and the folder is flushed. Power may
fail, the process may be killed, and the disk may be full between any two of these steps, or within one: the name then
leads to all of the old bytes or to all of the new ones. Folders that are made on the way are flushed, too.
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
"""How the names of files begin that are not whole yet."""
DAMAGED = ".damaged"
"""How the names of files end that could not be read and were kept for whoever wants to look at them."""
LEFT_S = 60.0
"""What is not whole and was not written to for so long was left by a crash."""
_CHUNK_BYTES = 1 << 20


def write_atomic(path: Path, data: bytes | memoryview, *, synced: bool = True) -> None:
    """Replaces a file: a reader, or a crash, sees the old bytes or the new ones; on disk when this returns. Mode 0600.

    OSError: nothing has changed, but where only the last flush failed: then a crash may bring the old bytes back. Not
    `synced`: for what is checked when it is read; a crash may leave anything under the name.
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
    """What is left of a file that could not be written, and the reason is being told already."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("%s is left behind: %s", path, error)


def move(source: Path, target: Path) -> None:
    """Gives a file or a folder that is on disk another name, in place of what was there; on disk when this returns."""
    make_folder(target.parent)
    os.replace(source, target)
    flush_folder(target.parent)


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it, where they are missing; on disk when this returns. Mode 0700."""
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
    """Waits until the names in a folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_file_system(folder: Path) -> None:
    """Waits until all that was written to the file system of a folder is on disk: one wait in place of one for each of many
    files. OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # os.sync waits for all file systems: for ever, where one of them is a network's that is gone.
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """The names in a folder, and in all folders in it."""
    for inside, _, _ in os.walk(folder, topdown=False):
        flush_folder(Path(inside))


def copy(source: Path, target: Path) -> str:
    """Copies a file, flushed to disk; the SHA-256 (hex) of what was copied. Mode 0600."""
    hasher = hashlib.sha256()
    with source.open("rb") as reader, open(target, "wb", opener=private) as writer:
        while chunk := reader.read(_CHUNK_BYTES):
            hasher.update(chunk)
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    return hasher.hexdigest()


def private(path: str, flags: int) -> int:
    """An `opener`: what is made is its owner's only."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def read_json(path: Path) -> Any:
    """What is in a state file; None where there is none. UsageError: it is damaged, and stays as it is."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return parse_json(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is damaged ({error}); move it away to start without it") from error


def set_aside(path: Path) -> Path:
    """Gives a damaged file another name, in place of one that was set aside before; where it is now.

    UsageError where that cannot be: it would be overwritten."""
    kept = path.with_name(path.name + DAMAGED)
    try:
        move(path, kept)
    except OSError as error:
        raise UsageError(f"{path} is damaged and cannot be set aside ({error}); move it away") from error
    return kept


def set_aside_copy(path: Path) -> Path:
    """The same with a copy: the file itself stays, as part of it can be used."""
    kept = path.with_name(path.name + DAMAGED)
    try:
        write_atomic(kept, path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} is damaged in part and cannot be copied ({error}); move it away") from error
    return kept


def sweep(folder: Path) -> None:
    """Deletes what a crash left half-written in a folder."""
    for path in folder.glob(f"{NEW}*"):
        try:
            if path.is_file() and path.stat().st_mtime < time.time() - LEFT_S:
                path.unlink()
        except OSError as error:
            log.warning("%s is left behind: %s", path, error)
