"""Rates by size: what is between two measured ones, and at what rate operators of a real model go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgepart.planner.access import accesses
from edgepart.planner.cost.cost import Cost
from edgepart.planner.cost.work import Work
from edgepart.planner.devices.cluster import Cluster, Device
from edgepart.planner.devices.cluster_json import cluster_from_json
from edgepart.planner.devices.rates import Curve, curves_by_name
from edgepart.planner.errors import UsageError
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.region import Array, Region

PLAIN = Device("plain", "box", 1e9, 1e8, 1e9)
MEASURED = Device(
    "measured",
    "box",
    1e9,
    1e8,
    1e9,
    families={"conv": 8e9, "conv/8": 2e9, "gemm": 4e9, "gemm/1": 1e9, "columns": 2e9, "columns/8": 1e9},
    moves={"elementwise": 4e8, "lrn": 1e6, "weights": 2e8},
    kernel_s=1e-3,
)

points = st.lists(st.tuples(st.floats(1, 1e6), st.floats(1e3, 1e12)), min_size=1, max_size=5)


@given(points, st.floats(0.1, 1e7))
def test_a_rate_is_one_of_its_neighbours_or_between_them(
    found: list[tuple[float, float]], size: float
) -> None:
    curve = Curve(tuple(sorted(dict(found).items())))
    below = [rate for at, rate in curve.points if at <= size] or [curve.points[0][1]]
    above = [rate for at, rate in curve.points if at >= size] or [curve.points[-1][1]]
    low, high = sorted((below[-1], above[0]))
    assert low * (1 - 1e-6) <= curve.at(size) <= high * (1 + 1e-6)


@given(points)
def test_what_was_measured_is_given_back(found: list[tuple[float, float]]) -> None:
    known = dict(found)
    curve = Curve(tuple(sorted(known.items())))
    assert all(curve.at(size) == pytest.approx(rate) for size, rate in known.items())


@pytest.mark.parametrize("key", ["conv/", "conv/0", "conv/-8", "conv/inf", "conv/nan", "conv/many"])
def test_a_size_that_is_none_is_the_fault_of_the_file(key: str) -> None:
    device = {
        "name": "a",
        "flops_per_s": 1,
        "memory_bytes_per_s": 1,
        "memory_bytes": 1,
        "families": {key: 1.0},
    }
    with pytest.raises(ValueError):
        curves_by_name({key: 1.0})
    with pytest.raises(UsageError, match=r"devices\[0\].families"):
        cluster_from_json({"devices": [device]})


def test_a_device_of_which_little_is_known_takes_the_longer_of_computing_and_moving() -> None:
    assert Work(2e9, 1e8, "conv", 8, kernels=1).seconds_on(PLAIN) == pytest.approx(2.0)
    assert Work(1e8, 1e8, "conv", 8, kernels=1).seconds_on(PLAIN) == pytest.approx(1.0)
    assert Work(1e3, 1e8, "reduce", kind="lrn", kernels=1).seconds_on(PLAIN) == pytest.approx(1.0)


def test_few_channels_few_rows_and_few_columns_are_slow() -> None:
    assert MEASURED.rates.flops("conv") == 8e9
    assert MEASURED.rates.flops("conv", 8) == 2e9
    assert 2e9 < MEASURED.rates.flops("conv", 16) < 8e9
    assert MEASURED.rates.flops("stem") == 8e9  # as any other convolution, where it was not measured
    assert MEASURED.rates.flops("gemm", 1) == 1e9
    assert MEASURED.rates.flops("gemm", 64, 8) == pytest.approx(2e9)
    assert MEASURED.rates.flops("int8", 64) == pytest.approx(4e9)  # as gemm, where it was not measured
    assert MEASURED.rates.flops("other") == 1e9


def test_weights_and_values_come_besides_computing() -> None:
    work = Work(8e9, 3e8, "conv", 64, weights=2e8, kernels=1)
    assert work.seconds_on(MEASURED) == pytest.approx(1.0 + 1.0 + 0.25 + 1e-3)


def test_one_row_waits_for_its_weights_and_computes_meanwhile() -> None:
    work = Work(1e9, 4e8, "gemm", 1, 64, weights=4e8)
    assert work.seconds_on(MEASURED) == pytest.approx(2.0)


def test_kinds_go_at_their_own_rate_and_never_faster_than_bytes() -> None:
    assert Work(1.0, 1e6, "reduce", kind="lrn").seconds_on(MEASURED) == pytest.approx(1.0)
    fast = Device("fast", "box", 1e9, 1e8, 1e9, moves={"elementwise": 1e8, "softmax": 1e9})
    assert Work(1.0, 1e8, "reduce", kind="softmax").seconds_on(fast) == pytest.approx(1.0)


def graph_of(nodes: list[NodeProto], weights: Mapping[str, Array], x: tuple[int, ...], folder: Path) -> Graph:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return load_graph(path)


def work_in(graph: Graph, region: Region | None = None) -> Work:
    op = graph.producers["y"]
    outputs = {0: region or graph.region_of("y")}
    return Cost(Cluster((PLAIN,)), graph).work(op, accesses(graph)[op.name], outputs)


def test_a_convolution_has_the_channels_that_are_wanted_of_it(tmp_path: Path) -> None:
    weights = {"w": np.ones((32, 16, 3, 3), np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    graph = graph_of([node], weights, (1, 16, 8, 8), tmp_path)
    assert work_in(graph).size == 32
    part = work_in(graph, Region.box((0, 1), (8, 16), (0, 8), (0, 8)))
    assert part.size == 8
    assert part.weights == 8 * 16 * 9 * 4
    assert part.family == "conv"


@pytest.mark.parametrize(
    ("weight", "group", "family"),
    [
        ((32, 3, 3, 3), 1, "stem"),
        ((32, 16, 5, 5), 1, "large"),
        ((32, 16, 1, 1), 1, "pointwise"),
        ((16, 1, 3, 3), 16, "depthwise"),
        ((32, 4, 1, 1), 4, "grouped"),
    ],
)
def test_families_of_convolutions(weight: tuple[int, ...], group: int, family: str, tmp_path: Path) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=group)
    graph = graph_of([node], {"w": np.ones(weight, np.float32)}, (1, weight[1] * group, 8, 8), tmp_path)
    assert work_in(graph).family == family


def test_an_embedding_reads_what_it_writes_and_not_its_table(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node("Gather", ["w", "i"], ["y"]),
    ]
    graph = graph_of(nodes, {"w": np.ones((1000, 8), np.float32)}, (4,), tmp_path)
    assert work_in(graph).nbytes == 2 * 4 * 8 * 4 + 4 * 8


def test_a_square_is_a_product_and_another_power_is_not(tmp_path: Path) -> None:
    node = helper.make_node("Pow", ["x", "e"], ["y"])
    kinds = {
        exponent: work_in(graph_of([node], {"e": np.array(exponent, np.float32)}, (4,), tmp_path)).kind
        for exponent in (2.0, 1.7)
    }
    assert kinds == {2.0: "elementwise", 1.7: "scalar"}


def test_inside_a_quantise_group_nothing_is_rounded_by_itself(tmp_path: Path) -> None:
    scale: dict[str, Array] = {"s": np.array(0.1, np.float32), "z": np.array(0, np.uint8)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="first"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="inside"),
        helper.make_node("Conv", ["d", "w"], ["c"], name="conv"),
        helper.make_node("QuantizeLinear", ["c", "s", "z"], ["p"], name="behind"),
        helper.make_node("DequantizeLinear", ["p", "s", "z"], ["y"], name="last"),
    ]
    graph = graph_of(nodes, scale | {"w": np.ones((8, 8, 1, 1), np.float32)}, (1, 8, 4, 4), tmp_path)
    cost, found = Cost(Cluster((PLAIN,)), graph), accesses(graph)
    works = {
        op.name: cost.work(op, found[op.name], {0: graph.region_of(op.outputs[0])}) for op in graph.operators
    }
    assert [name for name, work in works.items() if not work.nbytes] == ["inside", "behind"]
    assert works["conv"].family == "int8_conv"
    assert works["first"].kind == works["last"].kind == "round"
