"""Probe process: runs the probe in a process of its own, so that it takes no memory of the agent's. Door: a process.

Its trials hold tens of megabytes, and ONNX Runtime as much again while they run. An agent that has a memory limit would
start with that much less.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys

from edgepart.planner.devices.cluster import Device, cluster_from_json
from edgepart.planner.errors import Unavailable

log = logging.getLogger(__name__)

LITTLE_BYTES = 100 << 20
"""Bytes that plans may take of a device on which the system ended the probe, so that its free memory is unknown."""


def probe_in_process(name: str, threads: int) -> Device:
    """The device as `probe_device` measures it in a process of its own. If the system ends the probe, there is less memory
    than the system tells, and the device is measured again with LITTLE_BYTES. Raises Unavailable if the probe fails."""
    command = [sys.executable, "-m", "edgepart.agent.measure.probe", name, str(threads)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == -signal.SIGKILL:
        log.warning(
            "the system ended the process that measures this device, most likely because memory ran out: the device is "
            "measured with less, and plans may take %d MB here",
            LITTLE_BYTES >> 20,
        )
        command.append(str(LITTLE_BYTES))
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"this device could not be measured: {done.stderr[-2000:]}")
    return cluster_from_json(json.loads(done.stdout)).devices[0]
