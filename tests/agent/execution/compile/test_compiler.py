"""Compiled segments against their plain twins: whichever ports are blocked, the numbers are the same; and what cannot be
compiled is loaded as it is in the plan, which is said."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.models import light, sample_inputs
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgepart.agent.execution.compile import compiler as compiling
from edgepart.agent.execution.compile.cache import Compiled
from edgepart.agent.execution.compile.compiler import Compiler, block
from edgepart.agent.execution.nchwc_array import to_blocked, to_plain
from edgepart.agent.execution.runtime.loaded_segments import AS_PLANNED, load_segment
from edgepart.agent.execution.runtime.sessions import PreparedProgram, Sessions
from edgepart.agent.execution.runtime.shared_segments import NotCompiled
from edgepart.agent.verify.local_run import LocalRun
from edgepart.planner.devices.cluster import Cluster, Device
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.plans.plan import Piece, Plan, Port, Segment, WeightRef
from edgepart.planner.region import Array, Region
from edgepart.planner.search.force_axis import force
from edgepart.planner.search.study import Study
from tests.agent import handmade

BLOCK = block()
in_blocks = pytest.mark.skipif(not BLOCK, reason="convolutions compute in no blocks on this processor")
C = 2 * BLOCK or 16
Shape = tuple[int, ...]


def node(op: str, reads: str, writes: str, **how: Any) -> NodeProto:
    return helper.make_node(op, reads.split(), writes.split(), **how)


def conv(reads: str, writes: str, weight: str = "w", **how: Any) -> NodeProto:
    return node("Conv", f"{reads} {weight}", writes, pads=[1] * 4, **how)


def crop(reads: str, writes: str, *bounds: list[int]) -> list[NodeProto]:
    """From starts, ends and axes."""
    names = [f"{writes}-{what}" for what in ("starts", "ends", "axes")]
    constants = [
        helper.make_node("Constant", [], [name], value_ints=ints)
        for name, ints in zip(names, bounds, strict=True)
    ]
    return [*constants, helper.make_node("Slice", [reads, *names], [writes])]


def made(
    nodes: Sequence[NodeProto], inputs: dict[str, Shape], outputs: dict[str, Shape], **weights: Shape
) -> Segment:
    """A segment with its weights inside."""
    chance = np.random.default_rng(7)
    values = {n: (chance.standard_normal(s) / 8).astype(np.float32) for n, s in weights.items()}
    read, written = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in side.items()]
        for side in (inputs, outputs)
    )
    inside = [numpy_helper.from_array(array, name) for name, array in values.items()]
    graph = helper.make_graph(list(nodes), "g", read, written, inside)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    data = model.SerializeToString()
    taken, given = (
        tuple(Port(name, Piece(name, Region.full(shape))) for name, shape in side.items())
        for side in (inputs, outputs)
    )
    digest = hashlib.sha256(data).hexdigest()
    return Segment(digest, data, taken, given, (), ("op",), 0.0, 0.0, 0)


X: Shape = (1, C, 6, 5)
W: Shape = (C, C, 3, 3)
BIG: Shape = (2, C, 7, 9)
CASES = {
    "residual": made(
        [conv("x", "a"), node("Add", "a r", "s"), node("Relu", "s", "y"), conv("y", "z")],
        {"x": X, "r": X},
        {"y": X, "z": X},
        w=W,
    ),
    "depthwise, batch of two": made(
        [conv("x", "y", group=C)], {"x": BIG}, {"y": BIG}, w=(C, 1, 3, 3)
    ),
    "groups": made([conv("x", "y", group=2)], {"x": X}, {"y": X}, w=(C, C // 2, 3, 3)),
    "concatenation, batch of two": made(
        [node("Concat", "x r", "c", axis=1), conv("c", "y"), node("Relu", "c", "z")],
        {"x": BIG, "r": BIG},
        {"y": BIG, "z": (2, 2 * C, 7, 9)},
        w=(C, 2 * C, 3, 3),
    ),
    "read in blocks and plainly": made(
        [conv("x", "y"), node("Transpose", "x", "t", perm=[0, 2, 3, 1]), node("Transpose", "y", "u")],
        {"x": X},
        {"y": X, "t": (1, 6, 5, C), "u": X[::-1]},
        w=W,
    ),
    "crops between convolutions, batch of two": made(
        [
            conv("x", "a"),
            *crop("a", "b", [1, 2], [6, 7], [2, 3]),
            conv("b", "y"),
            *crop("b", "c", [0], [-1], [2]),
            *crop("c", "d", [1], [9], [-1]),
            conv("d", "z"),
        ],
        {"x": BIG},
        {"y": (2, C, 5, 5), "z": (2, C, 4, 4)},
        w=W,
    ),
    "crops that are read plainly, and crops of channels": made(
        [
            conv("x", "a"),
            *crop("a", "b", [1], [4], [2]),
            conv("b", "y"),
            node("Transpose", "b", "t", perm=[0, 2, 3, 1]),
            *crop("a", "e", [0], [BLOCK or 8], [1]),
            conv("e", "z", "v"),
        ],
        {"x": X},
        {"y": (1, C, 3, 5), "t": (1, 3, 5, C), "z": X},
        w=W,
        v=(C, BLOCK or 8, 3, 3),
    ),
    "transposed at both ends": made(
        [
            node("Transpose", "x", "a", perm=[0, 2, 3, 1]),
            node("LayerNormalization", "a scale", "b"),
            node("Transpose", "b", "y", perm=[0, 3, 1, 2]),
        ],
        {"x": X},
        {"y": X},
        scale=(C,),
    ),
    "a channels-last block between convolutions": made(
        [
            conv("x", "a", group=C),
            node("Transpose", "a", "b", perm=[0, 2, 3, 1]),
            node("LayerNormalization", "b scale", "c"),
            node("MatMul", "c m", "d"),
            node("Transpose", "d", "e", perm=[0, 3, 1, 2]),
            node("Add", "e x", "y"),
            conv("y", "z", group=C),
        ],
        {"x": BIG},
        {"y": BIG, "z": BIG},
        w=(C, 1, 3, 3),
        scale=(C,),
        m=(C, C),
    ),
    "crops of what is transposed": made(
        [
            conv("x", "a"),
            node("Transpose", "a", "b", perm=[0, 2, 3, 1]),
            *crop("b", "c", [1, 2], [6, 7], [1, 2]),
            node("Transpose", "c", "d", perm=[0, 3, 1, 2]),
            conv("d", "y"),
            *crop("y", "e", [1], [4], [2]),
            node("Transpose", "e", "f", perm=[0, 2, 3, 1]),
            node("Relu", "f", "g"),
            node("Transpose", "g", "h", perm=[0, 3, 1, 2]),
            conv("h", "z"),
        ],
        {"x": BIG},
        {"y": (2, C, 5, 5), "z": (2, C, 3, 5), "h": (2, C, 3, 5), "b": (2, 7, 9, C)},
        w=W,
    ),
    "heads of attention": made(
        [
            node("Transpose", "x", "a", perm=[0, 2, 1, 3]),
            node("Transpose", "r", "b", perm=[0, 2, 3, 1]),
            node("MatMul", "a b", "y"),
            node("Transpose", "y", "z", perm=[0, 2, 3, 1]),
            node("Transpose", "z", "t", perm=[0, 3, 1, 2]),
        ],
        {"x": (1, 5, C, 6), "r": (1, 5, C, 6)},
        {"y": (1, C, 5, 5), "z": (1, 5, 5, C), "t": (1, C, 5, 5)},
    ),
    "no convolution": made([node("Relu", "x", "y"), node("Neg", "x", "z")], {"x": X}, {"y": X, "z": X}),
    "one value under two names": made(
        [conv("x", "a"), node("Identity", "a", "y"), node("Identity", "a", "z"), node("Identity", "x", "t")],
        {"x": X},
        {"y": X, "z": X, "t": X},
        w=W,
    ),
    "channels that are no blocks": made(
        [conv("x", "y"), conv("y", "z", "v")], {"x": (1, 3, 6, 5)}, {"y": (1, 5, 6, 5), "z": X},
        w=(5, 3, 3, 3), v=(C, 5, 3, 3),
    ),
    "an operator with a graph inside": made(
        [
            conv("x", "y"),
            node("ReduceSum", "x", "sum", keepdims=0),
            node("Greater", "sum zero", "positive"),
            node(
                "If", "positive", "z",
                then_branch=helper.make_graph(
                    [node("Neg", "x", "n")], "then", [], [helper.make_tensor_value_info("n", 1, X)]
                ),
                else_branch=helper.make_graph(
                    [node("Abs", "y", "m")], "else", [], [helper.make_tensor_value_info("m", 1, X)]
                ),
            ),
        ],
        {"x": X}, {"y": X, "z": X}, w=W, zero=(),
    ),
}  # fmt: skip

NATIVE: dict[str, set[str]] = {
    "an operator with a graph inside": set(),
    "channels that are no blocks": set(),
    "transposed at both ends": set(),
    "a channels-last block between convolutions": {"x", "z"},
    "heads of attention": set(),
}
"""Ports that must be found to be computed with in blocks, where they are not both x and y."""


def subsets(names: frozenset[str]) -> chain[tuple[str, ...]]:
    return chain.from_iterable(combinations(sorted(names), n) for n in range(len(names) + 1))


@in_blocks
@pytest.mark.parametrize("name", CASES)
def test_whichever_ports_are_blocked_the_numbers_are_the_same(tmp_path: Path, name: str) -> None:
    segment = CASES[name]
    compiler = Compiler(Compiled(tmp_path, 1 << 30), 1)
    chance = np.random.default_rng(1)
    inputs = [chance.standard_normal(p.piece.region.shape).astype(np.float32) for p in segment.inputs]
    expected = load_segment(segment, {}, 1).run(inputs)
    native = compiler._native(lambda _: {}, segment)
    tried = 0
    for blocked in subsets(native):
        loaded = compiler.load(segment, frozenset(blocked), lambda _: {})
        feeds = [
            to_blocked(value, BLOCK) if port.name in blocked else value
            for port, value in zip(segment.inputs, inputs, strict=True)
        ]
        before = [feed.copy() for feed in feeds]
        found = loaded.run(feeds)
        for port, got, want in zip(segment.outputs, found, expected, strict=True):
            plain = to_plain(got, BLOCK) if port.name in blocked else got
            np.testing.assert_allclose(plain, want, rtol=1e-5, atol=1e-5)
        for feed, old in zip(feeds, before, strict=True):
            np.testing.assert_array_equal(feed, old)
        tried += 1
    assert tried == 2 ** len(native)
    assert native >= NATIVE.get(name, {"x", "y"})


@in_blocks
@pytest.mark.parametrize("opset", [9, 17])
def test_what_is_only_cropped_between_convolutions_is_not_reordered(tmp_path: Path, opset: int) -> None:
    """Also in models from before crops had their bounds as inputs."""
    segment = CASES["crops between convolutions, batch of two"]
    model = onnx.load_model_from_string(segment.model)
    if opset < 10:
        del model.opset_import[:]
        model.opset_import.append(helper.make_opsetid("", opset))
        bounds = {n.output[0]: list(n.attribute[0].ints) for n in model.graph.node if n.op_type == "Constant"}
        nodes = [n for n in model.graph.node if n.op_type != "Constant"]
        for one in (n for n in nodes if n.op_type == "Slice"):
            for name, what in zip(list(one.input[1:]), ("starts", "ends", "axes"), strict=True):
                ints = [axis % 4 for axis in bounds[name]] if what == "axes" else bounds[name]
                one.attribute.append(helper.make_attribute(what, ints))
            del one.input[1:]
        kept = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
        del model.graph.node[:]
        model.graph.node.extend(kept)
    segment = replace(segment, model=model.SerializeToString(), digest=f"opset {opset}")
    compiler = Compiler(Compiled(tmp_path, 1 << 30), 1)
    ports = frozenset({"x", "y", "z"})
    operators = [n.op_type for n in compiler._model(segment, ports, lambda _: {}).graph.node]
    assert operators.count("Slice") == 3 and operators.count("Conv") == 3
    assert not any(op.startswith("Reorder") for op in operators)
    x = np.random.default_rng(1).standard_normal(BIG).astype(np.float32)
    found = compiler.load(segment, ports, lambda _: {}).run([to_blocked(x, BLOCK)])
    for got, want in zip(found, load_segment(segment, {}, 1).run([x]), strict=True):
        np.testing.assert_allclose(to_plain(got, BLOCK), want, rtol=1e-5, atol=1e-5)


def plan_of(graph: Graph, axis: str, devices: int) -> Plan:
    names = [f"d{n}" for n in range(devices)]
    cluster = Cluster(tuple(Device(name, "box", 1e9, 1e9, 1e12) for name in names))
    study = Study(Problem(graph, cluster, names[0]))
    strategy = force(study, axis, tuple(zip(names, (0.6, 0.4, 0.5), strict=False)))
    accesses = study.memo.coarse.accesses
    return make_plan(study.memo.problem, strategy, model_digest="", accesses=accesses)


def programs(devices: LocalRun) -> Sequence[PreparedProgram]:
    return tuple(devices._prepared.values())


@pytest.mark.parametrize(
    ("model", "axis", "devices"),
    [
        ("squeezenet", "height", 2),
        ("squeezenet", "channel", 3),
        pytest.param("resnet50", "width", 2, marks=pytest.mark.nightly),
        pytest.param("inception_v1", "height", 3, marks=pytest.mark.nightly),
        pytest.param("densenet121", "height", 2, marks=pytest.mark.nightly),
    ],
)
def test_a_plan_gives_the_same_answers_compiled(tmp_path: Path, model: str, axis: str, devices: int) -> None:
    graph = load_graph(light(model))
    plan = plan_of(graph, axis, devices)
    inputs = sample_inputs(graph, 3)
    plain = LocalRun(plan, graph).run(inputs)
    compiled = LocalRun(plan, graph, compiler=Compiler(Compiled(tmp_path, 1 << 32), 1))
    for _ in range(2):  # the second time in memory that was used before
        for name, value in compiled.run(inputs).items():
            np.testing.assert_allclose(value, plain[name], rtol=0, atol=1e-5 * np.abs(plain[name]).max())
    assert all(one.form.startswith("compiled") for p in programs(compiled) for one in p.loaded)
    assert all(bool(p.kept.tensors) == bool(BLOCK and axis != "channel") for p in programs(compiled))


class Weights:
    """Of the plan made by hand; counts how often they are read."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self, ref: WeightRef) -> Array:
        self.reads += 1
        return handmade.read_weight(ref)


def test_the_second_time_nothing_is_optimised_and_no_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, x = handmade.split_plan(), handmade.request_input(3)
    weights = Weights()

    def answer() -> Any:
        sessions = Sessions(1, weights, compiler=Compiler(Compiled(tmp_path, 1 << 30), 1))
        return sessions.prepare(plan.programs["a"], plan.transfers).run(0, [x[:, :, :5]])[0]

    first = answer()
    assert weights.reads > 0
    weights.reads = 0

    def never(*_: Any) -> Any:
        raise AssertionError("optimised again")

    monkeypatch.setattr(compiling, "_optimise", never)
    np.testing.assert_array_equal(answer(), first)
    assert weights.reads == 0
    plain = Sessions(1, weights).prepare(plan.programs["a"]).run(0, [x[:, :, :5]])[0]
    np.testing.assert_allclose(first, plain, rtol=1e-5, atol=1e-6)


def test_compiled_sessions_are_shared_and_hold_no_weights(tmp_path: Path) -> None:
    plan = handmade.split_plan()
    sessions = Sessions(1, handmade.read_weight, compiler=Compiler(Compiled(tmp_path, 1 << 30), 1))
    first, second = (sessions.prepare(plan.programs["a"], plan.transfers) for _ in range(2))
    assert [one.session for one in first.loaded] == [one.session for one in second.loaded]
    assert sessions.held == (2, 0)
    sessions.release(first)
    sessions.release(second)
    assert sessions.held == (0, 0)


def test_what_cannot_be_compiled_is_loaded_as_planned_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(*_: Any) -> Any:
        raise RuntimeError("no such optimisation")

    monkeypatch.setattr(compiling, "_optimise", refuses)
    full = tmp_path / "full"
    full.write_bytes(b"")
    for root, why in ((tmp_path / "sound", "no such optimisation"), (full, "Not a directory|File exists")):
        caplog.clear()
        sessions = Sessions(1, handmade.read_weight, compiler=Compiler(Compiled(root, 1 << 30), 1))
        plan = handmade.split_plan()
        with caplog.at_level(logging.WARNING):
            prepared = sessions.prepare(plan.programs["a"], plan.transfers)
        assert [one.form for one in prepared.loaded] == [AS_PLANNED] * 2
        assert not prepared.kept.tensors
        x = handmade.request_input(3)
        assert prepared.run(0, [x[:, :, :5]])[0].shape == (1, 2, 4, 6)
        assert any(why.split("|")[0] in text or why.split("|")[-1] in text for text in caplog.messages)
        sessions.release(prepared)
        assert sessions.held == (0, 0)


@in_blocks
def test_where_one_segment_does_not_load_in_blocks_all_are_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    graph = load_graph(light("squeezenet"))
    plan = plan_of(graph, "height", 2)
    inputs = sample_inputs(graph, 3)
    loads = Compiler.load

    def refuses(self: Compiler, segment: Segment, ports: frozenset[str], weights: Any) -> Any:
        if ports and segment.digest == plan.programs["d0"].segments[3].digest:
            raise NotCompiled("not this one")
        return loads(self, segment, ports, weights)

    monkeypatch.setattr(Compiler, "load", refuses)
    with caplog.at_level(logging.WARNING):
        compiled = LocalRun(plan, graph, compiler=Compiler(Compiled(tmp_path, 1 << 32), 1))
    assert [bool(p.kept.tensors) for p in programs(compiled)] == [False, True]
    assert any("not this one" in text for text in caplog.messages)
    plain = LocalRun(plan, graph).run(inputs)
    for name, value in compiled.run(inputs).items():
        np.testing.assert_allclose(value, plain[name], rtol=0, atol=1e-5 * np.abs(plain[name]).max())
