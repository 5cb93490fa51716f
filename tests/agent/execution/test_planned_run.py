"""Plans of the planner's own, run by three executors: the same answer as one session over the whole model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import onnxruntime as ort
import pytest
from benchmarks.models import light, sample_inputs

from edgepart.agent.execution.executor import Executor
from edgepart.agent.execution.runtime.sessions import Sessions
from edgepart.agent.serving.requester import Requester
from edgepart.agent.wire.inference import Cancel, EndSequence, Epoch, Failed, RequestMessage
from edgepart.agent.wire.tensors import Value
from edgepart.planner.devices.cluster import Cluster, Device
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.blobs import pack_constant
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import best_strategy
from edgepart.planner.plans.plan import GATEWAY, Plan

EPOCH = Epoch(1, 1)
NODES = {f"d{n}": f"node-{n}" for n in range(3)}


async def answer(graph: Graph, plan: Plan, inputs: dict[str, Value], times: int) -> list[dict[str, Value]]:
    """The plan's outputs for `times` equal requests at once."""
    executors: dict[str, Executor] = {}

    def send(node: str, message: RequestMessage, values: Sequence[Value]) -> None:
        if isinstance(message, Cancel):
            executors[node].cancel(message.request)
        elif isinstance(message, EndSequence):
            executors[node].end_sequence(message.sequence)
        elif isinstance(message, Failed) or plan.transfers[message.transfer].target == GATEWAY:
            gateway.deliver(message, values)
        else:
            executors[node].deliver(message, values)

    gateway = Requester("gate", send)
    sessions = Sessions(1, lambda ref: pack_constant(graph.constants[ref.source], ref.region))
    for device, program in plan.programs.items():
        executors[NODES[device]] = executor = Executor(send)
        executor.start()
        executor.install("m", EPOCH, sessions.prepare(program), plan.transfers, NODES)
    gateway.activate("m", EPOCH, plan, NODES)
    answers = await asyncio.gather(*(gateway.infer("m", inputs) for _ in range(times)))
    for executor in executors.values():
        await asyncio.to_thread(executor.stop)
        assert executor.counters().requests_done == times
    return [outputs for outputs, _ in answers]


@pytest.mark.parametrize("strategy", ["single", "modnn", "deepthings", "bbgrap"])
def test_the_runtime_gives_what_one_session_gives(strategy: str) -> None:
    path = light("squeezenet")
    graph = load_graph(path)
    devices = tuple(
        Device(name, "box", speed, 5e9, 4e9) for name, speed in zip(NODES, (2e10, 1e10, 3e10), strict=True)
    )
    problem = Problem(graph, Cluster(devices), "d0")
    plan = make_plan(problem, best_strategy(problem, strategy), model_digest="0" * 64)
    inputs = sample_inputs(graph)
    whole = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, inputs)
    for outputs in asyncio.run(answer(graph, plan, dict(inputs), times=3)):
        for got, expected in zip(outputs.values(), whole, strict=True):
            assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
