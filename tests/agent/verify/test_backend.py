"""The ONNX backend API: the onnx package's own runner takes edgepart for a backend; reports say what was split."""

from __future__ import annotations

import unittest
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.test import BackendTest

from edgepart.agent.verify import backend
from edgepart.agent.verify.reference import run_alone
from edgepart.agent.verify.same_answer import differences
from edgepart.planner.errors import ModelError, RequestError, UsageError
from tests.planner.small_models import model, random, residual

CASES = (
    "relu",
    "conv_with_strides_padding",
    "softmax_axis_0",
    "gemm_all_attributes",
    "split_equal_parts_1d_opset18",
    "string_concat",
    "sequence_insert_at_back",
    "lstm_defaults",
    "castlike_FLOAT_to_BFLOAT16",
)
"""Of several kinds of value; each stamped with versions that ONNX Runtime takes."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_the_onnx_packages_own_runner_passes() -> None:
    runner = BackendTest(backend.EdgepartBackend, __name__).include(f"^test_({'|'.join(CASES)})_cpu$")
    suite = runner.test_suite
    result = unittest.TextTestRunner(verbosity=0).run(suite)
    assert result.wasSuccessful(), [text for _, text in (*result.failures, *result.errors)]
    assert result.testsRun - len(result.skipped) == len(CASES)


def test_a_report_says_what_was_split_and_what_cannot_be() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("NonZero", ["c"], ["n"], name="where"),
    ]
    source = onnx.load_from_string(model(nodes, {"x": (1, 3, 8, 8)}, ["n"], {"w": random(0, 4, 3, 3, 3)}))
    source.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    prepared = backend.prepare(source, axis="height")
    assert set(prepared.axes) >= {"height", "width", "channel"}
    report = prepared.report
    assert report["split"] == {"conv": "height"}
    assert list(report["opaque"]) == ["where"]
    assert report["devices_used"] == 3


@pytest.mark.parametrize("form", [bytes, Path, str, onnx.ModelProto])
def test_models_come_in_every_form(form: Any, tmp_path: Path) -> None:
    source = residual(rows=8, channels=4)
    path = tmp_path / "model.onnx"
    path.write_bytes(source)
    forms: dict[Any, Any] = {bytes: source, Path: path, str: str(path), onnx.ModelProto: onnx.load(path)}
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    (y,) = backend.run_model(forms[form], [x], shares=(2, 1))
    assert not differences({"y": y}, run_alone(source, {"x": x}))


def test_inputs_by_name_or_place_as_arrays_or_protos() -> None:
    source = residual(rows=8, channels=4)
    prepared = backend.prepare(source)
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    found = [prepared.run(given)[0] for given in ([x], {"x": x}, x, [onnx.numpy_helper.from_array(x)])]
    assert all(np.array_equal(found[0], other) for other in found)
    with pytest.raises(RequestError, match="2 inputs given"):
        prepared.run([x, x])


def test_free_dimensions_are_bound_by_what_is_run() -> None:
    source = onnx.load_model_from_string(residual(rows=8, channels=4))
    source.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    source.graph.node[9].CopyFrom(helper.make_node("Flatten", ["p"], ["f"], name="flatten", axis=1))
    prepared = backend.prepare(source, axis="batch")
    assert "batch" not in prepared.axes  # nothing is known of n yet: 1 is assumed
    for rows in (3, 2, 3):
        x = np.random.default_rng(rows).standard_normal((rows, 3, 8, 8)).astype(np.float32)
        (y,) = prepared.run([x])
        assert not differences({"y": y}, run_alone(source.SerializeToString(), {"x": x}))
        assert "batch" in prepared.axes
        assert prepared.report["devices_used"] == rows
    with pytest.raises(UsageError, match="batch"):
        prepared.run([np.zeros((1, 3, 8, 8), np.float32)])


def test_bindings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "BINDINGS", 2)
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )
    prepared = backend.prepare(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )
    for rows in (2, 3, 4, 2):
        assert prepared.run([np.ones(rows, np.float32)])[0].shape == (rows,)
        assert len(prepared._bindings) <= 2


def test_one_node_alone() -> None:
    x = np.array([[-1.0, 2.0]], np.float32)
    found: Any = backend.run_node(helper.make_node("LeakyRelu", ["x"], ["y"], alpha=0.5), [x])
    np.testing.assert_array_equal(found.y, [[-0.5, 2.0]])
    scaled = helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[1.0], scale=[2.0])
    np.testing.assert_array_equal(backend.run_node(scaled, [x])[0], [[-4.0, 2.0]])
    newest = backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x], opset_version=13)
    np.testing.assert_array_equal(newest[0], [[0.0, 2.0]])


def test_devices_and_compatibility() -> None:
    assert backend.supports_device("CPU") and backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA") and not backend.supports_device("none")
    assert backend.is_compatible(residual(rows=8, channels=4))
    assert not backend.is_compatible(b"no model") and not backend.is_compatible(residual(), "CUDA")
    with pytest.raises(UsageError, match="CUDA"):
        backend.prepare(residual(), "CUDA")
    with pytest.raises(ModelError):
        backend.prepare(b"no model")
    with pytest.raises(UsageError, match="channel"):
        backend.prepare(residual(rows=8, channels=4), axis="time")
