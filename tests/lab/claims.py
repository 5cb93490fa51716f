"""The labs on this machine, their owners, and the removal of labs whose owner has ended. Does I/O.

Each lab has a claim, a file that is written before anything else is made, and removed after everything else.
It holds the lab's owner (a process, by id and start time, because ids are reused) and the path of its folder.
A lab's number is that of its subnet.
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
    """The claim of one lab."""

    pid: int
    """Process id of its owner."""
    started: int
    """When the owner started, in the kernel's ticks since boot."""
    number: int
    folder: str
    """Path of the folder that holds the hosts' state folders."""
    temporary: bool
    """Whether the folder is removed with the lab."""

    @property
    def name(self) -> str:
        """Name prefix of everything in this lab; 15 characters at most, the limit of an interface's name."""
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
    """Return when a process started, in ticks since boot; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in residents.DEAD else int(fields[19])


def claim(folder: Path, *, temporary: bool) -> Claim:
    """Claim a number that no lab and no network of this machine uses, for this process. Raises LabError if
    all are taken."""
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
    """Return the claims of all labs, including those of dead owners."""
    found = []
    for path in sorted(CLAIMS.glob("elab*.json")):
        with contextlib.suppress(FileNotFoundError):  # the owner removed the file meanwhile
            found.append(Claim(**json.loads(path.read_text())))
    return found


def clean() -> list[str]:
    """Remove the labs of dead owners and return their names. Raises LabError if one cannot be removed."""
    with _alone():
        stale = [one for one in claims() if not one.is_alive]
        for one in stale:
            remove(one)
    return [one.name for one in stale]


def remove(one: Claim) -> None:
    """Remove everything of a lab, whatever its state, and its claim last."""
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
        with contextlib.suppress(FileNotFoundError):  # an earlier try removed the folder
            shutil.rmtree(one.folder)
    one.file.unlink(missing_ok=True)


def _mounts_below(folder: str) -> list[str]:
    points = (line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
    return [point for point in points if point.startswith(f"{folder}/")]


def _numbers_in_use() -> set[int]:
    """Return the numbers of subnets to which this machine has a route."""
    routes = json.loads(call("ip", "-json", "-4", "route", "show", "table", "all"))
    return {
        int(part[2])
        for route in routes
        if (part := str(route.get("dst", "")).partition("/")[0].split("."))[:2] == ["10", "213"]
    }


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let only one process of the machine into the block at a time."""
    CLAIMS.mkdir(mode=0o700, exist_ok=True)
    with (CLAIMS / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
