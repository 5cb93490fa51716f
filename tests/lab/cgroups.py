"""Limits on a host's memory and CPU time by control groups of version 1 or 2. Does I/O, and knows the rules
of both versions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.lab.hosts import LabError

ROOT = Path("/sys/fs/cgroup")
MEMORY, CPU = "memory", "cpu"
PERIOD_US = 100_000
GONE_S = 5.0
"""Seconds for the kernel to release a group after its last process has died."""

Setting = tuple[str, str, bool]
"""File, content, and whether the file may be missing."""


def folders(root: Path) -> dict[str, Path]:
    """Return the folder for groups by controller: version 1 has one folder for each, version 2 one for all."""
    if (root / "cgroup.controllers").exists():
        there = (root / "cgroup.controllers").read_text().split()
        return {controller: root for controller in (MEMORY, CPU) if controller in there}
    return {
        controller: root / controller
        for controller in (MEMORY, CPU)
        if (root / controller / "cgroup.procs").exists()
    }


def memory_settings(version: int, limit_bytes: int) -> list[Setting]:
    """Return the settings of a group. Swap counts as memory, because otherwise there would be no limit."""
    if version == 2:
        return [("memory.max", str(limit_bytes), False), ("memory.swap.max", "0", True)]
    return [
        ("memory.limit_in_bytes", str(limit_bytes), False),
        ("memory.memsw.limit_in_bytes", str(limit_bytes), True),
    ]


def cpu_settings(version: int, cpus: float | None) -> list[Setting]:
    """Return the settings of a group. None removes the limit."""
    quota = None if cpus is None else round(cpus * PERIOD_US)
    if version == 2:
        return [("cpu.max", f"{'max' if quota is None else quota} {PERIOD_US}", False)]
    return [
        ("cpu.cfs_period_us", str(PERIOD_US), False),
        ("cpu.cfs_quota_us", str(-1 if quota is None else quota), False),
    ]


class Groups:
    """The groups of one lab. They are made as they are needed, in a folder of their own below `root`."""

    def __init__(self, lab: str, root: Path = ROOT) -> None:
        self._lab = lab
        self._root = root
        self._folders = folders(root)
        self._version = 2 if (root / "cgroup.controllers").exists() else 1

    def limit_memory(self, host: str, limit_bytes: int) -> None:
        """Limit the host's memory. Raises LabError if groups cannot limit memory here."""
        self._set(host, MEMORY, memory_settings(self._version, limit_bytes))

    def limit_cpu(self, host: str, cpus: float | None) -> None:
        """Limit CPU time to that many CPUs in each tenth of a second. Raises LabError if groups cannot limit
        it here."""
        self._set(host, CPU, cpu_settings(self._version, cpus))

    def of(self, host: str) -> list[Path]:
        """Return the groups that the host's processes have to be in, whether they exist yet or not."""
        return sorted({folder / self._lab / host for folder in self._folders.values()})

    def take_in(self, host: str, pids: Iterable[int]) -> None:
        """Add processes that are older than the group."""
        groups = [group for group in self.of(host) if group.exists()]
        for pid in pids:
            for group in groups:
                _put(group / "cgroup.procs", str(pid), f"process {pid} of {host}")

    def remove(self) -> None:
        """Remove all groups of this lab, whose processes have ended. Raises LabError if the kernel does not
        release one."""
        for folder in {*self._folders.values()}:
            for path in _inner_first(folder / self._lab):
                _remove(path)

    def _set(self, host: str, controller: str, settings: list[Setting]) -> None:
        if controller not in self._folders:
            raise LabError(
                f"{host} cannot be limited: no control group of {self._root} limits {controller} here"
            )
        group = self._folders[controller] / self._lab / host
        group.mkdir(parents=True, exist_ok=True)
        if self._version == 2:
            for parent in (group.parent.parent, group.parent):
                _put(parent / "cgroup.subtree_control", f"+{controller}", host)
        for file, content, may_lack in settings:
            if not (may_lack and not (group / file).exists()):
                _put(group / file, content, host)


def _put(file: Path, content: str, what: str) -> None:
    try:
        file.write_text(content)
    except ProcessLookupError:
        return  # the process has ended meanwhile
    except OSError as error:
        raise LabError(
            f"{what} cannot be limited: {file} does not take {content!r}: {error.strerror}"
        ) from error


def _inner_first(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(path for path in folder.iterdir() if path.is_dir())
        yield folder


def _remove(group: Path) -> None:
    until = time.monotonic() + GONE_S
    while True:
        try:
            return group.rmdir()
        except FileNotFoundError:
            return None
        except OSError as error:
            if time.monotonic() > until:
                raise LabError(f"the control group {group} cannot be removed: {error.strerror}") from error
        time.sleep(0.01)
