"""Which weights are quantised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from edgepart.agent.quantise.choice import Matrix, choose_weights, quantised_before
from edgepart.planner.model.load import load_constants
from edgepart.planner.region import Array
from tests.agent.quantise.models import SIDE, matrix, mixed, model_of


def chosen(model: ModelProto) -> tuple[dict[int, Matrix], dict[int, str]]:
    found = choose_weights(model, load_constants(model.SerializeToString()))
    return dict(found.products), dict(found.tables)


def one(kind: str, weight: Array, *more: str, **attributes: Any) -> ModelProto:
    """A model of one node that reads x (or the table and ids) and the weight."""
    inputs = ["w", "ids"] if kind == "Gather" else ["x", "w", *more]
    weights = {"w": weight} | {name: np.ones(SIDE, np.float32) for name in more}
    dtype = helper.np_dtype_to_tensor_dtype(weight.dtype)
    return model_of([helper.make_node(kind, inputs, ["y"], **attributes)], weights, dtype=dtype)


@pytest.mark.parametrize(
    ("model", "products", "tables"),
    [
        (one("MatMul", matrix()), {0: Matrix("w", False)}, {}),
        (one("MatMul", matrix(dtype=np.float16, columns=256)), {0: Matrix("w", False)}, {}),
        (one("Gemm", matrix(), "b"), {0: Matrix("w", False)}, {}),
        (one("Gemm", matrix(), transB=1), {0: Matrix("w", True)}, {}),
        (one("Gather", matrix()), {}, {0: "w"}),
        (one("Gather", matrix(), axis=1), {}, {}),
        (one("Gemm", matrix(), alpha=0.5), {}, {}),
        (one("Gemm", matrix(), "b", beta=2.0), {}, {}),
        (one("Gemm", matrix(), transA=1), {}, {}),
        (one("MatMul", matrix(SIDE, SIDE - 1)), {}, {}),
        (one("MatMul", matrix(SIDE, 16, 0).repeat(1, 1)), {}, {}),
        (one("MatMul", matrix()[None].repeat(32, 0)), {}, {}),
        (one("Add", matrix()), {}, {}),
    ],
    ids=[
        "product", "float16", "bias", "turned", "table", "columns of a table", "alpha", "beta", "turned activations",
        "small", "narrow", "three axes", "no product",
    ],
)  # fmt: skip
def test_what_is_chosen(model: ModelProto, products: dict[int, Matrix], tables: dict[int, str]) -> None:
    assert chosen(model) == (products, tables)


def test_what_is_computed_from_weights_alone_is_a_weight() -> None:
    products, tables = chosen(mixed())
    assert products == {1: Matrix("w1", False), 3: Matrix("w2", True), 5: Matrix("turned", False)}
    assert tables == {0: "table"}


def test_bytes_count_once_and_only_where_they_are_read_while_the_model_runs() -> None:
    nodes = [
        helper.make_node("Cast", ["small"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["g"]),
        helper.make_node("Add", ["g", "b"], ["y"]),
    ]
    model = model_of(nodes, {"small": matrix().astype(np.int8), "b": np.ones(SIDE, np.float32)})
    found = choose_weights(model, load_constants(model.SerializeToString()))
    assert (found.chosen_bytes, found.all_bytes) == (SIDE * SIDE * 4, SIDE * SIDE * 4 + SIDE * 4)


def test_bytes_that_a_branch_reads_count() -> None:
    value = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Add", ["h", "b"], ["z"])], "body", [], [value])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body),
    ]
    model = model_of(nodes, {"w": matrix(), "b": np.ones(SIDE, np.float32)})
    model.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    found = choose_weights(model, load_constants(model.SerializeToString()))
    assert found.all_bytes - found.chosen_bytes == SIDE * 4


@pytest.mark.parametrize(
    ("kind", "domain"), [("MatMulNBits", "com.microsoft"), ("DequantizeLinear", ""), ("ConvInteger", "")]
)
def test_operators_tell_of_a_model_that_was_quantised_before(kind: str, domain: str) -> None:
    model = model_of(
        [helper.make_node(kind, ["x"], ["y"], domain=domain), helper.make_node("Relu", ["y"], ["z"])], {}
    )
    assert quantised_before(model) == (kind,)
    assert quantised_before(mixed()) == ()
