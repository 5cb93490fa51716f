"""What this box can do, and what its links can: measured where that is possible, read where it is not.

A door: runs small ONNX models in ordinary ONNX Runtime sessions, reads /proc, /sys and the clock. The
arithmetic from round trips to a Link is in `LinkProbe`, which does no I/O.
"""

from __future__ import annotations

import math
import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime as ort
import psutil
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgepart.planner.cluster import Device, Link
from edgepart.planner.errors import Unavailable, UsageError
from edgepart.planner.region import Array

ECHO_BYTES = 1 << 20
"""Payload of the big echo."""

_SHARE_OF_MEMORY = 0.8
"""Of what is free: the rest is for the system, and for what the plan does not count."""

_RUNS = 40
"""Timed runs of each probe; the best counts: what disturbs a run only ever makes it longer."""

_BUDGET_S = 0.25
"""For the runs of one probe; the first always runs to its end."""


@dataclass(frozen=True, slots=True)
class _Work:
    """One small model, and what it does."""

    node: NodeProto
    """Reads "x" and, where there is one, the weight "w"; writes "y"."""
    x: tuple[int, ...]
    w: tuple[int, ...] | None
    y: tuple[int, ...]
    flops: float
    nbytes: float
    """Moved to and from memory, by an operator that does nothing else."""


def _conv(channels: int, size: int, kernel: int, groups: int = 1) -> _Work:
    weight = (channels, channels // groups, kernel, kernel)
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=groups, pads=[kernel // 2] * 4)
    shape = (1, channels, size, size)
    return _Work(node, shape, weight, shape, 2.0 * math.prod(weight) * size * size, 0)


_WORKS: dict[str, _Work] = {
    "conv": _conv(64, 56, 3),
    "pointwise": _conv(256, 28, 1),
    "depthwise": _conv(128, 56, 3, groups=128),
    "gemm": _Work(
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        (64, 512),
        (512, 512),
        (64, 512),
        2.0 * 64 * 512 * 512,
        0,
    ),
    "memory": _Work(helper.make_node("Neg", ["x"], ["y"]), (1 << 23,), None, (1 << 23,), 0, 8.0 * (1 << 23)),
    "segment": _Work(helper.make_node("Neg", ["x"], ["y"]), (1,), None, (1,), 0, 0),
}


def probe_device(
    name: str,
    threads: int,
    memory_limit: float | None = None,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Device:
    """Measures this box with `threads` threads; about two seconds on a small one.

    `memory_limit` in bytes replaces what is free. UsageError for one below 1, or no threads."""
    if threads < 1 or (memory_limit is not None and memory_limit < 1):
        raise UsageError(
            f"cannot measure with {threads} threads and {memory_limit} bytes; both must be positive"
        )
    best_s = {family: _best_s(work, threads, clock) for family, work in _WORKS.items()}
    segment_s = best_s["segment"]
    families = {
        family: work.flops / max(best_s[family] - segment_s, best_s[family] / 10)
        for family, work in _WORKS.items()
        if work.flops
    }
    return Device(
        name=name,
        kind=device_kind(),
        flops_per_s=families["conv"],
        memory_bytes_per_s=_WORKS["memory"].nbytes / best_s["memory"],
        memory_bytes=float(memory_limit or available_memory_bytes() * _SHARE_OF_MEMORY),
        threads=threads,
        segment_s=segment_s,
        families=families,
    )


def _best_s(work: _Work, threads: int, clock: Callable[[], float]) -> float:
    """Shortest time of one run, in seconds."""
    session = _session(work, threads)
    feeds = {"x": _noise(work.x)}
    session.run(None, feeds)
    best, end = float("inf"), clock() + _BUDGET_S
    for _ in range(_RUNS * (10 if not (work.flops or work.nbytes) else 1)):
        start = clock()
        session.run(None, feeds)
        best = min(best, clock() - start)
        if clock() > end:
            break
    return best


def _session(work: _Work, threads: int) -> ort.InferenceSession:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, work.x)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, work.y)]
    weights = [] if work.w is None else [numpy_helper.from_array(_noise(work.w), "w")]
    graph = helper.make_graph([work.node], "probe", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _noise(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def device_kind(device_tree: Path = Path("/proc/device-tree"), cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Equal for boxes of equal hardware: the board's chip, else the processor and its architecture."""
    board = _text(device_tree / "compatible").strip("\0")  # "raspberrypi,4-model-b\0brcm,bcm2711\0"
    if board:
        return board.split("\0")[-1].split(",")[-1]  # the last is the chip
    text = _text(cpuinfo)
    found = re.search(r"^(?:model name|Hardware|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    words = re.findall(r"[a-z0-9.]+", (found[1] if found else platform.processor() or "unknown").lower())
    return "-".join([*words, platform.machine().lower()])


def available_memory_bytes(
    cgroup: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int:
    """Bytes that can still be had: free in the machine, and below every limit that this process is under."""
    free = int(psutil.virtual_memory().available)
    for line in _text(own).splitlines():
        number, controllers, inside = line.split(":", 2)
        if number == "0" and not controllers:
            free = min([free, *_left_in_groups(cgroup, inside, "memory.max", "memory.current")])
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            free = min([free, *_left_in_groups(cgroup / "memory", inside, *names)])
    return max(free, 1)


def _left_in_groups(root: Path, inside: str, limit: str, usage: str) -> list[int]:
    """Bytes left in a control group and in those around it, where they have limits."""
    left = []
    folder = root / inside.lstrip("/")
    for group in [folder, *folder.parents]:
        allowed, used = _text(group / limit).strip(), _text(group / usage).strip()
        if allowed.isdigit() and used.isdigit():  # "max", or nothing, is no limit at this height
            left.append(int(allowed) - int(used))
        if group == root:
            break
    return left


def _text(path: Path) -> str:
    """What is in a file of the system; "" where there is none, or none for us."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def default_threads() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


@dataclass
class LinkProbe:
    """From round trips of echoes to a Link. Feed it, then ask.

    The best small round trip is twice the latency; what a big one takes longer is its payload, both ways.
    The best of several counts: what disturbs an echo only makes it longer."""

    small_s: list[float] = field(default_factory=list)
    """Round trips of echoes without payload."""
    big: list[tuple[int, float]] = field(default_factory=list)
    """Payload bytes (sent and sent back) and round trips; several echoes that went together count as one."""

    def add(self, payload_bytes: int, round_trip_s: float) -> None:
        """One echo; UsageError for a time that cannot be."""
        if not round_trip_s > 0 or payload_bytes < 0:
            raise UsageError(f"an echo of {payload_bytes} bytes cannot take {round_trip_s} s")
        if payload_bytes < 1024:
            self.small_s.append(round_trip_s)
        else:
            self.big.append((payload_bytes, round_trip_s))

    def link(self) -> Link:
        """Unavailable: not both kinds of echo came back yet."""
        if not self.small_s or not self.big:
            raise Unavailable("this link is not measured yet: no echo came back")
        quiet_s = min(self.small_s)
        rates = [2 * nbytes / max(trip_s - quiet_s, trip_s / 100) for nbytes, trip_s in self.big]
        return Link(bytes_per_s=max(rates), latency_s=quiet_s / 2)


def echo_sizes() -> Sequence[int]:
    """Payloads of the echoes that measure a link, in the order to send them."""
    return (*[0] * 10, *[ECHO_BYTES] * 4)
