"""Which labs there are on this machine, whose they are, and how one that nobody owns any more is removed. A door.

Each lab has a claim, a file that is written before anything is made and removed when all is gone. It holds whose the
lab is (a process, by id and start: ids are used again) and where its folder is. Its number is that of its subnet.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from ipaddress import IPv4Network
from pathlib import Path

from edgepart.agent.storage.store import write_atomic
from tests.lab import residents
from tests.lab.cgroups import Groups
from tests.lab.hosts import LabError
from tests.lab.system import NAMESPACES, call, ip

CLAIMS = Path("/run/edgepart-lab")
NUMBERS = range(256)


@dataclass(frozen=True, slots=True)
class Claim:
    """One lab's."""

    pid: int
    """Of its owner."""
    started: int
    """When the owner started, in the kernel's ticks since it booted."""
    number: int
    folder: str
    """Where hosts' state folders are."""
    temporary: bool
    """Whether the folder goes with the lab."""

    @property
    def name(self) -> str:
        """What everything of this lab is called; 15 characters at most, as an interface's name may have."""
        return f"elab{self.pid}-{self.number}"

    @property
    def subnet(self) -> IPv4Network:
        return IPv4Network(f"10.213.{self.number}.0/24")

    @property
    def file(self) -> Path:
        return CLAIMS / f"{self.name}.json"

    @property
    def is_alive(self) -> bool:
        return started(self.pid) == self.started

    def namespace(self, host: str) -> str:
        return f"{self.name}-{host}"


def started(pid: int) -> int | None:
    """When a process started, in ticks; None where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in residents.DEAD else int(fields[19])


def claim(folder: Path, *, temporary: bool) -> Claim:
    """One for this process, with a number that no lab and no network of this machine has. LabError when all are taken."""
    pid = os.getpid()
    began = started(pid)
    if began is None:
        raise LabError("/proc does not show this process")
    with _alone():
        taken = {one.number for one in claims()} | _numbers_in_use()
        number = next((number for number in NUMBERS if number not in taken), None)
        if number is None:
            raise LabError(f"there are {len(NUMBERS)} labs on this machine already")
        made = Claim(pid, began, number, str(folder), temporary)
        write_atomic(made.file, json.dumps(asdict(made)).encode())
    return made


def claims() -> list[Claim]:
    """Of all labs, dead owners' included."""
    found = []
    for path in sorted(CLAIMS.glob("elab*.json")):
        with contextlib.suppress(FileNotFoundError):  # its owner removed it
            found.append(Claim(**json.loads(path.read_text())))
    return found


def clean() -> list[str]:
    """Removes the labs of owners that are gone; their names. LabError where one cannot be."""
    with _alone():
        stale = [one for one in claims() if not one.is_alive]
        for one in stale:
            remove(one)
    return [one.name for one in stale]


def remove(one: Claim) -> None:
    """Everything of a lab, in whatever state it is, and its claim last."""
    namespaces = [path.name for path in NAMESPACES.glob(f"{one.name}-*")]
    for namespace in namespaces:
        residents.kill(namespace)
    if Path(f"/sys/class/net/{one.name}").exists():
        ip([f"link del {one.name}"])
    ip([f"netns del {namespace}" for namespace in namespaces])
    Groups(one.name).remove()
    for mount in _mounts_below(one.folder):
        call("umount", mount)
    if one.temporary:
        with contextlib.suppress(FileNotFoundError):  # an earlier try got so far
            shutil.rmtree(one.folder)
    one.file.unlink(missing_ok=True)


def _mounts_below(folder: str) -> list[str]:
    points = (line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
    return [point for point in points if point.startswith(f"{folder}/")]


def _numbers_in_use() -> set[int]:
    """Of subnets that this machine has a way to."""
    routes = json.loads(call("ip", "-json", "-4", "route", "show", "table", "all"))
    return {
        int(part[2])
        for route in routes
        if (part := str(route.get("dst", "")).partition("/")[0].split("."))[:2] == ["10", "213"]
    }


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One process of the machine at a time."""
    CLAIMS.mkdir(mode=0o700, exist_ok=True)
    with (CLAIMS / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
