"""Configurations are written as the paper writes them."""

from __future__ import annotations

import pytest
from benchmarks.optcnn import TABLE_3, TABLE_4
from benchmarks.optcnn_graphs import INFINIBAND, NETWORKS, NVLINK, gpus
from benchmarks.optcnn_table5 import SCALING, TABLE_5, degrees

from edgepart.planner.layout.choices import Choice, Divide, Reduce, Whole

FOUR = tuple((name, 0.25) for name in "abcd")


@pytest.mark.parametrize(
    ("choice", "dense", "written"),
    [
        (Divide(("batch",), FOUR), False, "{n=4, h=1, w=1, c=1}"),
        (Divide(("height", "width"), FOUR, (2, 2)), False, "{n=1, h=2, w=2, c=1}"),
        (Divide(("batch", "channel"), FOUR, (1, 4)), True, "{n=1, c=4}"),
        (Whole(("a",)), True, "{n=1, c=1}"),
        (Whole(("a", "b")), True, "whole on each"),
        (Reduce("inner", FOUR, Whole(("a",))), True, "4 parts of each sum"),
    ],
)
def test_degrees_are_written_as_in_table_5(choice: Choice, dense: bool, written: str) -> None:
    assert degrees(choice, dense) == written


def test_gpus_are_near_those_of_their_own_host() -> None:
    cluster = gpus(8)
    assert cluster.link("gpu0", "gpu3") == cluster.link("gpu7", "gpu4") == NVLINK
    assert cluster.link("gpu3", "gpu4") == cluster.link("gpu0", "gpu7") == INFINIBAND


def test_vgg_has_the_layers_of_table_5_and_the_size_of_its_paper() -> None:
    graph = NETWORKS["VGG-16"](1)
    kinds = [op.op_type for op in graph.operators]
    layers = sum(kinds.count(kind) for kind in ("Conv", "MaxPool", "Gemm", "Softmax"))
    assert layers == sum(count for count, _ in TABLE_5.values())
    assert sum(constant.region.size for constant in graph.constants.values()) == 138_357_544
    assert SCALING.keys() == TABLE_3.keys() == TABLE_4.keys() == NETWORKS.keys()
