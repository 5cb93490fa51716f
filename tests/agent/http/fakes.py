"""A node without a cluster: real ONNX Runtime sessions behind the gateway's Protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from edgepart.agent.api.deployed_model import DeployedModel, DeployedVersion
from edgepart.agent.api.device_choice import check_devices
from edgepart.agent.api.inference_request import InferResult, SequenceTurn
from edgepart.agent.api.model_card import CandidateCard, ModelCard
from edgepart.agent.api.stages import Progress
from edgepart.agent.chronicle.event_log import EventLog
from edgepart.agent.chronicle.log_lines import LogKeeper
from edgepart.agent.wire.inference import DeployOptions, Epoch
from edgepart.agent.wire.trials import TrialShare, candidate_name
from edgepart.planner.errors import Infeasible, RequestError, Unavailable, UsageError
from edgepart.planner.plans.plan import ValueInfo

ELEMENTS = ("float", "double", "float16", "int8", "int64", "uint16", "bool", "string")


def identity_model(element: str) -> bytes:
    """y = x, of any shape of rank 2."""
    kind = TensorProto.DataType.Value(element.upper())
    values = [helper.make_tensor_value_info(name, kind, ["n", "m"]) for name in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "identity", values[:1], values[1:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def add_model() -> bytes:
    """total = a + b and less = a - b, of [2, 3] floats."""
    values = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in ("a", "b", "total", "less")
    ]
    nodes = [
        helper.make_node("Add", ["a", "b"], ["total"]),
        helper.make_node("Sub", ["a", "b"], ["less"]),
    ]
    graph = helper.make_graph(nodes, "add", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


@cache
def _sessions() -> dict[str, ort.InferenceSession]:
    """Made once, without threads of their own: hundreds of pools would outlive their tests."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    models = {f"same-{element}": identity_model(element) for element in ELEMENTS} | {"add": add_model()}
    return {name: ort.InferenceSession(model, options) for name, model in models.items()}


class FakeNode:
    """Implements Node."""

    name = "pi-a"
    version = "0.0"
    fingerprint = "f" * 64

    def __init__(self) -> None:
        self.event_log = EventLog()
        self.log_lines = LogKeeper().lines
        self.sessions = dict(_sessions())
        self.texts: tuple[str, ...] = ()
        """Further deployments, which generate text."""
        self.unready: dict[str | None, str] = {}
        self.deployed: dict[str, tuple[dict[str, bytes], DeployOptions]] = {}
        self.failure: Exception | None = None
        """What the next infer or deploy raises."""
        self.gate: asyncio.Event | None = None
        """Requests wait for it, where there is one."""
        self.states: dict[str, dict[str, Any]] = {}
        """Maps a model to the inputs that it keeps as states, with the values that a request then begins with."""
        self.turns: list[SequenceTurn | None] = []
        """The sequences of the requests so far."""
        self.described: dict[str, DeployedModel] = {}
        """What is deployed, where that is not a model of zeros with the usual options."""
        self.numbers: dict[str, str] = {}
        """The number of a model's version, where that is not 1."""
        self.trials: dict[str, CandidateCard] = {}
        """The candidates of deployments."""
        self.drawn: list[bool] = []
        """Of each request so far, whether a candidate might answer it."""
        self.cancelled = 0
        self.traced_s = 0.0
        self.trace_document: dict[str, Any] | None = None

    async def drawing(self, name: str) -> dict[str, Any]:
        if name in self.unready:
            raise Unavailable(f"no plan of {name!r} is active")
        return {"epoch": [3, 1], "devices": {"pi-a": "#3b82f6"}, "timeline": "<svg></svg>", "layers": None}

    def live(self) -> bool:
        return True

    def ready(self, model: str | None) -> tuple[bool, str]:
        return model not in self.unready, self.unready.get(model, "")

    def models(self) -> Sequence[ModelCard]:
        return [self._card(name) for name in self.sessions] + [
            ModelCard(name, "serving") for name in self.texts
        ]

    def deployments(self) -> Sequence[DeployedModel]:
        return [
            self.described.get(
                name, DeployedModel(name, DeployedVersion(int(self.numbers.get(name, "1")), "0" * 64, {}), ())
            )
            for name in self.sessions
        ]

    async def rollback(self, name: str, to: int | None, progress: Progress) -> dict[str, Any]:
        if to == 9:
            raise UsageError(f"{name!r} serves version 1, and version 9 is not kept")
        progress("planning", 0, 0)
        self.numbers[name] = str(to or 1)
        return {"name": name, "version": self.numbers[name], "devices": [self.name], "notes": []}

    async def deploy_candidate(
        self, name: str, given: Path | str, options: DeployOptions, share: TrialShare, progress: Progress
    ) -> dict[str, Any]:
        called = candidate_name(name)
        if isinstance(given, str):
            answer = await self.deploy_stored(called, given, options, progress)
        else:
            answer = await self.deploy(called, given, options, progress)
        self.trials[name] = CandidateCard(candidate_name(name), "2", share.percent, share.shadow, "")
        return answer | {"candidate_of": name, "share": share.percent, "shadow": share.shadow, "version": "2"}

    async def share(self, name: str, share: TrialShare) -> CandidateCard:
        self.trials[name] = replace(self._trial(name), share=share.percent, shadow=share.shadow)
        return self.trials[name]

    async def promote(self, name: str, progress: Progress) -> dict[str, Any]:
        progress("planning", 0, 0)
        self.numbers[name] = self._trial(name).version
        del self.trials[name]
        return {"name": name, "version": self.numbers[name], "devices": [self.name], "notes": []}

    async def discard(self, name: str) -> str:
        version = self._trial(name).version
        del self.trials[name]
        return version

    def _trial(self, name: str) -> CandidateCard:
        if name not in self.trials:
            raise UsageError(f"{name!r} has no candidate. Nothing was changed")
        return self.trials[name]

    def model(self, name: str) -> ModelCard | None:
        return self._card(name) if name in self.sessions else None

    def _card(self, name: str) -> ModelCard:
        def values(found: Any) -> tuple[ValueInfo, ...]:
            return tuple(
                ValueInfo(
                    value.name,
                    value.type.removeprefix("tensor(").removesuffix(")"),
                    tuple(extent if isinstance(extent, int) else -1 for extent in value.shape),
                )
                for value in found
            )

        session = self.sessions[name]
        state, kept = self.unready.get(name, "serving"), self.states.get(name, {})
        return ModelCard(
            name,
            state,
            values(one for one in session.get_inputs() if one.name not in kept),
            values(session.get_outputs()),
            Epoch(3, 1),
            "single",
            (self.name,),
            "one device only",
            0.001,
            version=self.numbers.get(name, "1"),
            states=tuple(kept),
            candidate=self.trials.get(name),
        )

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None,
        deadline_s: float,
        sequence: SequenceTurn | None = None,
        *,
        drawn: bool = True,
    ) -> InferResult:
        began = time.perf_counter()
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failure is not None:
            raise self.failure
        self.turns.append(sequence)
        self.drawn.append(drawn)
        session = self.sessions[model]
        inputs = {**self.states.get(model, {}), **inputs}
        names = list(outputs or [value.name for value in session.get_outputs()])
        values = await asyncio.to_thread(session.run, names, dict(inputs))
        took_s, version = time.perf_counter() - began, self.numbers.get(model, "1")
        return InferResult(dict(zip(names, values, strict=True)), Epoch(3, 1), took_s, version=version)

    def admit(self, options: DeployOptions) -> None:
        check_devices(options.devices, [self.name], ["pi-away"])

    async def deploy(
        self, name: str, folder: Path, options: DeployOptions, progress: Progress
    ) -> dict[str, Any]:
        await asyncio.to_thread(progress, "planning", 0, 0)
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        self.deployed[name] = files, options
        for done in range(3):
            progress("sending weights", done, 2)
        return {"name": name, "devices": [self.name], "notes": []}

    async def deploy_stored(
        self, name: str, model: str, options: DeployOptions, progress: Progress
    ) -> dict[str, Any]:
        if self.failure is not None:
            raise self.failure
        self.deployed[name] = {"model": model.encode()}, options
        return {"name": name, "devices": [self.name], "notes": []}

    async def undeploy(self, name: str) -> None:
        del self.sessions[name]

    async def drain(self, name: str, progress: Progress, *, remove: bool) -> dict[str, Any]:
        if name != self.name:
            raise UsageError(f"no device {name!r}")
        progress("net still runs on it", 0, 0)
        if self.gate is not None:
            await self.gate.wait()
        return {"name": name, "node": "0" * 16, "state": "removed" if remove else "drained"}

    async def undrain(self, name: str) -> dict[str, Any]:
        return {"name": name, "node": "0" * 16, "state": "in"}

    def status(self) -> dict[str, Any]:
        member = {
            "name": self.name,
            "node": "0" * 16,
            "state": "alive",
            "http": None,
            "address": "",
            "leader": True,
        }
        return {
            "name": self.name,
            "node": "0" * 16,
            "version": self.version,
            "cluster": self.fingerprint,
            "http": None,
            "leader": self.name,
            "term": 3,
            "uptime_s": 1.0,
            "members": [member],
            "lost": [{"name": "pi-away", "node": "1" * 16, "state": "lost", "seconds_ago": 12.0}],
        }

    def devices(self) -> dict[str, Any]:
        return {"devices": [], "links": []}

    def plan(self, name: str) -> dict[str, Any]:
        if name in self.unready:
            raise Unavailable(f"no plan of {name!r} is active")
        computed = {"pi-a": {"predicted_compute_s": 0.011, "measured_compute_s": 0.01}}
        return {
            "strategy": "single",
            "predicted_latency_s": 0.012,
            "why": "one device only",
            "measured": {"latency_s": 0.01, "requests": 3, "devices": computed},
        }

    async def doctor(self) -> dict[str, Any]:
        return {"agent": {"name": self.name}, "boxes": [], "knocks": [], "checks": [], "notes": []}

    async def trace(self, name: str, seconds: float) -> dict[str, Any]:
        if self.failure is not None:
            raise self.failure
        self.traced_s = seconds
        return {"model": name, "devices": [self.name], "missing": {}}

    async def end_trace(self, name: str) -> dict[str, Any]:
        if self.trace_document is None:
            raise RequestError(f"no trace of {name!r} is being taken through this agent (any more)")
        return self.trace_document


NO_ROOM = Infeasible("pi-a lacks 12 bytes", {"pi-a": 12})
A = np.arange(6, dtype=np.float32).reshape(2, 3)
