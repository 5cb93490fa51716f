"""Flat scales and zero points get a row for each column: the answers stay, and products can be divided along their sum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from edgepart.planner.access import access_of
from edgepart.planner.model.flat_scales import give_scales_rows
from edgepart.planner.model.load import load_constants, load_graph, load_weights
from edgepart.planner.region import Array

INNER, BLOCK = 64, 16
BLOCKS = INNER // BLOCK


def product(columns: int, bits: int = 4, zeros: bool = True, fed: str = "", second: int = 0) -> ModelProto:
    """x [2, 64] times packed weights. `fed`: the name of a constant that is an input of the model, too; `second`: the
    columns of another product with the same scales, if any."""
    chance = np.random.default_rng(0)
    packed = {
        n: chance.integers(0, 256, (n, BLOCKS, BLOCK * bits // 8), np.uint8) for n in (columns, second) if n
    }
    held: dict[str, Array] = {
        "scales": chance.uniform(0.01, 0.1, columns * BLOCKS).astype(np.float32),
        "zeros": chance.integers(0, 256, columns * -(-BLOCKS * bits // 8), np.uint8),
        **{f"w{n}": array for n, array in packed.items()},
    }
    names = ["scales", *(["zeros"] if zeros else [])]
    nodes = [
        helper.make_node(
            "MatMulNBits",
            ["x", f"w{n}", *names],
            [f"y{n}"],
            domain="com.microsoft",
            N=n,
            K=INNER,
            bits=bits,
            block_size=BLOCK,
        )
        for n in packed
    ]
    value = helper.make_tensor_value_info
    given_too = [value(fed, TensorProto.FLOAT, held[fed].shape)] if fed else []
    graph = helper.make_graph(
        nodes,
        "product",
        [value("x", TensorProto.FLOAT, (2, INNER)), *given_too],
        [value(f"y{n}", TensorProto.FLOAT, (2, n)) for n in packed],
        [numpy_helper.from_array(array, name) for name, array in held.items() if zeros or name != "zeros"],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def answer(model: ModelProto) -> Array:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal((2, INNER)).astype(np.float32)
    return np.asarray(session.run(None, {"x": x})[0])


def shapes(model: ModelProto) -> dict[str, tuple[int, ...]]:
    return {t.name: tuple(t.dims) for t in model.graph.initializer}


@given(st.sampled_from([3, 8]), st.sampled_from([2, 4, 8]), st.booleans())
def test_the_answer_and_the_bytes_stay(columns: int, bits: int, zeros: bool) -> None:
    before = product(columns, bits, zeros)
    after = give_scales_rows(product(columns, bits, zeros))
    assert shapes(after)["scales"] == (columns, BLOCKS)
    assert not zeros or shapes(after)["zeros"] == (columns, -(-BLOCKS * bits // 8))
    for old, new in zip(before.graph.initializer, after.graph.initializer, strict=True):
        assert old.raw_data == new.raw_data
    assert answer(before).tobytes() == answer(after).tobytes()


@pytest.mark.parametrize(
    "why", ["an input, too", "two numbers of columns", "an output", "no whole number", "another operator"]
)
def test_others_stay_as_they_are(why: str) -> None:
    made = product(
        4, fed="scales" if why == "an input, too" else "", second=8 if why == "two numbers of columns" else 0
    )
    graph = made.graph
    if why == "an output":
        graph.output.append(helper.make_tensor_value_info("scales", TensorProto.FLOAT, (16,)))
    if why == "no whole number":
        graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones(15, np.float32), "scales"))
    if why == "another operator":
        graph.node.append(helper.make_node("Neg", ["scales"], ["y"]))
    before = shapes(made)["scales"]
    assert shapes(give_scales_rows(made))["scales"] == before


def test_a_loaded_product_can_be_divided_along_its_sum_and_all_doors_agree(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    made = product(64)
    onnx.save(made, path)
    graph = load_graph(path)
    assert graph.constants["scales"].region.shape == (64, BLOCKS)
    assert load_constants(path)["scales"].region.shape == (64, BLOCKS)
    assert load_weights(path)["w64"].region.shape == (64, BLOCKS, BLOCK // 2)
    (operator,) = graph.operators
    assert "inner" in {axis.name for axis in access_of(operator, graph).axes()}
