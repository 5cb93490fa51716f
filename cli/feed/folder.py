"""Folder: files that appear in a folder, as frames. Door: the folder and a clock; which files are new is a rule.

The folder is looked at again and again, which works on every file system. A file counts once it has not changed from one
look to the next, so that nothing is read that is still being written.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

from edgepart.cli.feed.contents import ENDINGS_READ
from edgepart.planner.errors import UsageError

LOOK_S = 0.2
"""Seconds between two looks. A shorter time finds files sooner; a longer one takes less work."""

Stamp = tuple[int, int]
"""When a file was changed, in nanoseconds since 1970, and its bytes."""


class NewFiles:
    """Tells which files are new since the first look."""

    def __init__(self, there: Mapping[str, Stamp]) -> None:
        """`there` are the files that do not count, unless they change."""
        self._given = dict(there)
        self._seen = dict(there)

    def look(self, found: Mapping[str, Stamp]) -> list[str]:
        """The files, oldest first, that are new or written anew, and have not changed since the last look. Each is told
        once."""
        settled = [name for name, stamp in found.items() if self._seen.get(name) == stamp]
        new = [name for name in settled if self._given.get(name) != found[name]]
        self._seen = dict(found)
        self._given = {name: stamp for name, stamp in self._given.items() if name in found}
        self._given |= {name: found[name] for name in new}
        return sorted(new, key=lambda name: (found[name], name))


def files_in(folder: Path) -> dict[str, Stamp]:
    """The folder's files that can be frames. Raises UsageError if it cannot be read."""
    found: dict[str, Stamp] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                hidden = entry.name.startswith(".")
                if not hidden and Path(entry.name).suffix.lower() in ENDINGS_READ and entry.is_file():
                    status = entry.stat()
                    found[entry.name] = status.st_mtime_ns, status.st_size
    except FileNotFoundError as error:
        # A file that was there a moment ago may be gone; the folder itself may not.
        if not folder.is_dir():
            raise UsageError(f"--folder {folder}: there is no such folder") from error
    except OSError as error:
        raise UsageError(f"--folder {folder}: cannot be read ({error.strerror})") from error
    return found


async def files_of(folder: Path, *, once: bool) -> AsyncGenerator[tuple[str, Path], None]:
    """Names and paths: with `once` those of all files that are there, oldest first, else those of files that appear, for
    ever. Raises UsageError if the folder cannot be read."""
    there = files_in(folder)
    if once:
        for name in sorted(there, key=lambda name: (there[name], name)):
            yield name, folder / name
        return
    new = NewFiles(there)
    while True:
        for name in new.look(files_in(folder)):
            yield name, folder / name
        await asyncio.sleep(LOOK_S)
