"""What sketches cost on GPUs, worked out by hand."""

from __future__ import annotations

import pytest
from benchmarks.models.sketches import sketch
from benchmarks.models.sketches.sketch import Sketch
from benchmarks.placing_clusters import EFFECTIVE, GPUS, KEPT, LAUNCH_S, SETTINGS, setting
from benchmarks.placing_costs import flops, kept, moved, seconds, workload
from benchmarks.placing_trial import as_run

from edgepart.planner.layers.runtime_fusion import find_fused_groups
from edgepart.planner.model.graph import Graph
from edgepart.planner.placing.placers.getf import speed_groups

INTER = SETTINGS["inter-server"]


def product_and_bias() -> Graph:
    """[4, 8] x [8, 16], and a bias; read twice."""
    s = Sketch("test")
    y = s.linear(s.input("x", 4, 8), 16)
    return s.graph(s.each("Relu", y), s.each("Gelu", y))


def test_an_operator_moves_what_it_reads_and_writes() -> None:
    graph = product_and_bias()
    product, bias, *_ = graph.operators
    assert flops(graph, product) == 2 * 4 * 8 * 16
    assert moved(graph, [product]) == 2 * (4 * 8 + 8 * 16 + 4 * 16)
    assert moved(graph, [bias]) == 2 * (4 * 16 + 16 + 4 * 16)
    assert kept(graph, [product], dict.fromkeys(graph.constants, 1)) == 2 * 8 * 16


def test_what_is_fused_moves_only_what_enters_and_leaves() -> None:
    graph = product_and_bias()
    product, bias, relu, gelu = graph.operators
    assert moved(graph, [product, bias]) == 2 * (4 * 8 + 8 * 16 + 16 + 4 * 16)
    apart = workload("apart", graph, [[op] for op in graph.operators], INTER)
    together = workload("together", graph, [[product, bias], [relu], [gelu]], INTER)
    assert together.tasks[0].op == "MatMul+Add"
    assert (
        together.tasks[0].compute_s[0] < apart.tasks[0].compute_s[0] + apart.tasks[1].compute_s[0] - LAUNCH_S
    )
    assert together.tasks[0].memory_bytes == apart.tasks[0].memory_bytes + apart.tasks[1].memory_bytes
    assert [(t.source, t.readers, t.nbytes) for t in together.tensors] == [(0, (1, 2), 128.0)]


def test_seconds_are_the_longer_of_two() -> None:
    t4 = GPUS["T4"]
    assert seconds("T4", 0, 0) == 0
    assert seconds("T4", t4.flops_per_s, 1) == pytest.approx(LAUNCH_S + 1 / EFFECTIVE)
    assert seconds("T4", 1, t4.memory_bytes_per_s) == pytest.approx(LAUNCH_S + 1 / EFFECTIVE)


def test_looking_up_moves_only_what_is_looked_up() -> None:
    graph = sketch("gpt-tiny")
    looked = graph.operators[0]
    assert looked.op_type == "Gather"
    assert moved(graph, [looked]) == 2 * 128 * 64 * 2 + 128 * 8


def test_constants_that_several_read_are_kept_by_none() -> None:
    graph = sketch("gpt-tiny")
    apart = workload("apart", graph, [[op] for op in graph.operators], INTER)
    tables = 2 * 64 * (1000 + 1000 + 128 + 2)
    layers = 2 * (2 * (12 * 64**2 + 13 * 64) + 2 * 4)  # a factor for each head's scores
    assert sum(task.memory_bytes for task in apart.tasks) == tables + layers


def test_settings_are_as_printed() -> None:
    assert INTER.bytes_per_s[0][2] == pytest.approx(32.92e9 / 8)
    assert INTER.bytes_per_s[2][0] == pytest.approx(33.2e9 / 8)
    assert [m.memory_bytes / KEPT / 2**30 for m in INTER.machines] == pytest.approx([11, 16, 8, 8])
    assert INTER.latency_s[0][0] == 0 and INTER.bytes_per_s[3][3] == float("inf")
    two = setting("two inter-server")
    assert len(two.machines) == 8 and len({machine.name for machine in two.machines}) == 8
    assert (
        two.gbit_per_s[4][6] == 32.92
        and two.gbit_per_s[0][4] == 32.92
        and two.gbit_per_s[5][5] == float("inf")
    )


def test_only_the_setting_of_two_classes_has_two_groups_by_getf() -> None:
    graph = sketch("gpt-330M")
    for name, one in SETTINGS.items():
        placed = workload("gpt", graph, [(op,) for op in graph.operators], one)
        groups = [group.machines for group in speed_groups(placed)]
        assert groups == ([tuple(range(1, 8)), (0,)] if name == "two classes" else [(0, 1, 2, 3)])


def test_devices_fuse_only_what_they_have() -> None:
    graph = sketch("gpt-tiny")
    names = {op.name: n for n, op in enumerate(graph.operators)}
    whole = as_run(graph, [0] * len(names))
    assert sorted(map(_names, whole)) == sorted(map(_names, find_fused_groups(graph)))
    several = max(whole, key=len)
    parted = [1 if op.name == several[-1].name else 0 for op in graph.operators]
    groups = as_run(graph, parted)
    assert sum(map(len, groups)) == len(names)
    for group in groups:
        assert len({parted[names[op.name]] for op in group}) == 1
    assert len(groups) > len(whole)


def _names(group: object) -> tuple[str, ...]:
    assert isinstance(group, list | tuple)
    return tuple(op.name for op in group)
