"""Cost of executor and worker over a bare ONNX Runtime session with the same model, threads and options.

The session runs in this process; the product computes in a worker process. Runs come in pairs, whose order
alternates, and the ratio within pairs counts, because whatever else the machine does then weighs on both.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any

import numpy as np
import onnxruntime as ort
import psutil

from benchmarks.comparing import largest_difference
from benchmarks.models import light, sample_inputs
from edgepart.agent.execution.executor import Executor
from edgepart.agent.execution.runtime.cpu_sessions import session_options
from edgepart.agent.measure.probe import probe_device
from edgepart.agent.storage.store import Store
from edgepart.agent.wire.inference import Epoch, RequestMessage, Tensors
from edgepart.agent.wire.tensors import Value
from edgepart.agent.workers.device_workers import Workers
from edgepart.agent.workers.orders import WorkerSettings
from edgepart.planner.devices.cluster import Cluster
from edgepart.planner.errors import InternalError
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.blobs import pack_constant
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import choose_plan
from edgepart.planner.plans.plan import GATEWAY, Plan

SHARED_BYTES = 1 << 34
DEPLOYMENT, EPOCH, NODE = "overhead", Epoch(1, 1), "here"
WARM_UP = 3
ANSWER_S = 60.0


@dataclass(frozen=True)
class Overhead:
    """The overhead for one model and number of threads."""

    model: str
    threads: int
    pairs: int
    bare_s: float
    """Median of a bare session's runs."""
    executor_s: float
    """Median from the request's inputs at the executor to its outputs."""
    ratio: float
    """Median of the executor's time over the bare session's within the pairs."""
    spread: tuple[float, float]
    """The ratio's quartiles."""
    cpu_ratio: float
    """The same ratio of CPU time, of this process and the worker, which depends less on other processes' load."""
    least_ratio: float
    """Ratio of the fastest run of each: the runs that were disturbed least."""
    largest_difference: float
    """Largest difference of the answers, relative to the largest magnitude."""


class Bare:
    """One session over the whole file, with the options that the product gives its sessions."""

    def __init__(self, path: Path, threads: int) -> None:
        options = session_options(threads)
        self._session: Any = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.names = [output.name for output in self._session.get_outputs()]

    def __call__(self, inputs: Mapping[str, Value]) -> dict[str, Value]:
        return dict(zip(self.names, self._session.run(self.names, dict(inputs)), strict=True))


class OneDevice:
    """A plan for one device, its sessions and an executor; the caller plays the gateway. A context manager."""

    def __init__(self, graph: Graph, threads: int) -> None:
        device = probe_device("here", threads)
        problem = Problem(graph, Cluster((device,)), device.name)
        self.plan: Plan = choose_plan(problem, "single", "0" * 64)[0]
        program = self.plan.programs[device.name]
        self._folder = tempfile.TemporaryDirectory(prefix="edgepart-")
        store = Store(Path(self._folder.name) / "store")
        for ref in {ref.digest: ref for segment in program.segments for ref in segment.weights}.values():
            store.put_bytes(pack_constant(graph.constants[ref.source], ref.region).tobytes())
        settings = WorkerSettings(store.root, Path(self._folder.name) / "compiled", 0, threads)
        self._workers = Workers(settings, SHARED_BYTES)
        self._executor = Executor(self._take)
        self._executor.start()
        prepared = self._workers.prepare(DEPLOYMENT, self.plan.model_digest, program, self.plan.transfers)
        self._executor.install(DEPLOYMENT, EPOCH, prepared, self.plan.transfers, {device.name: NODE})
        self._number = 0
        self._answered = Event()
        self._outputs: dict[str, Value] = {}
        self._failure = ""

    def __enter__(self) -> OneDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.stop()
        self._workers.stop()
        self._folder.cleanup()

    def _take(self, _: str, message: RequestMessage, values: Sequence[Value]) -> None:
        if isinstance(message, Tensors):
            pieces = self.plan.transfers[message.transfer].pieces
            self._outputs |= {piece.tensor: value for piece, value in zip(pieces, values, strict=True)}
        else:
            self._failure = str(message)
        if self._failure or len(self._outputs) == len(self.plan.outputs):
            self._answered.set()

    def __call__(self, inputs: Mapping[str, Value]) -> dict[str, Value]:
        self._number += 1
        self._outputs = {}
        self._answered.clear()
        for transfer in self.plan.transfers:
            if transfer.source == GATEWAY:
                message = Tensors(DEPLOYMENT, EPOCH, f"{NODE}/{self._number}", transfer.number, ())
                self._executor.deliver(message, [inputs[piece.tensor] for piece in transfer.pieces])
        if not self._answered.wait(ANSWER_S) or self._failure:
            raise InternalError(f"the executor gave no answer: {self._failure or f'{ANSWER_S} s went by'}")
        return self._outputs


def measure(name: str, threads: int, pairs: int) -> Overhead:
    """Measure the overhead for one light model."""
    path = light(name)
    graph = load_graph(path)
    inputs = sample_inputs(graph)
    bare = Bare(path, threads)
    with OneDevice(graph, threads) as executor:
        for _ in range(WARM_UP):
            expected, got = bare(inputs), executor(inputs)
        times = np.array([_pair(bare, executor, inputs, number % 2 == 1) for number in range(pairs)])
    ratios, cpu_ratios = times[:, 2] / times[:, 0], times[:, 3] / times[:, 1]
    quartiles = np.quantile(ratios, [0.25, 0.75])
    return Overhead(
        model=name,
        threads=threads,
        pairs=pairs,
        bare_s=float(np.median(times[:, 0])),
        executor_s=float(np.median(times[:, 2])),
        ratio=median(map(float, ratios)),
        spread=(float(quartiles[0]), float(quartiles[1])),
        cpu_ratio=float(np.median(cpu_ratios)),
        least_ratio=float(times[:, 2].min() / times[:, 0].min()),
        largest_difference=largest_difference(got, expected),
    )


def _pair(
    bare: Bare, executor: OneDevice, inputs: Mapping[str, Value], executor_first: bool
) -> tuple[float, float, float, float]:
    """Return seconds and CPU seconds of the bare session, then of the executor."""
    if executor_first:
        executors, bares = _timed(executor, inputs), _timed(bare, inputs)
    else:
        bares, executors = _timed(bare, inputs), _timed(executor, inputs)
    return (*bares, *executors)


def _timed(run: Bare | OneDevice, inputs: Mapping[str, Value]) -> tuple[float, float]:
    workers = [child.pid for child in psutil.Process().children()]
    began, cpu_s = time.perf_counter(), _cpu_s(workers)
    run(inputs)
    return time.perf_counter() - began, _cpu_s(workers) - cpu_s


def _cpu_s(processes: Sequence[int]) -> float:
    """Return the CPU seconds of this process and of others, by the kernel's clock of each
    (clock_getcpuclockid(3))."""
    return time.process_time() + sum(time.clock_gettime((~pid << 3) | 2) for pid in processes)
