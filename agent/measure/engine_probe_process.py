"""Engine probe process: has each engine of this box checked and calibrated in a process of its own, within a time limit.
Door: processes and a file.

An engine that crashes, hangs or lies is left out, and it is said why; the agent goes on with what is left. A measurement is
kept in a file until what is installed changes, because some engines compile for minutes; so is the news that an engine
crashed, hung or lied, because trying that at each start would delay each start.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

from edgepart import __version__
from edgepart.agent.engines.catalogue import CPU, EngineKind
from edgepart.agent.engines.choice import choose
from edgepart.agent.engines.verdicts import CRASHES, FAILS, HANGS, LIES
from edgepart.agent.host.child_process import deaf
from edgepart.agent.storage.atomic_files import read_json, write_atomic
from edgepart.planner.devices.cluster import Device
from edgepart.planner.devices.engine import Engine
from edgepart.planner.errors import EdgepartError, Unavailable, UsageError

log = logging.getLogger(__name__)

MODULE = "edgepart.agent.measure.engine_probe"
LIST = "import json, onnxruntime; print(json.dumps(onnxruntime.get_available_providers()))"
"""Prints the providers of the ONNX Runtime that is installed. It imports nothing else, as each start waits for it."""
MOST_TRIAL_S = 120.0
"""The longest that a trial of the probe may take, however long the engine may take for a segment: trials are small."""
LIST_S = 120.0
"""Seconds for telling which providers are installed: ONNX Runtime loads in a few, on the slowest boxes from the slowest
disks."""


@dataclass(frozen=True, slots=True)
class MeasuredEngines:
    """The engines of this box, and those that are left out."""

    engines: tuple[Engine, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why an engine is left out, by its name."""


def measure_engines(
    device: Device,
    names: Sequence[str],
    kept: Path | None,
    made_with: str,
    progress: Callable[[], None] = lambda: None,
) -> MeasuredEngines:
    """The engines that the option's `names` ask for (choice.py), on a device that was measured already. `kept` is the file
    that keeps measurements, `made_with` what is installed. `progress` is called now and then. Raises UsageError if an
    engine is named for which nothing is installed."""
    if set(names) <= {CPU}:
        return MeasuredEngines()
    made_for = {
        "version": __version__,
        "made_with": made_with,
        "kind": device.kind,
        "threads": device.threads,
    }
    listed, known = _read_kept(kept, made_for)
    providers = listed or _installed_providers()
    choice = choose(names, providers)
    found: dict[str, Mapping[str, Any]] = {}
    for kind in choice.tried:
        found[kind.name] = known.get(kind.name) or _probe(kind, device.threads, progress)
    if found or not listed:
        _keep(kept, {**made_for, "providers": list(providers)}, {**known, **found})
    engines, left_out = [], dict(choice.left_out)
    for kind in choice.tried:
        try:
            engines.append(_to_engine(kind, found[kind.name], device))
        except Unavailable as error:
            left_out[kind.name] = str(error)
            log.warning("%s is not used: %s", kind.name, error)
    return MeasuredEngines(tuple(engines), left_out)


def _installed_providers() -> Sequence[str]:
    """The providers of the ONNX Runtime that is installed. Raises Unavailable if that cannot be found out."""
    command = [sys.executable, "-c", LIST]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIST_S
        )
        listed = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise Unavailable(f"ONNX Runtime does not say which providers it has: {error}") from error
    return [str(name) for name in listed]


def _probe(kind: EngineKind, threads: int, progress: Callable[[], None]) -> Mapping[str, Any]:
    """What the probe's process found, or how it ended: {"outcome", "why"}."""
    limit_s = min(kind.trial_s, MOST_TRIAL_S)
    command = [sys.executable, "-m", MODULE, kind.name, str(threads)]
    with deaf():
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    hung, last = False, ""

    def end() -> None:
        nonlocal hung
        hung = True
        process.kill()

    assert process.stdout is not None
    with process.stdout:
        while True:
            watch = Timer(limit_s, end)
            watch.start()
            line = process.stdout.readline()
            watch.cancel()
            if not line:
                break
            last = line
            progress()
    status = process.wait()
    if hung:
        return {"outcome": HANGS, "why": f"it gave no answer within {limit_s:g} s when it was checked"}
    if status:
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return {"outcome": CRASHES, "why": f"it ended its process with {how} when it was checked"}
    return _read_found(last)


def _read_found(line: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {"outcome": FAILS, "why": f"its check ended with {line[:80]!r}"}
    if not isinstance(found, dict):
        return {"outcome": FAILS, "why": f"its check ended with {line[:80]!r}"}
    if "lie" in found:
        return {"outcome": LIES, "why": str(found["lie"])}
    if "fault" in found:
        return {"outcome": FAILS, "why": str(found["fault"])}
    return found


def _to_engine(kind: EngineKind, found: Mapping[str, Any], device: Device) -> Engine:
    """The engine with these figures. Raises Unavailable with the reason if the probe found none, or no usable ones."""
    if "outcome" in found:
        raise Unavailable(f"it {found['outcome']}: {found['why']}")
    try:
        families = {str(name): float(rate) for name, rate in found["families"].items()}
        moves = {str(name): float(rate) for name, rate in found["moves"].items()}
        copies = found["copy_bytes_per_s"]
        return Engine(
            name=kind.name,
            provider=kind.provider,
            flops_per_s=families.get("conv") or max(families.values(), default=device.flops_per_s),
            memory_bytes_per_s=moves.get("elementwise/2097152") or device.memory_bytes_per_s,
            segment_s=device.segment_s + float(found["run_s"]),
            kernel_s=float(found["kernel_s"]),
            families=families,
            moves=moves,
            copy_bytes_per_s=None if copies is None else float(copies),
            copy_s=float(found["copy_s"]),
            memory_bytes=_memory_bytes(kind),
            precision=kind.precision,
            threads=device.threads,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unavailable(f"what its check found cannot be read: {error!r}") from error


def _memory_bytes(kind: EngineKind) -> float | None:
    """The free memory of the engine's own device that plans may take; None if it has none, or the system does not tell."""
    if kind.memory != "cuda":
        return None
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIST_S, check=True)
        return float(done.stdout.split()[0]) * (1 << 20) * 0.8
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        log.info("the memory of %s is taken to be the device's own: %s", kind.name, error)
        return None


def _read_kept(
    kept: Path | None, made_for: Mapping[str, Any]
) -> tuple[Sequence[str], dict[str, Mapping[str, Any]]]:
    """What the file has: the providers that are installed, and what is known of engines, by name. Both are empty if it was
    made for something else or is damaged."""
    if kept is None or not kept.exists():
        return (), {}
    try:
        document = read_json(kept)
    except UsageError as error:
        log.warning("%s: engines are measured again", error)
        return (), {}
    if not isinstance(document, dict) or any(document.get(key) != value for key, value in made_for.items()):
        return (), {}
    listed, found = document.get("providers"), document.get("engines")
    entries = found.items() if isinstance(found, dict) else ()
    providers = [str(name) for name in listed] if isinstance(listed, list) else []
    return providers, {str(name): one for name, one in entries if isinstance(one, dict)}


def _keep(kept: Path | None, made_for: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> None:
    """Write what is known of engines. One that only failed is tried again at the next start, as that takes no time."""
    if kept is None:
        return
    lasting = {name: one for name, one in found.items() if one.get("outcome") != FAILS}
    try:
        write_atomic(kept, json.dumps({**made_for, "engines": lasting}).encode())
    except (OSError, EdgepartError) as error:
        log.warning("%s cannot be written (%s): the next start measures the engines again", kept, error)
