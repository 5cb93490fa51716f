"""Models with states: however they are divided, their steps give what one session gives that is fed its own outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.rehearsal import Rehearsal
from edgepart.planner.devices.cluster import Cluster, Device
from edgepart.planner.layout.strategy import Layout, Problem, Strategy
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.model.states import find_states
from edgepart.planner.plans.check import broken_plan_rules, check_plan
from edgepart.planner.plans.plan_bytes import plan_from_bytes, plan_to_bytes
from edgepart.planner.region import Array, Region

Shapes = Mapping[str, Sequence[int]]
STEPS = 6
HEADS, SIZE, LENGTH = 6, 4, 5


@dataclass(frozen=True)
class Stateful:
    """A model, and its free inputs and states by name."""

    path: Path
    graph: Graph

    def alone(self, steps: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        """The answers of one session that gets its own states back."""
        session = ort.InferenceSession(self.path, providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_outputs()]
        states = {
            one.input: np.zeros(self.graph.tensors[one.input].shape or (), np.float32)
            for one in self.graph.states
        }
        answers = []
        for inputs in steps:
            found = dict(zip(names, session.run(names, {**inputs, **states}), strict=True))
            for one in self.graph.states:
                value = found.pop(one.output)
                if one.grows is not None:
                    value = np.take(value, range(-states[one.input].shape[one.grows], 0), one.grows)
                states[one.input] = value
            answers.append(found)
        return answers

    def inputs(self, count: int) -> list[dict[str, Array]]:
        chance = np.random.default_rng(1)
        shapes = {name: self.graph.tensors[name].shape or () for name in self.graph.request_inputs}
        return [
            {name: chance.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
            for _ in range(count)
        ]


def check_steps(model: Stateful, run: LocalRun, tolerance: float = 1e-5) -> None:
    steps = model.inputs(STEPS)
    for _ in range(2):  # A second sequence begins anew.
        sequence = run.begin()
        for inputs, expected in zip(steps, model.alone(steps), strict=True):
            found = run.run(inputs, sequence=sequence)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                np.testing.assert_allclose(
                    found[name], value, rtol=tolerance, atol=tolerance * np.abs(value).max()
                )


def stateful(
    folder: Path, nodes: Sequence[NodeProto], takes: Shapes, gives: Shapes, weights: Mapping[str, Array]
) -> Stateful:
    def infos(shapes: Shapes) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()
        ]

    held = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(list(nodes), "stateful", infos(takes), infos(gives), held)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "stateful.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return Stateful(path, find_states(load_graph(path)))


def floats(*shape: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed + sum(shape)).standard_normal(shape) * 0.3).astype(np.float32)


def node(op_type: str, reads: str, writes: str, **attributes: Any) -> NodeProto:
    domain = "com.microsoft" if op_type == "GroupQueryAttention" else ""
    return helper.make_node(
        op_type, reads.replace("-", "").split(" "), writes.split(), domain=domain, **attributes
    )


def attention(folder: Path) -> Stateful:
    """Keys and values of earlier steps are put before the new ones, as optimum writes it."""
    hidden, width = 16, HEADS * SIZE
    nodes = [node("MatMul", f"x w{one}", one) for one in "qkv"]
    for one in "qkv":
        nodes += [
            node("Reshape", f"{one} heads", f"{one}r"),
            node("Transpose", f"{one}r", f"{one}t", perm=[0, 2, 1, 3]),
        ]
    nodes += [
        node("Concat", "past_key_values.0.key kt", "present.0.key", axis=2),
        node("Concat", "past_key_values.0.value vt", "present.0.value", axis=2),
        node("Transpose", "present.0.key", "keys", perm=[0, 1, 3, 2]),
        node("MatMul", "qt keys", "scores"),
        node("Softmax", "scores", "weights", axis=-1),
        node("MatMul", "weights present.0.value", "o"),
        node("Transpose", "o", "ot", perm=[0, 2, 1, 3]),
        node("Reshape", "ot flat", "or"),
        node("MatMul", "or wo", "y"),
    ]
    weights = {f"w{one}": floats(hidden, width, seed=n) for n, one in enumerate("qkv")}
    weights |= {
        "wo": floats(width, hidden),
        "heads": np.array([0, 0, HEADS, SIZE]),
        "flat": np.array([0, 0, width]),
    }
    past, present = (1, HEADS, LENGTH, SIZE), (1, HEADS, LENGTH + 1, SIZE)
    takes = {"x": (1, 1, hidden), "past_key_values.0.key": past, "past_key_values.0.value": past}
    return stateful(
        folder,
        nodes,
        takes,
        {"y": (1, 1, hidden), "present.0.key": present, "present.0.value": present},
        weights,
    )


def recurrent(folder: Path) -> Stateful:
    nodes = [
        node("LSTM", "x w r b - h c", "all hn cn", hidden_size=8),
        node("Squeeze", "all one", "flat"),
        node("MatMul", "flat out", "y"),
    ]
    weights = {
        "w": floats(1, 32, 6),
        "r": floats(1, 32, 8),
        "b": floats(1, 64),
        "out": floats(8, 5),
        "one": np.array([1]),
    }
    takes = {"x": (2, 3, 6), "h": (1, 3, 8), "c": (1, 3, 8)}
    return stateful(folder, nodes, takes, {"y": (2, 3, 5), "hn": (1, 3, 8), "cn": (1, 3, 8)}, weights)


def convolution(folder: Path) -> Stateful:
    """A causal convolution that remembers the last frames that it saw."""
    nodes = [
        node("Concat", "past x", "frames", axis=2),
        node("Conv", "frames w", "y", kernel_shape=[3]),
        node("Slice", "frames from to axes", "present"),
    ]
    weights = {"w": floats(6, 4, 3), "from": np.array([-2]), "to": np.array([2**31]), "axes": np.array([2])}
    takes, gives = {"x": (1, 4, 7), "past": (1, 4, 2)}, {"y": (1, 6, 7), "present": (1, 4, 2)}
    return stateful(folder, nodes, takes, gives, weights)


MODELS: Mapping[str, Callable[[Path], Stateful]] = {
    "attention": attention,
    "recurrent": recurrent,
    "convolution": convolution,
}


@pytest.mark.parametrize("name", MODELS)
def test_along_every_axis_steps_give_what_one_session_gives(tmp_path: Path, name: str) -> None:
    model = MODELS[name](tmp_path)
    assert model.graph.states and not model.graph.notes
    rehearsal = Rehearsal(model.graph)
    assert rehearsal.axes
    for axis in (None, *rehearsal.axes):
        check_steps(model, rehearsal.divide(axis).devices)


def test_heads_keep_their_keys_and_values_and_nothing_of_them_travels(tmp_path: Path) -> None:
    model = attention(tmp_path)
    plan = Rehearsal(model.graph, (1, 1, 1)).divide("head").devices.plan
    travelling = {piece.tensor for transfer in plan.transfers for piece in transfer.pieces}
    assert not {name for name in travelling if name.startswith(("past", "present"))}
    nbytes = 4 * LENGTH * SIZE
    before_too = 2  # what was kept before the last step
    kept = [program.sequence_bytes for program in plan.programs.values()]
    assert kept == [before_too * 2 * 2 * nbytes] * 3


def test_the_model_itself_runs_where_one_device_has_everything(tmp_path: Path) -> None:
    model = attention(tmp_path)
    run = Rehearsal(model.graph, (1.0,)).divide(None).devices
    assert run.plan.is_model_itself
    check_steps(model, run, tolerance=0)


@pytest.mark.parametrize("name", MODELS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_wherever_operators_are_states_are_where_they_are_read(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    """Each operator on a device of its own: what one writes and another reads travels at the end of the step."""
    model = MODELS[name](tmp_path)
    names = ["a", "b", "c"]
    cluster = Cluster(tuple(Device(one, "virtual", 1e9, 1e9, 1e12) for one in names))
    layouts: dict[str, Layout] = {}
    for op in model.graph.operators:
        device = data.draw(st.sampled_from(names), op.name)
        layouts |= {one: Layout({device: model.graph.region_of(one)}) for one in op.outputs if one}
    layers = {op.name: n for n, op in enumerate(model.graph.operators)}
    order = {n: float(n) for n in layers.values()} if data.draw(st.booleans(), label="in order") else {}
    strategy = Strategy("drawn", layouts, layers=layers, order=order)
    plan = make_plan(Problem(model.graph, cluster, "a"), strategy, model_digest="")
    check_plan(plan, model.graph)
    assert plan_from_bytes(plan_to_bytes(plan)) == plan
    check_steps(model, LocalRun(plan, model.graph))


def test_a_plan_that_does_not_keep_what_it_reads_is_refused(tmp_path: Path) -> None:
    model = attention(tmp_path)
    plan = Rehearsal(model.graph).divide("head").devices.plan
    (device, program), *_ = plan.programs.items()
    kept = program.kept[0]
    elsewhere = replace(kept, written=replace(kept.written, tensor="y"))
    longer = replace(kept, read=replace(kept.read, region=Region.full((1, HEADS, LENGTH + 1, SIZE))))
    for pieces, fault in (((), "lacks"), ((elsewhere,), "the next step lacks"), ((longer,), "another shape")):
        broken = replace(plan, programs={**plan.programs, device: replace(program, kept=pieces)})
        assert any(fault in text for text in broken_plan_rules(broken))
