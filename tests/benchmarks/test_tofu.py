"""`make tofu`: the networks, what their partitions move, and which of them can move less than which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.tofu import SEARCHES, measure
from benchmarks.tofu_graphs import rnn, wide_resnet

from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph


def small_resnet(folder: Path) -> Path:
    return wide_resnet(folder, widening=1, batch=8, blocks=(1, 2, 1, 1), side=64)


def small_rnn(folder: Path) -> Path:
    return rnn(folder, layers=2, hidden=64, steps=3, batch=16)


def total_bytes(graph: Graph) -> int:
    return sum(constant.nbytes for constant in graph.constants.values())


def test_the_networks_have_the_papers_sizes(tmp_path: Path) -> None:
    resnet, cells = load_graph(wide_resnet(tmp_path)), load_graph(rnn(tmp_path))
    convolutions = sum(op.op_type == "Conv" for op in resnet.operators)
    assert convolutions - 4 + 1 == 152  # Less those of four shortcuts, and with the dense layer at the end.
    assert total_bytes(resnet) == pytest.approx(60e6 * 10**2 * 4, rel=0.05)
    assert sum(op.op_type == "MatMul" for op in cells.operators) == 10 * (20 + 19)
    assert total_bytes(cells) == 10 * (8 * 8192**2 + 4 * 8192) * 4
    assert (tmp_path / "weights").stat().st_blocks == 0


@pytest.mark.parametrize("make", [small_resnet, small_rnn])
def test_fewer_ways_to_cut_never_move_less(make: Callable[[Path], Path], tmp_path: Path) -> None:
    graph = load_graph(make(tmp_path))
    found = {name: measure("it", graph, name, 4) for name in SEARCHES}
    assert all(one.proven and one.moved_bytes > 0 for one in found.values())
    assert found["one step"].moved_bytes <= found["tofu"].moved_bytes
    assert found["one step"].moved_bytes <= found["equal chop"].moved_bytes <= found["all row"].moved_bytes


def test_rows_on_each_device_need_a_copy_of_each_weight(tmp_path: Path) -> None:
    """One step of one cell, with many more rows than weights."""
    graph = load_graph(rnn(tmp_path, layers=1, hidden=8, steps=1, batch=4096))
    found = measure("it", graph, "all row", 4)
    assert found.weight_bytes == 3 * total_bytes(graph)
    assert found.tensor_bytes == 2 * 3 * 1024 * 8 * 4  # Rows go to three other devices, and come back.
