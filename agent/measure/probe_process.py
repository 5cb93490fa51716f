"""Probing: the probe in a process of its own, so that what it measures with is never this one's memory. Door: a process.

Its trials hold tens of megabytes, and ONNX Runtime as much again while they run; an agent that has a memory limit would
begin with that against it.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys

from edgepart.planner.devices.cluster import Device, from_json
from edgepart.planner.errors import Unavailable

log = logging.getLogger(__name__)

LITTLE_BYTES = 100 << 20
"""What plans may take of a device where the probe was ended and nobody tells how much there is."""


def probe_apart(name: str, threads: int) -> Device:
    """What `probe_device` measures, with most of what is free as its memory. Where the system ends the probe, there is less
    than it tells: measured again with little. Unavailable where it failed."""
    command = [sys.executable, "-m", "edgepart.agent.measure.probe", name, str(threads)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == -signal.SIGKILL:
        log.warning(
            "the system ended what measures this device, most likely for want of memory: it is measured with less, and "
            "plans may take %d MB here",
            LITTLE_BYTES >> 20,
        )
        command.append(str(LITTLE_BYTES))
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"this device could not be measured: {done.stderr[-2000:]}")
    return from_json(json.loads(done.stdout)).devices[0]
