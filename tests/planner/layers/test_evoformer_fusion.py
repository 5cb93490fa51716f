"""What the runtime fuses of an Evoformer, of which Moirai's table IV coarsens 30 % of the operators away."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from benchmarks.models.sketches.evoformer import Widths, evoformer
from benchmarks.models.sketches.table import TABLE
from onnx import TensorProto, helper, numpy_helper

from edgepart.planner.layers.runtime_fusion import find_fused_groups
from edgepart.planner.model.graph import Constant, Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.region import Array
from tests.planner.layers.really_fused import optimised
from tests.planner.layers.test_runtime_fusion import hold


def seeded(graph: Graph) -> bytes:
    """The sketch as a model that runs."""
    random = np.random.default_rng(0)

    def value(constant: Constant) -> Array:
        if constant.dtype == "int64":  # Its name says it.
            return np.array([int(text.replace("m", "-")) for text in constant.name.split("_")[1:]])
        return random.standard_normal(constant.shape).astype(np.float32)

    made = helper.make_graph(
        [
            helper.make_node(op.op_type, op.inputs, op.outputs, op.name, **op.attributes)
            for op in graph.operators
        ],
        graph.name,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, graph.shape_of(n)) for n in graph.inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in graph.outputs],
        [numpy_helper.from_array(value(one), one.name) for one in graph.constants.values()],
    )
    opsets = [helper.make_opsetid("", graph.opset_imports[""])]
    return bytes(helper.make_model(made, opset_imports=opsets, ir_version=10).SerializeToString())


@pytest.mark.parametrize("heads", [Widths(64, 2, 64), Widths(64, 4, 64, row_groups=2, column_groups=2)])
def test_the_runtime_fuses_nothing_of_an_evoformer_without_biases(heads: Widths) -> None:
    model = seeded(evoformer(2, heads, sequences=8, residues=8))
    graph = load_graph(model)
    assert Counter(node.op_type for node in optimised(model).graph.node) == Counter(
        op.op_type for op in graph.operators
    )
    assert hold(graph, model) == 0
    assert len(find_fused_groups(graph)) == len(graph.operators)


def test_with_biases_it_fuses_each_product_with_its_bias_and_no_more() -> None:
    model = seeded(evoformer(2, Widths(64, 2, 64, biases=True), sequences=8, residues=8))
    graph = load_graph(model)
    groups = Counter(" ".join(op.op_type for op in group) for group in find_fused_groups(graph))
    assert hold(graph, model) == groups["MatMul Add"] == 2 * 23
    assert all(" " not in kind or kind == "MatMul Add" for kind in groups)
    fewer = 1 - groups.total() / len(graph.operators)
    operators, coarsened = TABLE["evoformer-87M"].operators, TABLE["evoformer-87M"].coarsened
    assert 0.15 < fewer < 0.2 < 0.29 < 1 - coarsened / operators < 0.3
