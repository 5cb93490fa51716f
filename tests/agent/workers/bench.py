"""A bench: workers over a store of their own, what they told, and segments that do them harm."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from edgepart.agent.execution.prepared import LoadUrgency
from edgepart.agent.storage.store import Store
from edgepart.agent.workers.device_workers import Workers
from edgepart.agent.workers.orders import WorkerSettings
from edgepart.agent.workers.process import WorkerProcess
from edgepart.agent.workers.remote_program import RemoteProgram
from edgepart.planner.errors import EdgepartError
from edgepart.planner.plans.plan import Piece, Port, Program, Receive, Run, Segment
from edgepart.planner.region import Region
from tests.agent import handmade

LOWEST = np.iinfo(np.int64).min
"""Divided by -1 it ends the process that divides."""


class Bench:
    """Workers over a store of their own, and what they told."""

    def __init__(self, folder: Path, memory_bytes: int | None = None, compiled_bytes: int = 0) -> None:
        self.store = Store(folder / "store")
        self.crashed: list[tuple[str, str, str]] = []
        self.told = threading.Event()
        self.resting: Callable[[float], None] = lambda took_s: None
        """What the device does after each session."""
        plan = handmade.split_plan()
        for ref in {w for p in plan.programs.values() for s in p.segments for w in s.weights}:
            self.store.put_bytes(handmade.read_weight(ref).tobytes())
        self.workers = Workers(
            WorkerSettings(self.store.root, folder / "compiled", compiled_bytes, 1, memory_bytes),
            1 << 33,
            rest=lambda took_s: self.resting(took_s),
            crashed=self._crashed,
        )

    def _crashed(self, deployment: str, model: str, why: str) -> None:
        self.crashed.append((deployment, model, why))

    def prepare(
        self, *segments: Segment, deployment: str = "net", urgency: LoadUrgency = LoadUrgency.COMING
    ) -> RemoteProgram:
        steps: tuple[Receive | Run, ...] = (Receive(0), *(Run(n) for n in range(len(segments))))
        program = Program("a", steps, segments, 0, 0)
        return self.workers.prepare(deployment, "digest", program, (), urgency=urgency)


def port(name: str, *shape: int) -> Port:
    return Port(name, Piece(name, Region.full(shape)))


def division() -> Segment:
    node = helper.make_node("Div", ["x", "by"], ["y"])
    ports = [port("x", 2), port("by", 2)]
    return handmade.segment([node], ports, [port("y", 2)], dtype=TensorProto.INT64)


def divide(program: RemoteProgram, x: int, by: int) -> list[int]:
    (found,) = program.run(0, [np.full(2, x), np.full(2, by)])
    return [int(n) for n in found]


def counting() -> Segment:
    """As many rounds as its input says."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["v", "v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.INT64, [1]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.INT64, [1]),
        ],
    )
    node = helper.make_node("Loop", ["x", "", "x"], ["y"], body=body)
    return handmade.segment([node], [port("x", 1)], [port("y", 1)], dtype=TensorProto.INT64)


def doubling() -> Segment:
    node = helper.make_node("Add", ["x", "x"], ["y"])
    return handmade.segment([node], [port("x", 2)], [port("y", 2)], dtype=TensorProto.INT64)


def process_of(program: RemoteProgram) -> WorkerProcess:
    """The process that computes the program now."""
    process = program.runs._supervisor.process
    assert process is not None
    return process


def kill(program: RemoteProgram) -> None:
    """From outside."""
    process = process_of(program)
    os.kill(process._process.pid, signal.SIGKILL)
    process._process.wait()


def in_a_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Exception]]:
    caught: list[Exception] = []

    def run() -> None:
        try:
            work()
        except EdgepartError as error:
            caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, caught
