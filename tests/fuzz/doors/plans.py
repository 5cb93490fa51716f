"""Fuzz targets for planning: plans, device cards, cluster.json, descriptions of operators, traces, lists of files, and
requests for parts of weights."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepart.agent.cluster.state import cards
from edgepart.agent.replication.blobs import BlobServer
from edgepart.agent.storage.store import Store, manifest_from_text
from edgepart.agent.wire.codec import frame_to_message, kinds, message_to_frame
from edgepart.agent.wire.control import Card
from edgepart.agent.wire.frames import encode
from edgepart.agent.wire.queries import WantFiles, WantPart
from edgepart.cli.planning.plan_inputs import read_cluster
from edgepart.client import trace_records
from edgepart.planner.access import accesses
from edgepart.planner.devices.cluster import Cluster, Device, Link, Medium
from edgepart.planner.devices.cluster_json import cluster_to_json
from edgepart.planner.errors import ClusterError, FrameError, InternalError, ModelError, PeerError, UsageError
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import choose_plan
from edgepart.planner.plans.check import check_plan
from edgepart.planner.plans.plan_bytes import plan_from_bytes, plan_to_bytes
from edgepart.planner.region import Interval, span
from edgepart.planner.tdl.document import METADATA_KEY, write_descriptions
from tests.agent.wire.decoder import Decoder
from tests.fuzz.forms import Frames, Json, MessagePack
from tests.fuzz.target import Take, Target, expect, plainly
from tests.planner.tdl.functions import filtered, scanned_convolution
from tests.planner.tdl.standard import conv2d, layer_normalization

DEVICE = Device("a", "x86", 1e9, 1e9, 1e9, 2, 1e-4, {"conv": 8.0, "conv/8": 4.0}, {"copy/64": 5.0})
CLUSTER = Cluster(
    (DEVICE, replace(DEVICE, name="b")),
    {("a", "b"): Link(1e7, 1e-3)},
    media=(Medium("air", 1e6, frozenset("ab")),),
)


def _model() -> bytes:
    rng = np.random.default_rng(1)
    weights = [numpy_helper.from_array(rng.standard_normal((8, 3, 3, 3)).astype(np.float32), "w")]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["h"], ["y"], "relu"),
    ]
    values = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, c, 16, 16]) for n, c in (("x", 3), ("y", 8))
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    return bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        ).SerializeToString()
    )


@cache
def _plans() -> tuple[bytes, ...]:
    problem = Problem(load_graph(_model()), CLUSTER, "a")
    found = [choose_plan(problem, name, "1" * 64)[0] for name in ("single", "bbgrap")]
    return tuple(map(plan_to_bytes, found))


def _plan(data: bytes) -> None:
    plan = plan_from_bytes(data)
    try:
        check_plan(plan)
    except InternalError as error:
        raise FrameError("a plan that breaks its rules is not loaded") from error
    encoded = plan_to_bytes(plan)  # the devices are in order now; in `data` they may not have been
    expect(plan_to_bytes(plan_from_bytes(encoded)) == encoded, "a plan is another after a round trip")
    expect(len(plan.structure) == 16 and plan.syncs >= 0 and bool(plan.parts), "a plan without a structure")


def _card(data: bytes) -> None:
    """Read a card as a leader does: build a cluster from it, and compare it with another card."""
    found = cards.parse_card(data)
    before = cards.parse_card(_card_seeds()[0])
    cards.is_clearly_different(before, found)
    nodes = {"0" * 16: "a", "1" * 16: "b"}
    told = [Card("0" * 16, data), Card("1" * 16, _card_seeds()[0])]
    cluster = cards.build_cluster(told, nodes)
    expect(found.device.pace != "" and len(cluster.devices) == 2, "a device without a pace")
    json.dumps(cluster_to_json(cluster))
    cards.parse_card(cards.write_card(found))


@cache
def _card_seeds() -> list[bytes]:
    links = {"1" * 16: Link(1e7, 1e-3), "0" * 16: Link(2e7, 1e-3)}
    together = cards.CrowdMeasurement(frozenset(("0" * 16, "1" * 16)), 1e6, 1e-3)
    return [
        cards.write_card(cards.MeasuredDevice(DEVICE, links)),
        cards.write_card(cards.MeasuredDevice(DEVICE, links, together)),
    ]


@contextmanager
def _cluster_files() -> Iterator[Take]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.json"

        def take(data: bytes) -> None:
            path.write_bytes(data)
            cluster, _ = read_cluster(path)
            for device in cluster.devices:
                expect(device.pace != "" and device.flops_per_s > 0, "a device without a pace")
                device.with_drift(2.0)
            expect(
                len(cluster.sending_bytes_per_s) == len(cluster.devices), "a device without a network card"
            )
            cluster.faster(2.0).only(tuple(device.name for device in cluster.devices[:1]))
            path.write_text(json.dumps(cluster_to_json(cluster)))
            expect(read_cluster(path)[0] == cluster, "a cluster is another after a round trip")

        yield take


def _trace(data: bytes) -> None:
    """Read a trace as `edgepart trace` gets it from an agent."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ClusterError("the client takes care of that") from error
    found = trace_records.read(document)
    chosen = trace_records.typical(found.requests())
    if chosen is not None:
        found.of_request(chosen.request)


def _trace_seeds() -> list[bytes]:
    row = ["compute", "compute", 1.0, 0.5, "net", 1, 2, "r", "w", "b", 3, 4, 0.1]
    asked = ["requests", "request", 1.0, 0.9, "net", 1, 2, "r", "", "", -1, 0, 0.0]
    part = {
        "name": "a",
        "node": "0" * 16,
        "clock_error_s": 1e-4,
        "clock_ahead_s": 0.0,
        "forgotten": 1,
        "spans": [row, asked],
    }
    plan = {
        "deployment": "net",
        "epoch": [1, 2],
        "strategy": "s",
        "predicted_latency_s": 0.1,
        "replicas": [["a"]],
        "nodes": {"a": "0" * 16},
        "steps": {"a": [["run", 0.1], ["send", 0]]},
        "messages": [["a", "", 5]],
    }
    trace = {
        "model": "net",
        "gateway": "a",
        "began_s": 0.5,
        "ended_s": 3.0,
        "devices": [part],
        "missing": {"c": "why"},
        "plans": [plan],
    }
    return [json.dumps(trace).encode()]


def _files(data: bytes) -> None:
    """Read a list of a model's files, as a member sends it."""
    for file in manifest_from_text(data.decode("utf-8", "surrogateescape")).files:
        expect(
            ".." not in Path(file.path).parts and not Path(file.path).is_absolute(),
            "a file leaves its folder",
        )
        expect(0 <= file.nbytes < 2**63, f"{file.nbytes} is no size")


FILES = [
    {"path": "m.onnx", "digest": "1" * 64, "nbytes": 5},
    {"path": "sub/w", "digest": "2" * 64, "nbytes": 0},
]
WANTS = kinds(WantFiles, WantPart)


@contextmanager
def _serving() -> Iterator[Take]:
    """Yield a function that asks for files and parts as another member. Each question is answered exactly
    once, whatever it asks for."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        path.write_bytes(_model())
        onnx.load(path)
        store = Store(Path(folder) / "store")
        model = store.put_model([path])
        expect(model == _model_digest(), "a model's digest depends on where it is")
        answers: list[Any] = []
        serving = BlobServer(store, lambda node, answer, payload: answers.append((answer, payload)))
        serving.stop()

        def take(data: bytes) -> None:
            for frame in Decoder().feed(data):
                question = frame_to_message(frame, WANTS)
                serving._answer("0" * 16, question)
                expect(len(answers) == 1, "a question is not answered once")
                ((answer, payload),) = answers
                answers.clear()
                sent = message_to_frame(answer, payload)
                expect(sent.payload_bytes <= 4 << 20, "a part that is too long")

        yield take


@cache
def _model_digest() -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        path.write_bytes(_model())
        return Store(Path(folder) / "store").put_model([path])


def _serving_seeds() -> list[bytes]:
    model = _model_digest()
    part = WantPart(1, model, 0, 100)
    half = np.frombuffer(load_graph(_model()).constants["w"].load()[:4].tobytes(), np.uint8)
    digest = hashlib.sha256(half.data).hexdigest()
    cut = WantPart(2, digest, 8, 64, model, "w", ((0, 4), (0, 3), (0, 3), (0, 3)), {"x": (1, 3, 16, 16)})
    graph = WantPart(3, hashlib.sha256(_model()).hexdigest(), 0, 4 << 20)
    questions = (WantFiles(4, model), part, cut, graph, replace(cut, shapes={}))
    return [b"".join(map(bytes, encode(message_to_frame(question)))) for question in questions]


def _descriptions(data: bytes) -> None:
    """A model's file has the text, and its described function is divided as the text says."""
    model = onnx.load_model_from_string(scanned_convolution())
    model.metadata_props.add(key=METADATA_KEY, value=data.decode(errors="replace"))
    graph = load_graph(model.SerializeToString())
    for name, access in accesses(graph).items():
        made = graph.region_of(graph.by_name[name].outputs[0])
        expect(access.flops({0: made}) >= 0, "work is negative")
        for axis in access.axes():
            if axis.reducer is None:
                half = made.replace(axis.index, span((axis.extent // 2, axis.extent)))
                expect(
                    len(access.needs({0: half})) == len(graph.by_name[name].inputs), "an input is left out"
                )
                access.localize({0: half})
            else:
                access.reduction(axis).part(Interval(0, 1)).needs({0: made})


def _description_seeds() -> list[bytes]:
    return [write_descriptions([one]).encode() for one in (filtered, conv2d, layer_normalization)]


TARGETS = (
    Target("plans", lambda: list(_plans()), plainly(_plan), (FrameError,), MessagePack(), 0.2),
    Target("device cards", _card_seeds, plainly(_card), (FrameError,), Json(), 0.5),
    Target(
        "cluster.json (planning)",
        lambda: [json.dumps(cluster_to_json(CLUSTER)).encode()],
        _cluster_files,
        (UsageError,),
        Json(),
        0.3,
    ),
    Target("described operators", _description_seeds, plainly(_descriptions), (ModelError,), Json(), 0.1),
    Target("traces", _trace_seeds, plainly(_trace), (ClusterError,), Json(), 0.5),
    Target("lists of files", lambda: [json.dumps(FILES).encode()], plainly(_files), (PeerError,), Json()),
    Target("questions for parts", _serving_seeds, _serving, (FrameError,), Frames(), 0.1),
)
