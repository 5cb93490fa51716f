"""Which operators make one layer, and what leaves it."""

from __future__ import annotations

from edgepart.planner.layers.coarsen import coarsen, layers
from edgepart.planner.model.load import load_graph
from tests.planner.small_models import quantised, residual


def test_followers_join_the_layer_that_writes_their_input() -> None:
    of = layers(load_graph(residual()))
    assert of["conv1"] == of["norm1"] == of["relu1"]
    assert of["conv3"] == of["add3"] == of["relu3"]
    assert (
        len({of["conv1"], of["conv2"], of["conv3"], of["pool"], of["dense1"], of["dense2"], of["softmax"]})
        == 7
    )


def test_layers_may_be_those_of_the_same_operators_with_other_shapes() -> None:
    graph = load_graph(residual())
    all_apart = {op.name: number for number, op in enumerate(graph.operators)}
    coarse = coarsen(graph, all_apart)
    assert coarse.layer_of == all_apart and len(coarse.layers) == len(graph.operators)
    assert coarsen(graph, layers(graph)).layers == coarsen(graph).layers


def test_only_what_is_read_outside_leaves_a_layer() -> None:
    coarse = coarsen(load_graph(residual()))
    assert [layer.exits for layer in coarse.layers if layer.exits] == [
        ("r1",), ("r2",), ("r3",), ("p",), ("d1",), ("g2",), ("y",)
    ]  # fmt: skip


def test_views_are_left_to_their_readers() -> None:
    graph = load_graph(residual())
    coarse = coarsen(graph)
    assert coarse.is_pulled(graph.by_name["flatten"])
    assert not coarse.is_pulled(graph.by_name["pool"])


def test_a_quantise_group_is_one_layer_and_only_quantised_tensors_leave_it() -> None:
    graph = load_graph(quantised())
    of = layers(graph)
    assert of["d0"] == of["v1"] == of["conv1"] == of["relu1"] == of["q1"]
    assert of["d1"] == of["v2"] == of["conv2"] == of["q2"]
    exits = [name for layer in coarsen(graph).layers for name in layer.exits]
    assert {graph.tensors[name].dtype for name in exits if name not in graph.outputs} == {"uint8"}
