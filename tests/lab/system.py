"""The commands that labs use: `ip` and `tc`, with many lines at once. Does I/O.

`ip netns exec` is not used, because it mounts /sys again, without cgroups.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.lab.hosts import LabError

COMMANDS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}
"""Required commands, and the Debian packages that contain them."""

NAMESPACES = Path("/run/netns")
TRIAL = (
    "link add elab0 type bridge mcast_snooping 0",
    "link add elab1 type veth peer name elab2",
    "link set elab1 addrgenmode none gso_max_size 3000",
)
TRIAL_SHAPING = (
    "qdisc add dev elab1 root tbf rate 1mbit burst 5000 limit 10000",
    "qdisc add dev elab2 root handle 1: htb",
    "class add dev elab2 parent 1: classid 1:2 htb rate 1mbit",
    "qdisc add dev elab2 parent 1:2 handle 2: blackhole",
    "filter add dev elab2 parent 1: protocol all prio 2 u32 match u16 0 0xffff at -4 flowid 1:2",
)


def call(*command: str, lines: Iterable[str] | None = None) -> str:
    """Run a command and return its output. `lines` are its standard input. Raises LabError with its error output."""
    text = None if lines is None else "".join(f"{line}\n" for line in lines)
    done = subprocess.run(
        command,
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise LabError(f"`{' '.join(command)}` exited {done.returncode}: {done.stderr.strip()}\n{text or ''}")
    return done.stdout


def ip(lines: Iterable[str], namespace: str | None = None) -> None:
    """Run these lines of `ip`, in this network namespace or in our own."""
    call("ip", *_inside(namespace), "-batch", "-", lines=lines)


def tc(lines: Iterable[str], namespace: str | None = None) -> None:
    """Run these lines of `tc`, in this network namespace or in our own."""
    call("tc", *_inside(namespace), "-batch", "-", lines=lines)


def _inside(namespace: str | None) -> tuple[str, ...]:
    return () if namespace is None else ("-n", namespace)


@functools.cache
def missing() -> str | None:
    """Return why there can be no lab here; None if there can."""
    if os.geteuid() != 0:
        return "a lab needs root: it makes network namespaces"
    for command, package in COMMANDS.items():
        if shutil.which(command) is None:
            return f"a lab needs the command `{command}`: apt-get install {package}"
    trial = f"elab-trial-{os.getpid()}"
    try:
        ip([f"netns add {trial}"])
        try:
            ip(TRIAL, trial)
            tc(TRIAL_SHAPING, trial)
        finally:
            ip([f"netns del {trial}"])
    except LabError as error:
        return f"a lab needs network namespaces, bridges, tbf and htb, and this system refuses: {error}"
    return None
