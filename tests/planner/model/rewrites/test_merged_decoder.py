"""Decoders that hold themselves twice, with and without a past: where caches are kept, only the one with a past counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper

from edgepart.planner.errors import UsageError
from edgepart.planner.model.context_shapes import load_with_context
from edgepart.planner.model.load import check_shapes, load_graph, load_planned
from edgepart.planner.model.rewrites.merged_decoder import ALWAYS, CACHE_BRANCH, is_merged
from tests.planner.model.test_context_shapes import HEADS, SIZE, concatenating


def merged(total: str = "attention_mask_sequence_length") -> ModelProto:
    """As optimum 1 wrote it: the mask's dimension has another name than that of what is written, which is of no help."""
    model = onnx.load_from_string(concatenating())
    graph = model.graph
    outputs = [helper.make_tensor_value_info(one.name, TensorProto.FLOAT, None) for one in graph.output]
    branches = {"then_branch": helper.make_graph(list(graph.node), "with_past", [], outputs)}
    without = [
        helper.make_node("Identity", ["x"], ["y"]),
        helper.make_node("Identity", ["past_key_values.0.key"], ["present.0.key"]),
    ]
    branches["else_branch"] = helper.make_graph(without, "no_past", [], outputs)
    names = [one.name for one in graph.output]
    del graph.node[:]
    graph.node.append(helper.make_node("If", [CACHE_BRANCH], names, name="optimum::if", **branches))
    graph.input.append(helper.make_tensor_value_info(CACHE_BRANCH, TensorProto.BOOL, [1]))
    mask = next(one for one in graph.input if one.name == "attention_mask")
    mask.type.tensor_type.shape.dim[1].dim_param = total
    return model


@pytest.mark.parametrize("rows", [1, 3])
def test_with_a_context_it_is_the_decoder_that_it_has_for_a_past(rows: int) -> None:
    graph, bound = load_with_context(merged().SerializeToString(), {}, 16, rows)
    plain, plainly = load_with_context(concatenating(), {}, 16, rows)
    assert bound == {**plainly, **ALWAYS}
    assert [one.op_type for one in graph.operators] == [one.op_type for one in plain.operators]
    assert graph.states == plain.states and graph.inputs == plain.inputs
    assert graph.shape_of("past_key_values.0.key") == (1, HEADS, 16 - rows, SIZE)
    # Those who only have the deployment's shapes load the same.
    again = load_graph(merged().SerializeToString(), shapes=bound)
    assert again.operators == graph.operators
    # So do those who only have a plan, and cut its weights out of the file.
    planned = load_planned(merged().SerializeToString(), plainly)
    assert planned.operators == graph.operators and planned.constants.keys() == graph.constants.keys()


def test_a_device_that_computes_all_of_it_runs_the_branch_with_a_past() -> None:
    graph, _ = load_with_context(merged().SerializeToString(), {}, 16)
    assert graph.whole is not None and CACHE_BRANCH not in graph.whole.inputs
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((1, 1, HEADS * SIZE)).astype(np.float32),
        "attention_mask": np.ones((1, 16), np.int64),
        "past_key_values.0.key": rng.standard_normal((1, HEADS, 15, SIZE)).astype(np.float32),
    }
    expected, found = (
        ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(["y", "present.0.key"], feeds)
        for data in (concatenating(), graph.whole.model)
    )
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_a_context_requests_say_which_branch_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    onnx.save(merged(), file)
    graph = load_graph(file, shapes={"x": (1, 1, HEADS * SIZE)})
    assert CACHE_BRANCH in graph.inputs and [one.op_type for one in graph.operators] == ["If"]
    check_shapes(file, ALWAYS)


def test_an_input_of_that_name_that_decides_something_else_is_an_ordinary_one() -> None:
    model = merged()
    assert is_merged(model)
    model.graph.node.append(helper.make_node("Not", [CACHE_BRANCH], ["never"]))
    model.graph.output.append(helper.make_tensor_value_info("never", TensorProto.BOOL, [1]))
    assert not is_merged(model)
    with pytest.raises(UsageError, match="has 1 dimensions, and 0 were given"):
        load_graph(model.SerializeToString(), shapes=ALWAYS)
