"""Checkup: looks for conditions that may keep this box out of a cluster, or make it slow. Door: it reads the system; the
functions `judge_*` are rules.

It changes nothing, asks no other box, and works without a running agent.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepart.agent.host import system
from edgepart.agent.net.addresses import Interface
from edgepart.agent.net.interfaces import interfaces
from edgepart.agent.security.ciphers import lacks_aes
from edgepart.planner.figures import format_count, format_figure

GOOD, NOTE, BAD = "good", "note", "bad"
LEVELS = (GOOD, NOTE, BAD)

FULL_BYTES, TIGHT_BYTES = 64 << 20, 1 << 30
"""Limits of free disk space: below the first, an agent cannot save its state files; below the second, there may be no room
for models."""
LITTLE_MEMORY_BYTES = 256 << 20
"""Less memory than this is little: an agent without a plan takes about 100 MB."""
MUCH_SWAP_USED = 0.25
"""The share of swap in use above which a box is likely to be slow."""
EPOCH_S = 1_700_000_000
"""A clock that shows an earlier time (November 2023) was never set."""
_TIME_ERROR = 5
"""The return value of adjtimex(2) if nothing keeps the clock right."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the box, and its result."""

    name: str
    level: str
    """One of LEVELS."""
    text: str
    do: str = ""
    """The remedy for the user; "" if nothing is needed."""


def check_box(
    state: Path, port: int, threads: int | None = None, limit_bytes: int | None = None
) -> list[Check]:
    """Make all checks, and return their results. `state` is the agent's folder, which need not exist, and `port` the port
    to which members connect. `threads` and `limit_bytes` are the settings of the running agent; None if there is none."""
    available, total = system.memory()
    disk = system.read_or_none("how full its disk is", lambda: shutil.disk_usage(_find_existing(state)))
    cpuinfo = system.text_of(Path("/proc/cpuinfo"))
    found = [
        judge_network(interfaces()),
        judge_disk(disk.free, state) if disk else Check("disk", NOTE, "unknown: the system does not say"),
        judge_clock(time.time(), _is_clock_kept()),
        judge_memory(available, total, limit_bytes),
        judge_swap(*system.swap()),
        judge_threads(system.cores(), threads),
    ]
    if cpuinfo:
        found.append(judge_aes(lacks_aes(cpuinfo)))
    return [*found, check_firewall(port)]


def judge_network(known: Sequence[Interface]) -> Check:
    real = [one for one in known if one.up and not one.ip.is_loopback and not one.virtual]
    if not real:
        text = "no network is up"
        return Check("network", BAD, text, "plug in a cable or join the Wi-Fi")
    named = dict.fromkeys(one.name for one in real)
    texts = [f"{name} {', '.join(one.address for one in real if one.name == name)}" for name in named]
    return Check("network", GOOD, "; ".join(texts))


def judge_disk(free_bytes: int, state: Path) -> Check:
    text = f"{format_figure(free_bytes / 1e9)} GB free for {state}"
    if free_bytes < FULL_BYTES:
        return Check("disk", BAD, text, "free some space: the agent cannot save its state")
    if free_bytes < TIGHT_BYTES:
        return Check("disk", NOTE, text, "free some space for larger models, or lower --compiled")
    return Check("disk", GOOD, text)


def judge_clock(now: float, kept: bool | None) -> Check:
    """Judge the clock. `kept` says whether something keeps the clock right; None if that is unknown."""
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < EPOCH_S:
        return Check("clock", BAD, f"{text}; never set", "set it: `timedatectl set-ntp true`")
    if kept is False:
        return Check("clock", NOTE, f"{text}; not synchronised", "`timedatectl set-ntp true`")
    return Check("clock", GOOD, text)


def judge_memory(available: int, total: int, limit_bytes: int | None) -> Check:
    limit = "no --memory-limit" if limit_bytes is None else f"--memory-limit {limit_bytes / 1e6:.0f} MB"
    if not total:
        return Check("memory", NOTE, f"unknown: the system does not say; {limit}")
    text = f"{format_figure(available / 1e9)} of {format_figure(total / 1e9)} GB free; {limit}"
    if limit_bytes is not None and limit_bytes < LITTLE_MEMORY_BYTES:
        return Check(
            "memory",
            NOTE,
            text,
            "raise it if plans do not fit: the agent takes 100 MB of it, and 40 MB for each deployment",
        )
    if available < LITTLE_MEMORY_BYTES:
        return Check(
            "memory",
            NOTE,
            text,
            "free some: an agent takes 100 MB, and 40 MB for each deployment",
        )
    return Check("memory", GOOD, text)


def judge_swap(used: int, total: int) -> Check:
    if not total:
        return Check("swap", GOOD, "none")
    text = f"{format_figure(used / 1e9)} of {format_figure(total / 1e9)} GB in use"
    if used > MUCH_SWAP_USED * total:
        do = "if answers are sometimes slow, run less on this box or lower --memory-limit"
        return Check("swap", NOTE, text, do)
    return Check("swap", GOOD, text)


def judge_threads(cores: int, threads: int | None) -> Check:
    """Judge the number of threads. `threads` is the agent's setting; None if it has none."""
    if threads is not None and threads > cores:
        text = f"{threads} threads on {format_count(cores, 'core')}"
        return Check("threads", NOTE, text, "lower --threads: more threads than cores are slower")
    return Check("threads", GOOD, f"{threads or cores} of {format_count(cores, 'core')}")


def judge_aes(lacking: bool) -> Check:
    if lacking:
        return Check("AES", GOOD, "not in hardware: links to this box use ChaCha20")
    return Check("AES", GOOD, "in hardware")


def judge_grpc(address: str, trouble: str) -> Check:
    """Judge the agent's gRPC server. `address` is "" if it does not listen, and `trouble` says why if it is to."""
    if trouble:
        return Check("gRPC", BAD, trouble, "use HTTP, or give --grpc another address or `off`")
    return Check("gRPC", GOOD, f"clients connect to {address}" if address else "off (--grpc off)")


def judge_ruleset(text: str, port: int) -> Check:
    """Judge the output of `nft list ruleset` or `iptables -S`: whether incoming packets are dropped, and no rule names the
    port."""
    drops = any(
        ("hook input" in line and "policy drop" in line) or line.startswith("-P INPUT DROP")
        for line in text.splitlines()
    )
    if drops and str(port) not in text:
        do = f"allow TCP {port}, and UDP 5353 for mDNS"
        return Check("firewall", NOTE, f"blocks incoming traffic, and no rule allows port {port}", do)
    if drops:
        return Check("firewall", GOOD, f"blocks incoming traffic, but a rule names port {port}")
    return Check("firewall", GOOD, "blocks nothing")


def check_firewall(port: int) -> Check:
    """Look for a firewall. Only root can read its rules."""
    for command in (("nft", "list", "ruleset"), ("iptables", "-S")) if os.geteuid() == 0 else ():
        if (program := shutil.which(command[0], path="/usr/sbin:/sbin:/usr/bin:/bin")) is None:
            continue
        try:
            done = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=5)
        except (OSError, subprocess.TimeoutExpired) as error:
            return Check("firewall", NOTE, f"not checked: {error}")
        if done.returncode == 0:
            return judge_ruleset(done.stdout, port)
    settings = Path("/etc/ufw/ufw.conf")
    if settings.exists() and "ENABLED=yes" in settings.read_text(errors="replace"):
        do = f"`ufw allow {port}/tcp` and `ufw allow 5353/udp`, if you have not yet"
        return Check("firewall", NOTE, "ufw is on", do)
    lacking = "root" if os.geteuid() else "`nft` or `iptables`"
    return Check("firewall", GOOD, f"not checked (needs {lacking})")


def _is_clock_kept() -> bool | None:
    try:
        code = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(1024))
    except (OSError, AttributeError):
        return None  # This system is not Linux.
    return None if code < 0 else code != _TIME_ERROR


def _find_existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())
