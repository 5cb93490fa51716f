"""Probe: measures how fast this device computes, reads its kind and memory from the system, and computes links from round
trips.

A door: runs small ONNX models (probe_models.py) in ordinary ONNX Runtime sessions, reads /proc, /sys and the clock. The
arithmetic from round trips to a Link is in `LinkProbe`, which does no I/O.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepart.agent.execution.executor import Executor
from edgepart.agent.host.system import memory, text_of, thread_times
from edgepart.agent.measure.starvation import wait_between
from edgepart.agent.wire.inference import NO_EPOCH, Tensors
from edgepart.agent.workers.device_workers import Workers
from edgepart.agent.workers.orders import WorkerSettings
from edgepart.planner.devices.cluster import FIXED_S, Cluster, Device, Link
from edgepart.planner.devices.cluster_json import cluster_to_json
from edgepart.planner.errors import Unavailable, UsageError
from edgepart.planner.plans.plan import (
    GATEWAY,
    Piece,
    Port,
    Program,
    Receive,
    Run,
    Segment,
    Send,
    Step,
    Transfer,
)
from edgepart.planner.region import Region

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from edgepart.agent.measure.probe_models import Trial

ECHO_BYTES = 1 << 20
"""Payload of a large echo."""
BORDER_BYTES = 1 << 18
"""Payload of a middle echo: about as much as devices that share a layer send each other."""
CLEARLY_FASTER = 2.0
"""The factor from which one direction of a link counts as faster than the other. Less is within what two measurements of
one link differ by, and plans for equal directions are simpler."""
BURST = 16
"""Number of small echoes that go together, to measure the cost of one more message."""

ROOM_BYTES = 350 << 20
"""Free memory that the largest trials need: they take 130 MB beside the interpreter, and the system needs some."""
UNKNOWN_MEMORY_BYTES = 1 << 30
"""Free memory that is assumed if the system does not tell: what the smallest devices have."""
_SHARE_OF_MEMORY = 0.8
"""The part of the free memory that plans may take; the rest is for the system, and for memory that plans do not count."""

_LEAST_RUNS = 3
_MOST_RUNS = 400
"""Timed runs of each trial. The best counts, because a disturbance only ever makes a run longer."""

_WORKER_BYTES = 1 << 20
"""Memory shared with the worker that is measured."""
_BUDGET_S = 0.03
"""Seconds for the runs of one trial; each gets at least _LEAST_RUNS."""


def probe_device(
    name: str,
    threads: int,
    memory_limit: float | None = None,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Device:
    """Measure this device with `threads` threads, which takes about two seconds on a small one.

    `memory_limit` in bytes replaces the free memory. If that is little, trials that take hundreds of megabytes are left
    out. Raises UsageError if `memory_limit` or `threads` is below 1."""
    if threads < 1 or (memory_limit is not None and memory_limit < 1):
        raise UsageError(
            f"cannot measure with {threads} threads and {memory_limit} bytes; both must be positive"
        )
    from edgepart.agent.measure import probe_models  # Imported here: its weights are tens of megabytes.
    from edgepart.agent.measure.calibration import calibrate

    free = memory_limit or available_memory_bytes()
    tried = probe_models.MOVES if free < ROOM_BYTES else {**probe_models.MOVES, **probe_models.large_moves()}
    found = calibrate(lambda trial: _best_s(trial, threads, clock), tried)
    return Device(
        name=name,
        kind=device_kind(),
        flops_per_s=found.families["conv"],
        memory_bytes_per_s=found.moves.get("elementwise/67108864", found.moves["elementwise/2097152"]),
        memory_bytes=float(memory_limit or free * _SHARE_OF_MEMORY),
        threads=threads,
        segment_s=_segment_s(threads),
        families=found.families,
        moves=found.moves,
        kernel_s=found.kernel_s,
    )


def _segment_s(threads: int) -> float:
    """Seconds that a segment takes besides its operators: a run in a worker, and the executor's work before and after."""
    from edgepart.agent.measure.probe_models import LONG_CHAIN, chain_trial

    program, transfers = _program(chain_trial(1).model.SerializeToString(), LONG_CHAIN)
    done = Event()
    executor = Executor(lambda *_: done.set())
    executor.start()
    with tempfile.TemporaryDirectory(prefix="edgepart-") as folder:
        workers = Workers(WorkerSettings(Path(folder), Path(folder), 0, threads), _WORKER_BYTES)
        try:
            prepared = workers.prepare("probe", "", program, transfers)
            executor.install("probe", NO_EPOCH, prepared, transfers, {_HERE: _HERE})
            best, end, request = float("inf"), time.perf_counter() + _BUDGET_S, 0
            while request < _LEAST_RUNS or time.perf_counter() < end:
                request += 1
                done.clear()
                start = time.perf_counter()
                executor.deliver(
                    Tensors("probe", NO_EPOCH, f"{_HERE}/{request}", 0, ()), [np.ones(1, np.float32)]
                )
                done.wait()
                best = min(best, time.perf_counter() - start)
            return best / LONG_CHAIN
        finally:
            executor.stop()
            workers.stop()


_HERE = "here"


def _program(model: bytes, runs: int) -> tuple[Program, tuple[Transfer, ...]]:
    """A program that runs one segment `runs` times for one request, and its transfers."""
    x, y = Piece("x", Region.full((1,))), Piece("y", Region.full((1,)))
    segment = Segment(
        digest="",
        model=model,
        inputs=(Port("x", x),),
        outputs=(Port("y", y),),
        weights=(),
        operators=(),
        compute_s=0.0,
        flops=0.0,
        workspace_bytes=0,
    )
    steps: tuple[Step, ...] = (Receive(0), *[Run(0)] * runs, Send(1))
    transfers = Transfer(0, GATEWAY, _HERE, (x,), 4), Transfer(1, _HERE, GATEWAY, (y,), 4)
    return Program(_HERE, steps, (segment,), 0, 0), transfers


def _best_s(trial: Trial, threads: int, clock: Callable[[], float]) -> float:
    """Shortest time of one run, in seconds."""
    session = _session(trial, threads)
    feeds = {"x": trial.input}
    session.run(None, feeds)
    best, end = float("inf"), clock() + _BUDGET_S
    for run in range(_MOST_RUNS):
        start = clock()
        session.run(None, feeds)
        best = min(best, clock() - start)
        if run + 1 >= _LEAST_RUNS and clock() > end:
            break
    return best


def _session(trial: Trial, threads: int) -> InferenceSession:
    import onnxruntime as ort  # The agent's process does not load it; the probe has its own (probe_process.py).

    from edgepart.agent.execution.runtime.cpu_sessions import force_exact_int8_products

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    force_exact_int8_products(options)
    return ort.InferenceSession(trial.model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def device_kind(device_tree: Path = Path("/proc/device-tree"), cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """A name that is equal for devices of equal hardware: the board's chip, else the processor and its architecture."""
    board = text_of(device_tree / "compatible").strip("\0")  # "raspberrypi,4-model-b\0brcm,bcm2711\0"
    if board:
        return board.split("\0")[-1].split(",")[-1]  # The last entry is the chip.
    text = text_of(cpuinfo)
    found = re.search(r"^(?:model name|Hardware|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    words = re.findall(r"[a-z0-9.]+", (found[1] if found else platform.processor() or "unknown").lower())
    return "-".join([*words, platform.machine().lower()])


def plannable_memory_bytes() -> float:
    """Bytes that plans may take of this device now."""
    return available_memory_bytes() * _SHARE_OF_MEMORY


def available_memory_bytes(
    cgroup: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int:
    """Bytes that this process can still take: free on the device, and below every limit of the process's control groups."""
    free = memory()[0] or UNKNOWN_MEMORY_BYTES
    for line in text_of(own).splitlines():
        number, controllers, inside = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            free = min([free, *_left_in_groups(cgroup, inside, "memory.max", "memory.current")])
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            free = min([free, *_left_in_groups(cgroup / "memory", inside, *names)])
    return max(free, 1)


def _left_in_groups(root: Path, inside: str, limit: str, usage: str) -> list[int]:
    """Bytes left in a control group, and in each group around it, that has a limit."""
    left = []
    folder = root / inside.lstrip("/")
    for group in [folder, *folder.parents]:
        allowed, used = text_of(group / limit).strip(), text_of(group / usage).strip()
        if allowed.isdigit() and used.isdigit():  # "max", or an empty text, means no limit in this group.
            left.append(int(allowed) - int(used))
        if group == root:
            break
    return left


@dataclass
class LinkProbe:
    """Computes a Link from the round trips of echoes.

    A round trip without payload is twice the way of one message. Each further message of a burst adds the fixed cost of a
    message at the slower end; the rest of the way is latency. A large round trip takes longer because its payload travels
    in both directions. Of several echoes of one size, the median counts, as the next echo will take about that long; of
    several sizes, the one with the lowest bandwidth counts."""

    small_s: list[float] = field(default_factory=list)
    """Round trips of echoes without payload, in seconds."""
    big: list[tuple[int, float]] = field(default_factory=list)
    """Payload bytes (in each direction) and seconds of round trips; several echoes that went together count as one."""
    bursts: list[tuple[int, float]] = field(default_factory=list)
    """Number of echoes without payload that went together, and seconds until all were back."""
    there_s: list[float] = field(default_factory=list)
    """Round trips of echoes with a payload of BORDER_BYTES on the way to the other end only."""
    back_s: list[float] = field(default_factory=list)
    """The same with the payload on the way back only."""

    def add(self, payload_bytes: int, round_trip_s: float) -> None:
        """Add one echo. Raises UsageError for an impossible size or time."""
        if not round_trip_s > 0 or payload_bytes < 0:
            raise UsageError(f"an echo of {payload_bytes} bytes cannot take {round_trip_s} s")
        if payload_bytes < 1024:
            self.small_s.append(round_trip_s)
        else:
            self.big.append((payload_bytes, round_trip_s))

    def add_burst(self, count: int, seconds: float) -> None:
        """Add `count` echoes without payload that were sent together. Raises UsageError for an impossible count or time."""
        if count < 2 or not seconds > 0:
            raise UsageError(f"{count} echoes cannot take {seconds} s together")
        self.bursts.append((count, seconds))

    def link(self) -> Link:
        """The link. Raises Unavailable as long as echoes with or without payload are missing."""
        if not self.small_s or not self.big:
            raise Unavailable("this link is not measured yet: no echo came back")
        small_s = median(self.small_s)
        trips: dict[int, list[float]] = {}
        for nbytes, trip_s in self.big:
            trips.setdefault(nbytes, []).append(trip_s)
        rate = min(_rate(nbytes, median(taken), small_s) for nbytes, taken in trips.items())
        message_s = self._message_s(small_s)
        return Link(rate, small_s / 2 - 2 * message_s, message_s)

    def both(self) -> tuple[Link, Link]:
        """The link to the other end and the link from it. They are the same unless echoes of one way took clearly longer in
        one direction. Raises Unavailable as `link` does."""
        link = self.link()
        if not self.there_s or not self.back_s:
            return link, link
        small_s = median(self.small_s)
        there, back = (
            _rate(BORDER_BYTES / 2, median(taken), small_s) for taken in (self.there_s, self.back_s)
        )
        if max(there, back) < CLEARLY_FASTER * min(there, back):
            return link, link
        # A round trip takes as long as both ways together: 2 / rate = 1 / there + 1 / back.
        to_other = link.bytes_per_s * (1 + there / back) / 2
        return replace(link, bytes_per_s=to_other), replace(link, bytes_per_s=to_other * back / there)

    def _message_s(self, small_s: float) -> float:
        """Fixed cost of a message at each end, in seconds; at most half of a message's way."""
        each = [(seconds - small_s) / (count - 1) for count, seconds in self.bursts]
        return min(max(0.0, median(each or [FIXED_S])), small_s / 4)


def _rate(nbytes: float, trip_s: float, small_s: float) -> float:
    """Bytes/s of an echo's payload, which travels there and back."""
    return 2 * nbytes / max(trip_s - small_s, trip_s / 100)


def echo_sizes() -> Sequence[int]:
    """Payloads of the echoes that measure a link, in the order to send them."""
    return (*[0] * 12, *[BORDER_BYTES] * 8, *[ECHO_BYTES] * 5)


def probe_document(name: str, threads: int, memory_limit: float | None) -> dict[str, Any]:
    """What `probe_device` measures, and for what part of the time this process waited for a CPU meanwhile."""
    before = thread_times([os.getpid()])
    device = probe_device(name, threads, memory_limit)
    waited = wait_between(before, thread_times([os.getpid()]))
    return {"measured": cluster_to_json(Cluster((device,))), "waited_share": waited.share}


if __name__ == "__main__":  # Started by agent/measure/probe_process.py.
    _limit = float(sys.argv[3]) if len(sys.argv) > 3 else None
    print(json.dumps(probe_document(sys.argv[1], int(sys.argv[2]), _limit)))
