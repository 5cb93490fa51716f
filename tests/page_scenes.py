"""What the page of an agent can show, made without a cluster: four boards of the catalogue, a model that the planner has
divided over them, and a history of requests. Tests of the page and `make screenshots` use these scenes.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from benchmarks.models import light
from onnx import TensorProto, helper, numpy_helper

from edgepart.agent.api.inference_request import InferResult
from edgepart.agent.api.model_card import ModelCard
from edgepart.agent.http.server import HttpServer
from edgepart.agent.wire.control import DeviceWeights
from edgepart.agent.wire.inference import Epoch
from edgepart.planner.devices.boards import KINDS
from edgepart.planner.devices.cluster import Cluster, Link
from edgepart.planner.devices.cluster_json import cluster_to_json
from edgepart.planner.errors import Unavailable
from edgepart.planner.figures import format_seconds
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import choose_plan
from edgepart.planner.plans.plan import Plan, ValueInfo
from edgepart.planner.report.drawing import draw_plan
from edgepart.planner.report.shares import plan_report
from tests.agent.http.fakes import FakeNode

BOXES = {"attic": "pi5", "desk": "n100", "garage": "pi4", "shelf": "jetson-orin-nano"}
NAME = "photos"
ARRIVED_BYTES = (24_500_000, 24_500_000, 8_000_000, 16_700_000)
"""How much of its weights each box has in the scene of a deployment under way."""
NODES = {name: f"{n:016x}" for n, name in enumerate(BOXES)}


@cache
def cluster() -> Cluster:
    devices = tuple(replace(KINDS[kind].device(name), name=name) for name, kind in BOXES.items())
    fast, slow = Link(117e6, 2e-4), Link(11.5e6, 9e-4)
    pairs = [(a, b) for a in BOXES for b in BOXES if a < b]
    return Cluster(devices, {pair: slow if "garage" in pair else fast for pair in pairs})


@cache
def plan(names: tuple[str, ...], model: str, strategy: str) -> Plan:
    """A model divided over these boxes by the planner."""
    graph = load_graph(light(model))
    found = choose_plan(
        Problem(graph, cluster().only(names), names[0], search_budget_s=1.0), strategy, "0" * 64
    )
    return found[0]


@cache
def colours_session() -> ort.InferenceSession:
    """A model that says whether a picture is mostly red, green or blue."""
    values = [
        helper.make_tensor_value_info("picture", TensorProto.FLOAT, [1, 3, 8, 8]),
        helper.make_tensor_value_info("colour", TensorProto.FLOAT, [1, 3]),
    ]
    nodes = [
        helper.make_node("GlobalAveragePool", ["picture"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Mul", ["flat", "three"], ["sharp"]),
        helper.make_node("Softmax", ["sharp"], ["colour"]),
    ]
    three = numpy_helper.from_array(np.array(3.0, np.float32), "three")
    graph = helper.make_graph(nodes, "colours", values[:1], values[1:], [three])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options)


class SceneNode(FakeNode):
    """An agent called attic, in a cluster that is not there."""

    name = "attic"
    version = "0.1.0"
    fingerprint = "0aedfd08ff9951ee" * 4

    def __init__(self, model: str = "squeezenet", strategy: str = "bbgrap") -> None:
        super().__init__()
        self.divided = model, strategy
        self.sessions = {}
        self.lost: list[dict[str, Any]] = []
        self.cards: dict[str, ModelCard] = {}
        self.plans: dict[str, Plan] = {}
        self.number = 1

    @property
    def here(self) -> tuple[str, ...]:
        return tuple(name for name in BOXES if name not in {gone["name"] for gone in self.lost})

    @property
    def best(self) -> Plan:
        """The plan for the boxes that are here."""
        return plan(self.here, *self.divided)

    def serve(self, name: str = NAME) -> None:
        """Have a plan for the boxes that are here serve."""
        found, self.number = self.best, self.number + 1
        pictures, colours = colours_session().get_inputs()[0], colours_session().get_outputs()[0]
        self.sessions[name] = colours_session()
        self.plans[name] = found
        self.cards[name] = ModelCard(
            name,
            "serving",
            (ValueInfo(pictures.name, "float", (1, 3, 8, 8)),),
            (ValueInfo(colours.name, "float", (1, 3)),),
            Epoch(1, self.number),
            found.strategy,
            tuple(found.programs),
            found.why,
            found.predicted_latency_s,
            model_digest="0" * 64,
        )

    def models(self) -> Sequence[ModelCard]:
        return list(self.cards.values())

    def model(self, name: str) -> ModelCard | None:
        return self.cards.get(name)

    def status(self) -> dict[str, Any]:
        members = [
            {
                "name": name,
                "node": NODES[name],
                "state": "alive",
                "http": None,
                "address": f"192.0.2.{n}:7433",
                "leader": name == "desk",
                "note": None,
            }
            for n, name in enumerate(BOXES, 10)
            if name in self.here
        ]
        return super().status() | {
            "members": members,
            "leader": "desk",
            "uptime_s": 7200.0,
            "lost": [dict(gone, seconds_ago=time.time() - gone["at_s"]) for gone in self.lost],
        }

    def devices(self) -> dict[str, Any]:
        return cluster_to_json(cluster().only(self.here)) | {"gateway": "desk"}

    def plan(self, name: str) -> dict[str, Any]:
        if self.cards[name].epoch is None:
            raise Unavailable(f"no plan of {name!r} is active")
        return plan_report(self.plans[name]) | {"measured": {"devices": {}}}

    async def drawing(self, name: str) -> dict[str, Any]:
        return {"epoch": [1, self.number], **draw_plan(self.plans[name], cluster(), self.name)}

    async def infer(self, *given: Any, **named: Any) -> InferResult:
        return replace(await super().infer(*given, **named), epoch=Epoch(1, self.number))


def show_empty(node: SceneNode, server: HttpServer) -> None:
    now = time.time()
    for n, name in enumerate(BOXES):
        node.event_log.tell(now - 440 + n, "joined", name, f"{name} is a member")
    node.event_log.tell(now - 436, "leader", "desk", "desk leads the cluster")


def show_deploying(node: SceneNode, server: HttpServer) -> None:
    show_empty(node, server)
    tries = server._management._tries
    tries.reached("captions", "receiving the model", 61.2e6, 97.8e6)
    text = "preparing a plan: garage, shelf are still loading (2 of 4 ready)"
    weights = [DeviceWeights(name, here, 24_500_000) for name, here in zip(BOXES, ARRIVED_BYTES, strict=True)]
    node.cards[NAME] = ModelCard(NAME, text, trouble=text, weights=tuple(weights))
    node.event_log.tell(time.time() - 9, "deployed", NAME, f"{NAME} was deployed")
    node.event_log.tell(time.time() - 8, "standing", NAME, f"{NAME}: computing a plan")


def show_serving(node: SceneNode, server: HttpServer) -> None:
    show_empty(node, server)
    node.serve()
    fill_history(server, NAME, node.best.predicted_latency_s, failures=0)
    tell_plan(node, time.time() - 230, node.best.why.partition("\n")[0])


def tell_plan(node: SceneNode, at_s: float, why: str) -> None:
    found = node.best
    predicted = format_seconds(found.predicted_latency_s)
    node.event_log.tell(
        at_s, "plan", NAME, f"{NAME} is served by {', '.join(found.programs)}, predicted {predicted}", why
    )


def show_dead(node: SceneNode, server: HttpServer) -> None:
    show_serving(node, server)
    at_s = time.time() - 75
    node.lost = [{"name": "shelf", "node": NODES["shelf"], "state": "lost", "at_s": at_s}]
    node.serve()
    node.event_log.tell(
        at_s, "suspected", "shelf", "shelf cannot be heard", "connection reset by the other side"
    )
    node.event_log.tell(at_s + 0.3, "lost", "shelf", "shelf is lost", "connection reset by the other side")
    tell_plan(node, at_s + 0.31, "shelf is not here any more")


def show_error(node: SceneNode, server: HttpServer) -> None:
    show_dead(node, server)
    why = "its plan needs shelf, lost or gone, and there is no other plan: attic lacks 312 MB, garage lacks 1.2 GB"
    node.cards["captions"] = replace(node.cards[NAME], name="captions", state="waiting", trouble=why)
    node.plans["captions"] = node.plans[NAME]
    fill_history(server, "captions", 0.4, failures=40)
    server._management._tries.ended(
        "faces", "the model has an operator that ONNX Runtime does not know: my.domain/Warp"
    )
    node.event_log.tell(time.time() - 20, "failed", "captions", "there is no plan for captions", why)


SCENES: Mapping[str, Callable[[SceneNode, HttpServer], None]] = {
    "empty": show_empty,
    "deploying": show_deploying,
    "serving": show_serving,
    "dead": show_dead,
    "error": show_error,
}


def fill_history(server: HttpServer, name: str, latency_s: float, failures: int) -> None:
    """Requests of the last four minutes, as clients send them that come and go."""
    history, chance, now = server._management._metrics.history, random.Random(7), time.monotonic()
    at = now - 240
    while at < now:
        at += chance.expovariate(9 + 5 * math.sin(at / 23))
        slower = 1.6 if now - 78 < at < now - 72 else 1.0
        history.answered(name, at, latency_s * slower * chance.lognormvariate(0.05, 0.16), 2e-4)
    for _ in range(failures):
        history.failed(name, now - chance.uniform(5, 30), "Unavailable")
