"""Shapes that fused operators of transformers write: what the runtime itself gives."""

from __future__ import annotations

from dataclasses import replace

import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from edgepart.planner.access import access_of
from edgepart.planner.model.load import load_graph
from edgepart.planner.model.shapes import contrib_attention_shapes
from tests.planner.access import test_law_attention as whole
from tests.planner.access import test_law_attention_microsoft as attention
from tests.planner.access import test_law_rotary as around
from tests.planner.access.law import Case, check_whole

CASES = st.one_of(
    attention.multi_head(),
    attention.projected(),
    attention.quantised(),
    attention.group_query(),
    around.embedded(),
    st.sampled_from([case for case in around.NORMS if case.op_type.startswith("Skip")]),
)


@settings(max_examples=40)
@given(case=CASES)
def test_shapes_are_those_that_the_runtime_gives(case: Case) -> None:
    results = check_whole(case).results
    names = ["" if array is None else f"in_{n}" for n, array in enumerate(case.inputs)]
    node = helper.make_node(case.op_type, names, [f"out_{n}" for n in range(case.outputs)], **case.attributes)
    shapes = [None if array is None else array.shape for array in case.inputs]
    kinds = [0 if array is None else helper.np_dtype_to_tensor_dtype(array.dtype) for array in case.inputs]
    told = case.inputs[6] if case.op_type == "GroupQueryAttention" else None
    total = None if told is None else int(told[0])
    made = contrib_attention_shapes.infer_attention_outputs(node, shapes, kinds, total)
    right = [(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for array in results]
    assert list(made[: len(right)]) == right


@settings(max_examples=60)
@given(case=st.one_of(CASES, whole.cases(), around.rotary()), data=st.data())
def test_a_model_that_is_wrong_about_a_shape_is_no_crash(case: Case, data: st.DataObject) -> None:
    """Its operators are whole, or split as far as shapes go."""
    graph = check_whole(case).graph
    name = data.draw(st.sampled_from(sorted(graph.tensors)))
    shape = graph.tensors[name].shape or ()
    wrong = data.draw(
        st.sampled_from([shape[1:], (*shape, 2), (3, *shape), tuple(e + 1 for e in shape), (), (7,)])
    )
    tensors = {**graph.tensors, name: replace(graph.tensors[name], shape=wrong)}
    found = access_of(graph.operators[0], replace(graph, tensors=tensors))
    assert (found.opaque is None) or found.axes() == ()


def _group_query(constant: bool) -> onnx.ModelProto:
    """One token behind a past of four."""
    inputs = ["q", "k", "v", "past_k", "past_v", "lengths", "total"]
    node = helper.make_node(
        "GroupQueryAttention", inputs, ["y", "pk", "pv"], domain="com.microsoft", num_heads=2, kv_num_heads=1
    )
    shapes = {
        "q": (1, 1, 32),
        "k": (1, 1, 16),
        "v": (1, 1, 16),
        "past_k": (1, 1, 4, 16),
        "past_v": (1, 1, 4, 16),
    }
    given_ = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    given_.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, (1,)))
    total = helper.make_tensor("total", TensorProto.INT32, (1,), [5])
    if not constant:
        given_.append(helper.make_tensor_value_info("total", TensorProto.INT32, (1,)))
    graph = helper.make_graph(
        [node],
        "g",
        given_,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "pk", "pv")],
        [total] if constant else [],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def test_a_cache_is_as_long_as_the_operator_is_told() -> None:
    known, unknown = (load_graph(_group_query(constant).SerializeToString()) for constant in (True, False))
    assert [known.tensors[name].shape for name in ("y", "pk", "pv")] == [
        (1, 1, 32),
        (1, 1, 5, 16),
        (1, 1, 5, 16),
    ]
    assert [unknown.tensors[name].shape for name in ("y", "pk", "pv")] == [(1, 1, 32), None, None]


def test_what_is_not_known_is_not_guessed() -> None:
    node = helper.make_node("Attention", ["x", "w", "b"], ["y"], num_heads=2)
    assert (
        contrib_attention_shapes.infer_attention_outputs(node, [(1, 2, 3), None, (12,)], [1, 1, 1], None)
        == ()
    )
    assert contrib_attention_shapes.infer_attention_outputs(node, [(1, 2, 3), (3, 12)], [1, 1], None) == (
        (1, (1, 2, 4)),
        (1, (2, 1, 2, 2, 2)),
    )
    assert not contrib_attention_shapes.infer_attention_outputs(
        helper.make_node("Relu", ["x"], ["y"]), [(1,)], [1], None
    )
