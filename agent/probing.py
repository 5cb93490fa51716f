"""Probing: the probe in a process of its own, so that what it measures with is never this one's memory. Door: a process.

Its trials hold tens of megabytes, and ONNX Runtime as much again while they run; an agent that has a memory limit would
begin with that against it.
"""

from __future__ import annotations

import json
import subprocess
import sys

from edgepart.planner.cluster import Device, from_json
from edgepart.planner.errors import Unavailable


def probe_apart(name: str, threads: int) -> Device:
    """What `probe_device` measures, with most of what is free as its memory. Unavailable where it failed."""
    command = [sys.executable, "-m", "edgepart.agent.probe", name, str(threads)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"this device could not be measured: {done.stderr[-2000:]}")
    return from_json(json.loads(done.stdout)).devices[0]
