"""A whole plan in this process answers what one session does, whatever kind its values are of."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.agent.verify.rehearsal import Rehearsal
from edgepart.agent.verify.same_answer import differences
from edgepart.planner.errors import RequestError, UsageError
from edgepart.planner.model.load import load_graph
from tests.planner.small_models import residual

Infos = dict[str, tuple[int, tuple[int, ...]] | TypeProto]


def model(
    nodes: list[NodeProto], inputs: Infos, outputs: Infos, weights: dict[str, Any] | None = None
) -> bytes:
    def info(name: str, kind: tuple[int, tuple[int, ...]] | TypeProto) -> ValueInfoProto:
        if isinstance(kind, TypeProto):
            return helper.make_value_info(name, kind)
        return helper.make_tensor_value_info(name, *kind)

    graph = helper.make_graph(
        nodes,
        "small",
        [info(*one) for one in inputs.items()],
        [info(*one) for one in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


def run(source: bytes, inputs: dict[str, Any], axis: str | None = None) -> dict[str, Any]:
    return Rehearsal(load_graph(source)).divide(axis).run(inputs)


def test_devices_share_a_network_along_every_axis() -> None:
    source = residual(rows=12, channels=4)
    x = np.random.default_rng(0).standard_normal((1, 3, 12, 12)).astype(np.float32)
    expected = run_alone(source, {"x": x})
    rehearsal = Rehearsal(load_graph(source))
    assert {"channel", "height", "width", "inner"} <= set(rehearsal.axes)
    for axis in rehearsal.axes:
        divided = rehearsal.divide(axis)
        assert divided.devices_used == 3
        assert axis in divided.split.values()
        assert not differences(divided.run({"x": x}), expected)


def test_sessions_are_made_once_and_runs_follow_one_another() -> None:
    source = residual(rows=12, channels=4)
    divided = Rehearsal(load_graph(source)).divide("height")
    for seed in range(2):
        x = np.random.default_rng(seed).standard_normal((1, 3, 12, 12)).astype(np.float32)
        assert not differences(divided.run({"x": x}), run_alone(source, {"x": x}))


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, ml_dtypes.uint4]
)
def test_types_that_numpy_lacks_come_in_and_go_out(dtype: type) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=kind), helper.make_node("Cast", ["z"], ["back"], to=1)]
    shape = (3, 5)
    source = model(nodes, {"x": (1, shape), "z": (kind, shape)}, {"y": (kind, shape), "back": (1, shape)})
    values = np.arange(15, dtype=np.float32).reshape(shape) % 7
    found = run(source, {"x": values, "z": values.astype(dtype)})
    assert found["y"].dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found["y"].astype(np.float32), values)
    np.testing.assert_array_equal(found["back"], values)


def test_strings_sequences_and_optionals_travel_whole() -> None:
    tensor = helper.make_tensor_type_proto(1, [2])
    sequence = helper.make_sequence_type_proto(tensor)
    nodes = [
        helper.make_node("Identity", ["words"], ["same"]),
        helper.make_node("SequenceInsert", ["list", "x"], ["longer"]),
        helper.make_node("Relu", ["x"], ["positive"]),
    ]
    source = model(
        nodes,
        {"words": (TensorProto.STRING, (2,)), "list": sequence, "x": (1, (2,))},
        {"same": (TensorProto.STRING, (2,)), "longer": sequence, "positive": (1, (2,))},
    )
    inputs = {
        "words": np.array(["a", "ö"], dtype=object),
        "list": [np.zeros(2, np.float32)],
        "x": np.array([-1, 1], np.float32),
    }
    found = run(source, inputs)
    assert not differences(found, run_alone(source, inputs))
    assert len(found["longer"]) == 2


def test_tensors_without_elements_scalars_and_constant_outputs() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["s"], ["t"])]
    shapes: Infos = {"x": (1, (0, 3)), "s": (1, ())}
    outputs: Infos = {"y": (1, (0, 3)), "t": (1, ()), "w": (1, (2,)), "s": (1, ())}
    source = model(nodes, shapes, outputs, {"w": np.array([1, 2], np.float32)})
    inputs = {"x": np.zeros((0, 3), np.float32), "s": np.array(2, np.float32)}
    found = run(source, inputs)
    assert list(found) == ["y", "t", "w", "s"]
    assert not differences(found, run_alone(source, inputs))


def test_what_does_not_fit_the_model_is_refused() -> None:
    divided = Rehearsal(load_graph(residual(rows=12, channels=4))).divide(None)
    with pytest.raises(RequestError, match="'x' is missing"):
        divided.run({})
    with pytest.raises(RequestError, match="shape"):
        divided.run({"x": np.zeros((1, 3, 4, 4), np.float32)})


@pytest.mark.parametrize("shares", [(), (1.0, 0.0), (float("nan"),), (1.0,) * 65])
def test_shares_that_are_none(shares: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="shares"):
        Rehearsal(load_graph(residual(rows=12, channels=4)), shares)


def test_an_axis_that_nothing_has_names_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"'depth'.*channel, height"):
        Rehearsal(load_graph(residual(rows=12, channels=4))).divide("depth")


def test_one_device_computes_everything_and_splits_nothing() -> None:
    divided = Rehearsal(load_graph(residual(rows=12, channels=4)), (1.0,)).divide("height")
    assert (divided.devices_used, divided.split) == (1, {})
    assert isinstance(divided.devices, LocalRun)
