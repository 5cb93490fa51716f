"""Probe process: runs the probe in a process of its own, so that it takes no memory of the agent's. Door: a process and a
file.

The probe's trials hold tens of megabytes, and ONNX Runtime as much again while they run. An agent that has a memory limit
would start with that much less. A measurement can be kept in a file, so that a restart or a second agent does not repeat
it.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from edgepart import __version__
from edgepart.agent.measure.probe import device_kind, plannable_memory_bytes
from edgepart.agent.measure.starvation import StarvationTiming
from edgepart.agent.storage.atomic_files import read_json, write_atomic
from edgepart.planner.devices.cluster import Cluster, Device
from edgepart.planner.devices.cluster_json import cluster_from_json, cluster_to_json
from edgepart.planner.errors import EdgepartError, Unavailable

log = logging.getLogger(__name__)

CHANGED = 0.1
"""From which part on a speed counts as changed: two measurements of an idle device differ by a few hundredths."""
DISTURBED = StarvationTiming().share
"""From which part of the time on, in which its threads waited for a CPU, a measurement counts as disturbed."""
LITTLE_BYTES = 100 << 20
"""Bytes that plans may take of a device on which the system ended the probe, so that its free memory is unknown."""


class Probed(NamedTuple):
    """What a probe found."""

    device: Device
    waited_share: float
    """For what part of the time the probe waited for a CPU, because other programs had it."""

    @property
    def is_disturbed(self) -> bool:
        """Whether the device is likely to be faster than it was found to be."""
        return self.waited_share >= DISTURBED


def probe_in_process(name: str, threads: int) -> Probed:
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
    document = json.loads(done.stdout)
    found = Probed(cluster_from_json(document["measured"]).devices[0], document["waited_share"])
    if found.is_disturbed:
        log.warning(
            "this device may be faster than it was measured: the probe waited %.0f %% of the time for a CPU. It is "
            "measured again when nothing is computed",
            100 * found.waited_share,
        )
    return found


def measure_device(name: str, threads: int, kept: Path | None = None, made_with: str = "") -> Device:
    """The device as `kept` has it, or else as `probe_in_process` measures it, which is then written to `kept`.

    The file counts only if it was made by this version, on a device of this kind, for as many threads and with the same
    software, `made_with`. A warning says why it does not count or could not be written. Free memory is always read anew.
    Raises Unavailable if the probe fails."""
    if kept is None:
        return probe_in_process(name, threads).device
    made_for = _made_for(threads, made_with)
    if kept.exists():
        try:
            device = _read_measurement(kept, made_for)
        except EdgepartError as error:
            log.warning("%s: this device is measured again", error)
        else:
            return replace(device, name=name, memory_bytes=plannable_memory_bytes())
    found = probe_in_process(name, threads)
    _keep(kept, made_for, found)
    return found.device


def measure_again(known: Device, kept: Path, made_with: str) -> Probed:
    """What a probe finds of the device now, which is then written to `kept` in place of what is `known`.

    A measurement that differs by more than CHANGED is made twice, and the quicker one counts, as a disturbance only ever
    makes a device slower. Raises Unavailable if the probe fails."""
    found = probe_in_process(known.name, known.threads)
    if abs(found.device.flops_per_s - known.flops_per_s) > CHANGED * known.flops_per_s:
        again = probe_in_process(known.name, known.threads)
        found = max(found, again, key=lambda one: one.device.flops_per_s)
    _keep(kept, _made_for(known.threads, made_with), found)
    return found


def age_s(kept: Path, now: float) -> float:
    """Seconds since the measurement in `kept` was made, at the time `now` of the system's clock; inf if there is none, or
    if it was disturbed."""
    try:
        document = read_json(kept)
        if not isinstance(document, dict) or document.get("waited_share", 0.0) >= DISTURBED:
            return float("inf")
        return now - kept.stat().st_mtime
    except (OSError, EdgepartError, TypeError):
        return float("inf")


def _made_for(threads: int, made_with: str) -> dict[str, Any]:
    return {"version": __version__, "kind": device_kind(), "threads": threads, "made_with": made_with}


def _keep(kept: Path, made_for: dict[str, Any], found: Probed) -> None:
    if found.device.memory_bytes <= LITTLE_BYTES:
        return  # A probe that ran out of memory left out trials.
    measured = cluster_to_json(Cluster((found.device,)))
    document = {**made_for, "waited_share": found.waited_share, "measured": measured}
    try:
        write_atomic(kept, json.dumps(document).encode())
    except OSError as error:
        log.warning("%s cannot be written (%s): the next start measures this device again", kept, error)


def _read_measurement(kept: Path, made_for: dict[str, Any]) -> Device:
    """The device in `kept`. Raises EdgepartError if the file is damaged, or was made for something else."""
    document = read_json(kept)
    if not isinstance(document, dict):
        raise Unavailable(f"{kept} has no measurement")
    for key, value in made_for.items():
        if document.get(key) != value:
            raise Unavailable(
                f"{kept} has a measurement for {key} {document.get(key)!r}, and here it is {value!r}"
            )
    return cluster_from_json(document.get("measured")).devices[0]
