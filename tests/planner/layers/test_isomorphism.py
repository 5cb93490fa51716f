"""What is known of one operator is true of those that are like it: against each one's own declaration and cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.models import light
from benchmarks.scale import transformer
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgepart.planner.access import accesses
from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.layers.isomorphism import find_kinds
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.model.load import load_graph
from edgepart.planner.region import Region, span
from edgepart.planner.search.study import Study
from tests.planner.small_models import quantised, residual
from tests.planner.small_transformers import attention, mlp, shuffled

MODELS: dict[str, Callable[[], bytes | Path]] = {
    "residual": residual,
    "quantised": quantised,
    "mlp": mlp,
    "attention": attention,
    "shuffled": shuffled,
    "transformer": lambda: transformer(60).SerializeToString(),
    "inception_v2": lambda: light("inception_v2"),
    "squeezenet": lambda: light("squeezenet"),
}


@cache
def studied(model: str) -> Study:
    devices = (Device("a", "k", 1e9, 2e8, 4e9), Device("b", "k", 2e9, 4e8, 4e9))
    return Study(Problem(load_graph(MODELS[model]()), Cluster(devices, {}, Link(1e8, 1e-4)), "a"))


def part(data: st.DataObject, extent: int) -> tuple[int, int]:
    start = data.draw(st.integers(0, extent - 1))
    return start, data.draw(st.integers(start + 1, extent))


def wanted(data: st.DataObject, graph: Graph, op: Operator, whole: bool) -> dict[int, Region]:
    """A box of the first output."""
    shape = graph.tensors[op.outputs[0]].shape
    if whole or shape is None:
        return {0: graph.region_of(op.outputs[0])}
    return {0: Region(tuple(span(part(data, extent)) for extent in shape))}


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=30)
@given(data=st.data())
def test_operators_that_are_alike_read_and_compute_the_same(model: str, data: st.DataObject) -> None:
    graph, own, coarse = (
        studied(model).memo.graph,
        accesses(studied(model).memo.graph),
        studied(model).memo.coarse,
    )
    op = data.draw(st.sampled_from(graph.operators))
    access, shared = own[op.name], coarse.accesses[op.name]
    assert (shared.opaque, shared.family, shared.axes()) == (access.opaque, access.family, access.axes())
    outputs = wanted(data, graph, op, access.opaque is not None)
    assert shared.needs(outputs) == access.needs(outputs)
    assert shared.flops(outputs) == access.flops(outputs)


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=30)
@given(data=st.data())
def test_a_piece_that_was_measured_on_another_operator_is_this_ones(model: str, data: st.DataObject) -> None:
    """Every operator of a kind, after one of them was measured."""
    study = studied(model)
    graph, operator_costs, own = study.memo.graph, study.memo.operator_costs, accesses(study.memo.graph)
    kinds = defaultdict(list)
    for op in graph.operators:
        kinds[study.memo.coarse.kinds[op.name]].append(op)
    ops = data.draw(st.sampled_from(sorted(kinds.values(), key=len)[-8:]))
    outputs = wanted(data, graph, ops[0], own[ops[0].name].opaque is not None)
    for op in ops:
        found, needs = operator_costs.cost_of(op, tuple(outputs.items())), own[op.name].needs(outputs)
        work = study.memo.cost.measure(op, own[op.name], outputs, needs)
        assert found.work == work
        read = [(n, op.inputs[n], r) for n, r in enumerate(needs) if r is not None and op.inputs[n]]
        assert found.reads == tuple((n, r) for n, name, r in read if name in graph.tensors)
        weights = [
            r.size * study.memo.cost.item_bytes(name) for _, name, r in read if name in graph.constants
        ]
        assert found.weight_bytes == sum(weights)


def twins(**second: Any) -> Graph:
    """Two slices of one input, alike but for what `second` says of the other one."""
    values = {"starts": [0], "ends": [2], "axes": [0]}
    given = {f"{name}_a": value for name, value in values.items()}
    given |= {f"{name}_b": second.get(name, value) for name, value in values.items()}
    nodes = [
        helper.make_node("Slice", ["x", *(f"{name}_{one}" for name in values)], [f"y_{one}"], one)
        for one in "ab"
    ]
    nodes += [helper.make_node("LeakyRelu", ["y_a"], ["z_a"], "ra", alpha=0.1)]
    nodes += [helper.make_node("LeakyRelu", ["y_b"], ["z_b"], "rb", alpha=second.get("alpha", 0.1))]
    ends = [helper.make_tensor_value_info(f"z_{one}", TensorProto.FLOAT, None) for one in "ab"]
    made = helper.make_graph(
        nodes,
        "twins",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])],
        ends,
        [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in given.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return load_graph(model.SerializeToString())


@pytest.mark.parametrize(
    ("second", "slices", "behind"),
    [
        ({}, True, True),
        ({"starts": [1], "ends": [3]}, False, True),
        ({"axes": [1]}, False, False),
        ({"alpha": 0.2}, True, False),
    ],
)
def test_what_tells_operators_apart(second: dict[str, Any], slices: bool, behind: bool) -> None:
    kinds = find_kinds(twins(**second))
    assert (kinds["a"] == kinds["b"], kinds["ra"] == kinds["rb"]) == (slices, behind)


def test_blocks_that_repeat_add_no_kinds() -> None:
    few, many = (load_graph(transformer(n).SerializeToString()) for n in (60, 240))
    assert len(many.operators) > 2 * len(few.operators)
    assert len(set(find_kinds(few).values())) == len(set(find_kinds(many).values()))
