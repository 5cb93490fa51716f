"""Skimming leaves out the bytes of weights and nothing else, whatever the file is."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgepart.planner.errors import ModelError
from edgepart.planner.model.external import OWN_FILE, SMALLEST_SKIMMED_BYTES, skim_weights
from edgepart.planner.model.load import load_graph
from edgepart.planner.model.model_file import model_files

BIG = SMALLEST_SKIMMED_BYTES // 4 + 1
"""Numbers that are left out."""


def two_weights(odd: int = 0) -> bytes:
    """One as an initializer, one in a Constant node, one small; `odd` bytes of text move them."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal(BIG * 32), "v": rng.standard_normal(BIG), "s": rng.standard_normal(3)}
    made = {name: numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()}
    nodes = [
        helper.make_node("Constant", [], ["v"], value=made["v"]),
        *(helper.make_node("Mul", ["x", name], [f"x{name}"]) for name in weights),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    outputs = [helper.make_tensor_value_info(f"x{name}", TensorProto.FLOAT, None) for name in weights]
    graph = helper.make_graph(nodes, "g" * (1 + odd), [x], outputs, [made["w"], made["s"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return bytes(model.SerializeToString())


def restored(data: bytes) -> onnx.ModelProto:
    """The model with what was left out put back."""
    model = onnx.load_model_from_string(skim_weights(memoryview(data)))
    for tensor in [
        *model.graph.initializer,
        *(a.t for n in model.graph.node for a in n.attribute if a.t.dims),
    ]:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries.get("location") == OWN_FILE:
            offset, length = int(entries["offset"]), int(entries["length"])
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = data[offset : offset + length]
    return model


@pytest.mark.parametrize("odd", range(4))
def test_only_the_bytes_of_weights_are_left_out(odd: int) -> None:
    data = two_weights(odd)
    assert len(skim_weights(memoryview(data))) < len(data) - 4 * BIG * 32
    assert restored(data) == onnx.load_model_from_string(data)


@pytest.mark.parametrize("odd", range(4))
def test_weights_are_read_from_where_they_lie(tmp_path: Path, odd: int) -> None:
    """Numbers may begin at any byte of the file."""
    data, path = two_weights(odd), tmp_path / "m.onnx"
    path.write_bytes(data)
    constants, model = load_graph(path).constants, onnx.load_model_from_string(data)
    known = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    known["v"] = numpy_helper.to_array(model.graph.node[0].attribute[0].t)
    for name, value in known.items():
        np.testing.assert_array_equal(constants[name].load(), value)
        assert constants[name].load().flags.aligned
    assert model_files(path) == (path,)


def test_a_large_file_is_not_read_into_memory(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.zeros((1 << 20, 16), np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1 << 20])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    load_graph(path)  # what is imported then is not what is measured
    tracemalloc.start()
    found = load_graph(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.constants["w"].nbytes == 1 << 26
    assert most < 1 << 22


def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    data, path = two_weights() * 3, tmp_path / "m.onnx"
    path.write_bytes(data[:-1] + b"\xff" * 70_000)
    with pytest.raises(ModelError, match="not an ONNX file, is cut short"):
        load_graph(path)


@given(st.binary(max_size=200))
def test_what_is_no_message_is_left_as_it_is(data: bytes) -> None:
    assert skim_weights(memoryview(data)) == data


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=3))
def test_damaged_files_are_judged_by_protobuf(changes: list[tuple[int, int]]) -> None:
    """Either both are no model, or both are the same one."""
    data = bytearray(two_weights())
    for place, byte in changes:
        data[place % len(data)] = byte
    try:
        expected = onnx.load_model_from_string(bytes(data))
    except Exception:  # noqa: BLE001
        with pytest.raises(Exception):  # noqa: B017
            onnx.load_model_from_string(skim_weights(memoryview(data)))
    else:
        assert restored(bytes(data)) == expected
