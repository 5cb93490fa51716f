"""The steps of which installations consist, as facts: host.py carries them out, and undoes them. No door."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Execute:
    """Run a command of the system, or edgepart itself."""

    what: str
    """What happens, as people are told before it: "making the user edgepart"."""
    command: Command
    undo: tuple[Command, ...] = ()
    """The commands that undo it. They are also run if the command failed, which may have done half of its work."""
    stdin: str | None = field(default=None, repr=False)
    """What it reads; secrets go here, because other users can see the arguments of a process."""
    explain: Command | None = None
    """The command whose output says why this one failed, if its own does not."""


@dataclass(frozen=True, slots=True)
class Write:
    """Write a file that belongs to root. It is undone by putting back what was there before."""

    what: str
    path: Path
    text: str = field(repr=False)
    mode: int = 0o644
    undo: tuple[Command, ...] = ()
    """Commands to run after what was there before is back."""


@dataclass(frozen=True, slots=True)
class Symlink:
    """Make a symbolic link where there is nothing."""

    what: str
    path: Path
    target: Path


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a file or a folder with all that is in it. It cannot be undone."""

    what: str
    path: Path


Step = Execute | Write | Symlink | Remove
