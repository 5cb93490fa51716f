"""Which operators are fused, held against what ONNX Runtime makes of the same models."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.models.zoo import zoo_model
from onnx import NodeProto, helper

from edgepart.planner.layers.runtime_fusion import find_fused_groups
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from tests.planner.layers.really_fused import really_fused
from tests.planner.small_models import model, quantised, random, residual

VIEWS = frozenset({"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
"""Cost nothing; the runtime moves them about."""

MODELS = (
    "bert_base_small",
    "bert_int8_dynamic_small",
    "film_3d_small",
    "gpt_past_small",
    "gpt_past_4bit_small",
    "llama_attention_small",
    "loop_decoder_small",
    "mobilenet_v2_small",
    "resnet50_small",
    "resnet50_qdq_int8_small",
    "shufflenet_v2_small",
    "unet_256_small",
    "vit_b16_small",
    "yolo_640_small",
)


def types(graph: Graph) -> list[str]:
    return [" ".join(op.op_type for op in group) for group in find_fused_groups(graph)]


def hold(graph: Graph, path: Path | bytes) -> int:
    """How many of the runtime's operators compute several of the graph; each time these are in one group of ours."""
    group_of = {op.name: number for number, group in enumerate(find_fused_groups(graph)) for op in group}
    held = 0
    for kind, names in really_fused(graph, path):
        computing = {name for name in names if graph.by_name[name].op_type not in VIEWS}
        if len(computing) > 1:
            held += 1
            assert len({group_of[name] for name in computing}) == 1, (kind, computing)
    return held


@pytest.mark.parametrize("name", MODELS)
def test_what_the_runtime_computes_as_one_is_one_group(name: str) -> None:
    known = zoo_model(name)
    assert hold(load_graph(known.path, shapes=known.shapes), known.path) > 0


def test_branches_of_inception() -> None:
    known = zoo_model("seeded_light_inception_v1")
    graph = load_graph(known.path)
    assert hold(graph, known.path) == types(graph).count("Conv Relu") == 57


def test_an_operator_that_others_read_too_is_no_inner_one() -> None:
    graph = load_graph(residual())
    assert "Conv BatchNormalization Relu" in types(graph)
    assert sum(len(group) for group in find_fused_groups(graph)) == len(graph.operators)


def test_a_quantise_group_is_one() -> None:
    groups = [group for group in types(load_graph(quantised())) if "Conv" in group]
    assert groups and all(group.endswith("QuantizeLinear") for group in groups)


def layer_norm() -> bytes:
    nodes: list[NodeProto] = [
        helper.make_node("ReduceMean", ["x"], ["m"], "mean", axes=[-1]),
        helper.make_node("Sub", ["x", "m"], ["d"], "sub"),
        helper.make_node("Pow", ["d", "two"], ["p"], "pow"),
        helper.make_node("ReduceMean", ["p"], ["v"], "variance", axes=[-1]),
        helper.make_node("Add", ["v", "eps"], ["e"], "eps_add"),
        helper.make_node("Sqrt", ["e"], ["r"], "root"),
        helper.make_node("Div", ["d", "r"], ["n"], "div"),
        helper.make_node("Mul", ["n", "scale"], ["s"], "scaled"),
        helper.make_node("Add", ["s", "bias"], ["y"], "shifted"),
    ]
    weights = {"scale": random(0, 8), "bias": random(1, 8)}
    weights |= {"two": random(2, 1)[0] * 0 + 2, "eps": random(2, 1)[0] * 0 + 1e-5}
    return model(nodes, {"x": (2, 4, 8)}, ["y"], weights)


def test_a_norm_that_is_written_out_is_one() -> None:
    graph = load_graph(layer_norm())
    assert len(find_fused_groups(graph)) == 1
    assert hold(graph, layer_norm()) == 1


def test_groups_come_in_an_order_that_can_be_run() -> None:
    graph = load_graph(zoo_model("bert_base_small").path)
    made = {*graph.inputs, *graph.constants, ""}
    for group in find_fused_groups(graph):
        for op in group:
            assert made.issuperset(op.inputs)
            made.update(op.outputs)
