"""A disk in memory that keeps apart what is written and what would be left after a crash, in place of `os`.

What was not flushed may be there after a crash, in part, or not at all: file contents up to any byte, names in any
combination. A fault makes one call fail as a full or broken disk does; a crash ends everything before one call.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any


class Crash(BaseException):
    """Power is gone. No handler of errors sees it."""


@dataclass
class Inode:
    written: bytes = b""
    flushed: bytes = b""


@dataclass(frozen=True)
class Change:
    """Of one folder: a name leads to something else, or nowhere, from now on."""

    name: str
    inode: Inode | None
    gone: str = ""
    """A name that is gone by the same change."""


@dataclass
class Folder:
    names: dict[str, Inode] = field(default_factory=dict)
    flushed: dict[str, Inode] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)


class CrashDisk:
    """What agent/storage/atomic_files.py calls of `os`. `room`: bytes that can still be written."""

    O_WRONLY, O_RDONLY, O_CREAT, O_EXCL = os.O_WRONLY, os.O_RDONLY, os.O_CREAT, os.O_EXCL
    O_CLOEXEC, O_DIRECTORY = os.O_CLOEXEC, os.O_DIRECTORY

    def __init__(self, folders: list[str]) -> None:
        self.folders = {folder: Folder() for folder in folders}
        self.calls: list[str] = []
        self.crash_before = -1
        self.fail_at = -1
        self.fault = errno.EIO
        self.room = 1 << 30
        self.chunk = 1 << 30
        """At most so many bytes are written at once."""
        self.no_flush: tuple[str, ...] = ()
        """Kinds of flushes that do nothing: the law has to notice."""
        self._open: dict[int, tuple[str, Any]] = {}
        self._numbers = itertools.count(3)

    def put(self, path: str, data: bytes) -> None:
        """It is there, and on disk."""
        folder, name = self._place(path)
        folder.names[name] = folder.flushed[name] = Inode(data, data)

    def read(self, path: str) -> bytes | None:
        """As a process sees it now."""
        folder, name = self._place(path)
        return folder.names[name].written if name in folder.names else None

    def after_crash(self, path: str) -> Iterator[bytes | None]:
        """All that may be under that name when the power is back."""
        folder, name = self._place(path)
        for kept in itertools.product((False, True), repeat=len(folder.pending)):
            names = dict(folder.flushed)
            for change, done in zip(folder.pending, kept, strict=True):
                if done:
                    names.pop(change.gone, None)
                    if change.inode is None:
                        names.pop(change.name, None)
                    else:
                        names[change.name] = change.inode
            inode = names.get(name)
            if inode is None:
                yield None
            elif inode.written == inode.flushed:
                yield inode.flushed
            else:
                yield from (inode.written[:n] for n in range(len(inode.flushed), len(inode.written) + 1))

    # As os has them

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        self._step("open")
        number = next(self._numbers)
        if str(path) in self.folders:
            self._open[number] = "folder", self.folders[str(path)]
            return number
        assert mode == 0o600
        folder, name = self._place(path)
        assert name not in folder.names
        inode = folder.names[name] = Inode()
        folder.pending.append(Change(name, inode))
        self._open[number] = "file", inode
        return number

    def write(self, number: int, data: Any) -> int:
        self._step("write")
        inode = self._open[number][1]
        count = min(len(data), self.chunk, self.room)
        if len(data) and not count:
            raise OSError(errno.ENOSPC, "No space left on device")
        inode.written += bytes(data[:count])
        self.room -= count
        return count

    def fsync(self, number: int) -> None:
        kind, thing = self._open[number]
        self._step(f"flush {kind}")
        if kind in self.no_flush:
            return
        if kind == "file":
            thing.flushed = thing.written
        else:
            thing.flushed, thing.pending = dict(thing.names), []

    def close(self, number: int) -> None:
        self._step("close")
        del self._open[number]

    def replace(self, source: Any, target: Any) -> None:
        self._step("replace")
        folder, old = self._place(source)
        other, new = self._place(target)
        assert folder is other
        inode = folder.names[new] = folder.names.pop(old)
        folder.pending.append(Change(new, inode, gone=old))

    def unlink(self, path: Any) -> None:
        self._step("unlink")
        folder, name = self._place(path)
        if name not in folder.names:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        del folder.names[name]
        folder.pending.append(Change(name, None))

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        self._step("mkdir")
        if str(path) in self.folders:
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        if str(Path(path).parent) not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        self.folders[str(path)] = Folder()

    def _step(self, call: str) -> None:
        number = len(self.calls)
        self.calls.append(call)
        if number == self.crash_before:
            raise Crash
        if number == self.fail_at:
            raise OSError(self.fault, os.strerror(self.fault))

    def _place(self, path: Any) -> tuple[Folder, str]:
        pure = PurePath(path)
        return self.folders[str(pure.parent)], pure.name
