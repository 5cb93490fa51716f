"""Carries out the steps of an installation, and undoes them if one fails. Door: files, and commands of the system."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepart.cli.service.steps import Command, Execute, Remove, Step, Symlink, Write
from edgepart.planner.errors import HostError

STEP_S = 180.0
"""The most seconds that a command may take: systemd lets the agent start for 120."""
KEPT = ("PATH", "LANG", "LC_ALL", "EDGEPART_MQTT_PASSWORD")
"""The environment that commands get: a root's HOME or PYTHONPATH must not lead the service's user anywhere."""
FAILURES = (OSError, subprocess.SubprocessError, HostError)
"""What a step that fails raises."""
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Done:
    """A step that was begun, and what undoing it needs to know."""

    step: Step
    before: tuple[bytes, int] | None = None
    """The bytes and the mode of the file that was there."""
    folders: tuple[Path, ...] = ()
    """The folders that were not there, the innermost first."""


def carry_out(steps: Sequence[Step], state: Path, tell: Tell) -> dict[str, str]:
    """Carry out the steps in turn, and tell each before it begins; return what commands printed, by the step's `what`. If
    one fails, all are undone in the reverse order, and HostError is raised."""
    printed: dict[str, str] = {}
    done: list[Done] = []
    for step in steps:
        tell(step.what)
        done.append(_begun(step))
        try:
            printed[step.what] = _do(done[-1], state)
        except FAILURES as error:
            left = [problem for each in reversed(done) if (problem := _undo(each, state, tell))]
            raise HostError(f"{step.what} failed: {error}\n{_outcome(left)}") from error
    return printed


def _begun(step: Step) -> Done:
    if not isinstance(step, Write | Symlink):
        return Done(step)
    path = step.path
    before = (path.read_bytes(), path.stat().st_mode & 0o777) if path.is_file() else None
    return Done(step, before, tuple(each for each in path.parents if not each.exists()))


def _outcome(left: Sequence[str]) -> str:
    if left:
        return "Not all that had been done could be undone: " + "; ".join(left)
    return "What had been done is undone: this box is as it was."


def _do(begun: Done, state: Path) -> str:
    match begun.step:
        case Execute() as run:
            return _run(run.command, state, run.stdin, run.explain)
        case Write() as write:
            write.path.parent.mkdir(parents=True, exist_ok=True)
            _write(write.path, write.text.encode(), begun.before[1] if begun.before else write.mode)
        case Symlink() as link:
            link.path.parent.mkdir(parents=True, exist_ok=True)
            link.path.symlink_to(link.target)
        case Remove() as remove if remove.path.is_dir() and not remove.path.is_symlink():
            shutil.rmtree(remove.path)
        case Remove() as remove:
            remove.path.unlink()
    return ""


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replace a file, whose mode is right from the beginning."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
    draft.replace(path)


def _run(command: Command, state: Path, stdin: str | None = None, explain: Command | None = None) -> str:
    """What the command printed. Raises HostError, with what it said, if it fails."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    done = subprocess.run(
        command,
        input=stdin or "",
        capture_output=True,
        text=True,
        errors="replace",
        cwd="/",
        env=kept | {"HOME": str(state)},
        timeout=STEP_S,
    )
    if done.returncode == 0:
        return done.stdout
    said = (done.stderr or done.stdout).strip()
    if explain is not None:
        more = subprocess.run(explain, capture_output=True, text=True, errors="replace", timeout=STEP_S)
        said += "\n" + more.stdout.strip()
    raise HostError(f"{shlex.join(command)} ended with status {done.returncode}: {said}")


def _undo(done: Done, state: Path, tell: Tell) -> str | None:
    """Undo one step; return what is left of it, and why."""
    step = done.step
    commands = step.undo if isinstance(step, Execute | Write) else ()
    if isinstance(step, Write | Symlink) or commands:
        tell(f"undoing: {step.what}")
    try:
        if isinstance(step, Write) and done.before is not None:
            _write(step.path, *done.before)
        elif isinstance(step, Write) and step.path.is_file():
            step.path.unlink()
        elif isinstance(step, Symlink) and step.path.is_symlink():
            step.path.unlink()  # A step is only planned where there is no link.
        for folder in done.folders:
            if folder.exists():
                folder.rmdir()
        for command in commands:
            _run(command, state)
    except FAILURES as error:
        return f"{step.what} ({error})"
    return None
