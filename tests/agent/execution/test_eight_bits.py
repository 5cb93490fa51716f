"""Products of 8-bit numbers give the same integers on every processor: at the largest magnitudes that there are, where an
intermediate of 16 bits would saturate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from edgepart.agent.execution.compile.cache import Compiled
from edgepart.agent.execution.compile.compiler import Compiler
from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.agent.verify.rehearsal import Rehearsal
from edgepart.planner.model.load import load_graph
from edgepart.planner.region import Array

MICROSOFT = "com.microsoft"
A_SCALE, B_SCALE = 0.01, 0.02
A_ZERO = {np.uint8: 3, np.int8: -3}
ROWS, INNER, COLUMNS = 8, 64, 32


@dataclass(frozen=True)
class Product:
    """A model that multiplies 8-bit numbers."""

    name: str
    model: ModelProto
    inputs: Mapping[str, Array]
    exact: Array
    """What integers of any length give, as the output's numbers."""
    step: float
    """By which the output may be off: a step of its type where it is rounded to eight bits, else the last bits of a sum."""

    def off(self, found: Any) -> float:
        return float(np.abs(np.asarray(found, np.float64) - self.exact).max())


def extreme(kind: Any, *shape: int, seed: int) -> Array:
    """Mostly the largest number, else the smallest. -128 is left out: two products of -128 with itself are too many for 16
    bits, and ONNX Runtime adds them in 16 bits on Arm without dot products. Its quantisers make no weight of it."""
    bounds = np.iinfo(kind)
    least = max(int(bounds.min), -127)
    return np.random.default_rng(seed).choice(np.array([least, *[bounds.max] * 3], kind), shape)


def made(
    name: str, nodes: list[NodeProto], kinds: tuple[Any, Any], constants: Mapping[str, Array], exact: Array
) -> Product:
    """`a` is the input; `exact` are the integers that come out."""
    a_kind, b_kind = kinds
    a = constants["a"]
    real = exact.astype(np.float64) * A_SCALE * B_SCALE
    y_scale = np.float32(np.abs(real).max() / 100)
    y_zero = 128 if a_kind is np.uint8 else 0
    scales = {
        "as": np.asarray(A_SCALE, np.float32),
        "az": np.asarray(A_ZERO[a_kind], a_kind),
        "bs": np.asarray(B_SCALE, np.float32),
        "bz": np.asarray(0, b_kind),
        "ys": np.asarray(y_scale, np.float32),
        "yz": np.asarray(y_zero, a_kind),
    }
    held = {key: value for key, value in {**scales, **constants}.items() if key != "a"}
    used = {key for node in nodes for key in node.input}
    rounded = nodes[-1].op_type in ("QLinearMatMul", "QLinearConv", "QGemm", "QuantizeLinear")
    to_float = nodes[-1].op_type == "MatMulIntegerToFloat" or nodes[-1].op_type == "MatMul"
    kind = a_kind if rounded else np.float32 if to_float else np.int32
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("a", helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(kind)), exact.shape)],
        [numpy_helper.from_array(value, key) for key, value in held.items() if key in used],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    if rounded:
        bounds = np.iinfo(a_kind)
        wanted = np.clip(np.rint(real / float(y_scale)) + y_zero, bounds.min, bounds.max)
        return Product(name, model, {"a": a}, wanted, 1.0)
    return Product(
        name, model, {"a": a}, real if to_float else exact, 1e-5 * np.abs(real).max() if to_float else 0.0
    )


def products() -> Iterator[Product]:
    for a_kind in (np.uint8, np.int8):
        tag = f"{np.dtype(a_kind)} by int8"
        kinds = (a_kind, np.int8)
        a, b = extreme(a_kind, ROWS, INNER, seed=0), extreme(np.int8, INNER, COLUMNS, seed=1)
        given = {"a": a, "b": b}
        exact = (a.astype(np.int64) - A_ZERO[a_kind]) @ b.astype(np.int64)
        for name, nodes in matrix_nodes():
            yield made(f"{name}, {tag}", nodes, kinds, given, exact)
        for groups in (1, 2, 32):
            x, w = extreme(a_kind, 1, 32, 9, 9, seed=2), extreme(np.int8, 32, 32 // groups, 3, 3, seed=3)
            exact = convolved(x.astype(np.int64) - A_ZERO[a_kind], w.astype(np.int64), groups)
            for name, nodes in convolution_nodes(groups):
                yield made(f"{name} in {groups} groups, {tag}", nodes, kinds, {"a": x, "b": w}, exact)


def matrix_nodes() -> Iterator[tuple[str, list[NodeProto]]]:
    node = helper.make_node
    scaled = ["a", "as", "az", "b", "bs", "bz"]
    yield "MatMulInteger", [node("MatMulInteger", ["a", "b", "az", "bz"], ["y"])]
    to_float = ["a", "b", "as", "bs", "az", "bz"]
    yield "MatMulIntegerToFloat", [node("MatMulIntegerToFloat", to_float, ["y"], domain=MICROSOFT)]
    yield "QLinearMatMul", [node("QLinearMatMul", [*scaled, "ys", "yz"], ["y"])]
    yield "QGemm", [node("QGemm", [*scaled, "", "ys", "yz"], ["y"], domain=MICROSOFT)]
    yield "MatMul between quantised", [*dequantised(), node("MatMul", ["fa", "fb"], ["fy"]), quantised()]
    yield "MatMul after quantised", [*dequantised(), node("MatMul", ["fa", "fb"], ["y"])]


def convolution_nodes(groups: int) -> Iterator[tuple[str, list[NodeProto]]]:
    node = helper.make_node
    scaled = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    yield "QLinearConv", [node("QLinearConv", scaled, ["y"], group=groups)]
    yield (
        "Conv between quantised",
        [*dequantised(), node("Conv", ["fa", "fb"], ["fy"], group=groups), quantised()],
    )


def dequantised() -> list[NodeProto]:
    return [helper.make_node("DequantizeLinear", [x, f"{x}s", f"{x}z"], [f"f{x}"]) for x in "ab"]


def quantised() -> NodeProto:
    return helper.make_node("QuantizeLinear", ["fy", "ys", "yz"], ["y"])


def convolved(x: Array, w: Array, groups: int) -> Array:
    side, each = x.shape[2] - 2, w.shape[0] // groups
    found = np.zeros((1, w.shape[0], side, side), np.int64)
    for group in range(groups):
        outs = slice(group * each, (group + 1) * each)
        ins = slice(group * w.shape[1], (group + 1) * w.shape[1])
        for i in range(3):
            for j in range(3):
                window = x[0, ins, i : i + side, j : j + side]
                found[0, outs] += np.einsum("oc,chw->ohw", w[outs, :, i, j], window)
    return found


PRODUCTS = {one.name: one for one in products()}


@pytest.mark.parametrize("name", PRODUCTS)
def test_one_session_multiplies_exactly(name: str) -> None:
    product = PRODUCTS[name]
    found = run_alone(product.model.SerializeToString(), product.inputs)["y"]
    assert product.off(found) <= product.step


@pytest.mark.parametrize("name", PRODUCTS)
def test_every_split_multiplies_exactly_compiled_or_not(name: str, tmp_path: Path) -> None:
    """Segments have their weights from outside of the model, and those that are compiled are optimised beforehand."""
    product = PRODUCTS[name]
    graph = load_graph(product.model.SerializeToString())
    rehearsal = Rehearsal(graph, (0.6, 0.4))
    assert rehearsal.axes
    for axis in rehearsal.axes:
        divided = rehearsal.divide(axis)
        assert product.off(divided.devices.run(product.inputs)["y"]) <= product.step, axis
        compiler = Compiler(Compiled(tmp_path / "compiled", 1 << 30), threads=1)
        compiled = LocalRun(divided.devices.plan, graph, compiler=compiler)
        assert product.off(compiled.run(product.inputs)["y"]) <= product.step, f"{axis}, compiled"


def test_two_int8_activations_are_multiplied_alike_wherever_they_are_quantised() -> None:
    """Whatever of it is on another device, which then sees one of them without who quantises it."""
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["a", "as", "az"], ["qa"]),
        node("DequantizeLinear", ["qa", "as", "az"], ["da"]),
        node("MatMul", ["da", "w"], ["m"]),
        node("QuantizeLinear", ["m", "bs", "az"], ["qm"]),
        node("DequantizeLinear", ["qm", "bs", "az"], ["dm"]),
        node("Transpose", ["da"], ["t"]),
        node("QuantizeLinear", ["t", "as", "az"], ["qt"]),
        node("DequantizeLinear", ["qt", "as", "az"], ["dt"]),
        node("MatMul", ["dt", "dm"], ["p"]),
        node("QuantizeLinear", ["p", "ys", "az"], ["qy"]),
        node("DequantizeLinear", ["qy", "ys", "az"], ["y"]),
    ]
    chance = np.random.default_rng(0)
    held: dict[str, Array] = {
        "as": np.asarray(0.02, np.float32),
        "bs": np.asarray(0.3, np.float32),
        "ys": np.asarray(5.0, np.float32),
        "az": np.asarray(0, np.int8),
        "w": chance.standard_normal((INNER, COLUMNS)).astype(np.float32),
    }
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "attention",
        [value("a", TensorProto.FLOAT, (ROWS, INNER))],
        [value("y", TensorProto.FLOAT, (INNER, COLUMNS))],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    source = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    loaded = load_graph(source)
    assert not any(tensor.dtype == "int8" for tensor in loaded.tensors.values())
    inputs = {"a": chance.standard_normal((ROWS, INNER)).astype(np.float32)}
    rehearsal = Rehearsal(loaded, (0.6, 0.4))
    found = {axis: rehearsal.divide(axis).devices.run(inputs)["y"] for axis in (*rehearsal.axes,)}
    assert len(found) > 1
    first = next(iter(found.values()))
    assert np.abs(first).max() > 0
    assert all(np.array_equal(one, first) for one in found.values())


def dynamic(*nodes: NodeProto) -> bytes:
    """x is 8 by 64, in float32; w is a weight in int8, with its scale and zero point."""
    held: dict[str, Array] = {
        "w": extreme(np.int8, INNER, COLUMNS, seed=4),
        "ws": np.asarray(B_SCALE, np.float32),
        "wz": np.asarray(0, np.int8),
    }
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        list(nodes),
        "dynamic",
        [value("x", TensorProto.FLOAT, (ROWS, INNER))],
        [value("y", TensorProto.FLOAT, (ROWS, COLUMNS))],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return bytes(helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString())


DYNAMIC = {
    "operator by operator": dynamic(
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("DynamicQuantizeLinear", ["r"], ["q", "qs", "qz"]),
        helper.make_node("MatMulInteger", ["q", "w", "qz", "wz"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["qs", "ws"], ["s"]),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ),
    "in one operator": dynamic(
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("DynamicQuantizeMatMul", ["r", "w", "ws", "wz"], ["y"], domain=MICROSOFT),
    ),
}


@pytest.mark.parametrize("corner", [(0, 0), (ROWS - 1, INNER - 1)])
@pytest.mark.parametrize("name", DYNAMIC)
def test_a_scale_that_comes_from_the_whole_tensor_is_the_same_in_every_split(
    name: str, corner: tuple[int, int]
) -> None:
    """The one number that decides on the scale is in one device's part alone."""
    x = np.random.default_rng(5).uniform(0, 1, (ROWS, INNER)).astype(np.float32)
    x[corner] = 1000.0
    expected = run_alone(DYNAMIC[name], {"x": x})["y"]
    rehearsal = Rehearsal(load_graph(DYNAMIC[name]), (0.6, 0.4))
    assert rehearsal.axes
    for axis in rehearsal.axes:
        found = rehearsal.divide(axis).devices.run({"x": x})["y"]
        assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max(), axis


def test_weights_that_are_also_outputs_are_as_exact() -> None:
    """ONNX Runtime 1.32 refuses such a model on processors without VNNI if it is told to multiply exactly."""
    weights = extreme(np.int8, 8, 3, 3, 3, seed=5)
    picture = extreme(np.uint8, 1, 3, 8, 8, seed=6)
    windows = np.lib.stride_tricks.sliding_window_view(picture.astype(np.int64) - 3, (3, 3), axis=(2, 3))
    sums = np.einsum("bchwij,ocij->bohw", windows, weights.astype(np.int64)) * 0.5 * 0.02
    constants = {
        "weights": weights,
        "scale": np.float32(0.02),
        "zero": np.int8(0),
        "x_scale": np.float32(0.5),
        "x_zero": np.uint8(3),
        "y_scale": np.float32(np.abs(sums).max() / 100),
        "y_zero": np.uint8(128),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["weights", "scale", "zero"], ["real"]),
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["real_x"]),
        helper.make_node("Conv", ["real_x", "real"], ["sums"]),
        helper.make_node("QuantizeLinear", ["sums", "y_scale", "y_zero"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "shared",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, picture.shape)],
        [
            helper.make_tensor_value_info("y", TensorProto.UINT8, None),
            helper.make_tensor_value_info("real", TensorProto.FLOAT, weights.shape),
        ],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = run_alone(model.SerializeToString(), {"x": picture})
    exact = np.rint(sums / constants["y_scale"]) + 128  # From 28 to 228: nothing is clipped.
    assert np.abs(found["y"].astype(np.float64) - exact).max() <= 1  # A step of its type.
    assert np.array_equal(found["real"], weights.astype(np.float32) * np.float32(0.02))
