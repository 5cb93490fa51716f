"""Decoders whose caches grow: what --context and the rows of a step make of their free dimensions, in both styles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgepart.planner.errors import ModelError, UsageError
from edgepart.planner.model.context_shapes import context_of_block, has_growing_states, load_with_context
from edgepart.planner.region import Array
from tests.planner.small_models import residual

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
Declared = Mapping[str, tuple[int, Sequence[int | str]]]
HEADS, SIZE = 2, 4


def decoder(
    nodes: Sequence[NodeProto], takes: Declared, gives: Declared, constants: Mapping[str, Array]
) -> bytes:
    def infos(values: Declared) -> list[Any]:
        return [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in values.items()]

    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(list(nodes), "decoder", infos(takes), infos(gives), held)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def concatenating(total: str = "past_sequence_length + sequence_length", named: str = "") -> bytes:
    """As optimum writes it: the past is put before the new rows, and the mask says which rows count. The size of a head may
    have a name, too."""
    past: list[int | str] = ["batch_size", HEADS, "past_sequence_length", named or SIZE]
    nodes = [
        helper.make_node("Reshape", ["x", "heads"], ["split"]),
        helper.make_node("Transpose", ["split"], ["new"], perm=[0, 2, 1, 3]),
        helper.make_node("Concat", ["past_key_values.0.key", "new"], ["present.0.key"], axis=2),
        helper.make_node("ReduceSum", ["present.0.key", "axes"], ["rows"], keepdims=0),
        helper.make_node("Cast", ["attention_mask"], ["counts"], to=FLOAT),
        helper.make_node("Mul", ["rows", "counts"], ["y"]),
    ]
    return decoder(
        nodes,
        {
            "x": (FLOAT, ["batch_size", "sequence_length", HEADS * SIZE]),
            "attention_mask": (INT, ["batch_size", total]),
            "past_key_values.0.key": (FLOAT, past),
        },
        {"y": (FLOAT, ["batch_size", total]), "present.0.key": (FLOAT, [*past[:2], total, named or SIZE])},
        {"heads": np.array([0, 0, HEADS, SIZE]), "axes": np.array([1, 3])},
    )


def buffered(size: int = SIZE, named: str = "") -> bytes:
    """As ONNX Runtime's builder writes it: the operator writes into the past. The size of a head may have a name, too."""
    past: list[int | str] = ["batch_size", HEADS, "past_sequence_length", named or size]
    present = [*past[:2], "total_sequence_length", named or size]
    nodes = [
        helper.make_node("ReduceSum", ["attention_mask", "one"], ["counted"], keepdims=0),
        helper.make_node("Sub", ["counted", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["seqlens_k"], to=TensorProto.INT32),
        helper.make_node("Shape", ["attention_mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["total"], axis=0),
        helper.make_node("Squeeze", ["total"], ["total_scalar"]),
        helper.make_node("Cast", ["total_scalar"], ["total_32"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention",
            ["x", "x", "x", "past_key_values.0.key", "past_key_values.0.value", "seqlens_k", "total_32"],
            ["y", "present.0.key", "present.0.value"],
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=HEADS,
        ),
    ]
    return decoder(
        nodes,
        {
            "x": (FLOAT, ["batch_size", "sequence_length", HEADS * size]),
            "attention_mask": (INT, ["batch_size", "total_sequence_length"]),
            "past_key_values.0.key": (FLOAT, past),
            "past_key_values.0.value": (FLOAT, past),
        },
        {
            "y": (FLOAT, ["batch_size", "sequence_length", HEADS * size]),
            "present.0.key": (FLOAT, present),
            "present.0.value": (FLOAT, present),
        },
        {"one": np.array([1])},
    )


@pytest.mark.parametrize(
    "total", ["past_sequence_length + sequence_length", "total_sequence_length", "past_sequence_length + 1"]
)
@pytest.mark.parametrize("rows", [1, 3])
def test_what_is_put_before_new_rows_is_shorter_by_them(total: str, rows: int) -> None:
    graph, _ = load_with_context(concatenating(total), {}, 16, rows)
    shapes = {name: graph.tensors[name].shape for name in graph.inputs}
    assert shapes == {
        "x": (1, rows, HEADS * SIZE),
        "attention_mask": (1, 16),
        "past_key_values.0.key": (1, HEADS, 16 - rows, SIZE),
    }
    assert graph.tensors["present.0.key"].shape == (1, HEADS, 16, SIZE)
    assert [(one.output, one.grows) for one in graph.states] == [("present.0.key", 2)]


def test_blocks_have_the_states_of_single_steps() -> None:
    for model, wide in ((concatenating(), 18), (buffered(), 16)):
        one = load_with_context(model, {}, 16)[0]
        assert context_of_block(one, 16, 3) == wide
        block = load_with_context(model, {}, wide, 3)[0]
        assert [one.shape_of(state.input) for state in one.states] == [
            block.shape_of(state.input) for state in block.states
        ]


def test_there_are_no_blocks_longer_than_the_context_and_none_without_states_that_grow() -> None:
    graph = load_with_context(concatenating(), {}, 16)[0]
    (state,) = graph.states
    assert context_of_block(graph, 16, 16) is None
    assert context_of_block(replace(graph, states=()), 16, 3) is None
    assert context_of_block(replace(graph, states=(state, replace(state, grows=None))), 16, 3) is None


@pytest.mark.parametrize("rows", [1, 3])
def test_a_buffer_is_as_long_as_the_context(rows: int) -> None:
    graph, _ = load_with_context(buffered(), {}, 16, rows)
    assert (
        graph.tensors["past_key_values.0.key"].shape
        == graph.tensors["present.0.key"].shape
        == (1, HEADS, 16, SIZE)
    )
    assert graph.tensors["x"].shape == (1, rows, HEADS * SIZE)
    assert [one.grows for one in graph.states] == [None, None]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_state_whose_head_has_a_named_size_has_the_size_that_is_written(rows: int) -> None:
    model = buffered(named="kv_cache_dim")
    graph, bound = load_with_context(model, {}, 16, rows)
    plain, plainly = load_with_context(buffered(), {}, 16, rows)
    assert has_growing_states(model) and bound == plainly and graph.states == plain.states and not graph.notes
    assert graph.shape_of("past_key_values.0.key") == (1, HEADS, 16, SIZE)


@pytest.mark.parametrize("rows", [1, 3])
def test_so_has_one_that_is_put_before_new_rows_and_fits_no_other_size(rows: int) -> None:
    graph, bound = load_with_context(concatenating(named="kv_cache_dim"), {}, 16, rows)
    plain, plainly = load_with_context(concatenating(), {}, 16, rows)
    assert bound == plainly and graph.states == plain.states
    assert graph.shape_of("past_key_values.0.key") == (1, HEADS, 16 - rows, SIZE)
    assert all(note.startswith("caches are copied at each step") for note in (*graph.notes, *plain.notes))


def test_a_model_that_fits_no_size_is_refused() -> None:
    model = onnx.load_from_string(concatenating(named="kv_cache_dim"))
    model.graph.node.append(helper.make_node("Add", ["x", "no_such_shape"], ["z"]))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(5, np.float32), "no_such_shape"))
    model.graph.output.append(helper.make_tensor_value_info("z", FLOAT, None))
    with pytest.raises(ModelError, match="the shapes of its inputs do not fit"):
        load_with_context(model.SerializeToString(), {}, 16)


def test_each_state_grows_along_its_own_axis_in_whatever_order_they_stand() -> None:
    nodes = [
        helper.make_node("Concat", ["past_0", "x"], ["present_0"], axis=1),
        helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Concat", ["past_1", "turned"], ["present_1"], axis=2),
    ]
    model = decoder(
        nodes,
        {
            "x": (FLOAT, ["batch", "rows", SIZE]),
            "past_0": (FLOAT, ["batch", "past", SIZE]),
            "past_1": (FLOAT, ["batch", SIZE, "past"]),
        },
        {"present_1": (FLOAT, ["batch", SIZE, "total"]), "present_0": (FLOAT, ["batch", "total", SIZE])},
        {},
    )
    graph, _ = load_with_context(model, {}, 16)
    assert {one.input: one.grows for one in graph.states} == {"past_0": 1, "past_1": 2}
    assert graph.tensors["past_1"].shape == (1, SIZE, 15)


def test_what_is_given_besides_is_kept() -> None:
    graph, _ = load_with_context(concatenating(), {"x": (1, 2, HEADS * SIZE)}, 16, 2)
    assert graph.tensors["x"].shape == (1, 2, HEADS * SIZE)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="no state of this model grows"):
        load_with_context(residual(rows=12, channels=4), {}, 16)
    with pytest.raises(UsageError, match="has to be at least 3"):
        load_with_context(concatenating(), {}, 2, 3)
    with pytest.raises(ModelError):
        load_with_context(concatenating(), {"attention_mask": (1, 5)}, 16)


def counting(positions: str) -> bytes:
    """A decoder that turns its rows by their positions: those that it is told, those that the mask says, or the number of
    rows in the past. All of them read a causal mask as well, whose values change with the length of the past."""
    past: list[int | str] = ["batch", "past", SIZE]
    nodes = [
        helper.make_node("Concat", ["past_0", "x"], ["present_0"], axis=1),
        helper.make_node("Shape", ["past_0"], ["past_shape"], start=1, end=2),
        helper.make_node("Shape", ["present_0"], ["present_shape"], start=1, end=2),
        helper.make_node("Squeeze", ["present_shape"], ["total"]),
        helper.make_node("Range", ["zero", "total", "one"], ["keys"]),
        helper.make_node("LessOrEqual", ["keys", "past_shape"], ["is_before"]),
        helper.make_node("Where", ["is_before", "nothing", "never"], ["bias"]),
        helper.make_node("Transpose", ["present_0"], ["columns"], perm=[0, 2, 1]),
        helper.make_node("ReduceSum", ["attention_mask", "one_axis"], ["counted"], keepdims=1),
        {
            "past": helper.make_node("Unsqueeze", ["past_shape", "zero_axis"], ["angle"]),
            "mask": helper.make_node("Sub", ["counted", "one"], ["angle"]),
            "told": helper.make_node("Identity", ["position_ids"], ["angle"]),
        }[positions],
        helper.make_node("Cast", ["angle"], ["angle_float"], to=FLOAT),
        helper.make_node("Cos", ["angle_float"], ["cosine"]),
        helper.make_node("Mul", ["x", "cosine"], ["turned"]),
        helper.make_node("MatMul", ["turned", "columns"], ["scores"]),
        helper.make_node("Add", ["scores", "bias"], ["y"]),
    ]
    takes: Declared = {
        "x": (FLOAT, ["batch", "rows", SIZE]),
        "attention_mask": (INT, ["batch", "total"]),
        "position_ids": (INT, ["batch", "rows"]),
        "past_0": (FLOAT, past),
    }
    if positions != "told":
        takes = {name: value for name, value in takes.items() if name != "position_ids"}
    constants: Mapping[str, Array] = {
        "zero": np.array(0),
        "one": np.array(1),
        "zero_axis": np.array([0]),
        "one_axis": np.array([1]),
        "nothing": np.array(0, np.float32),
        "never": np.array(-1e30, np.float32),
    }
    gives: Declared = {
        "y": (FLOAT, ["batch", "rows", "total"]),
        "present_0": (FLOAT, ["batch", "total", SIZE]),
    }
    return decoder(nodes, takes, gives, constants)


@pytest.mark.parametrize("positions", ["told", "mask"])
def test_positions_may_be_told_or_be_counted_in_the_mask(positions: str) -> None:
    graph, _ = load_with_context(counting(positions), {}, 16)
    assert [(one.input, one.grows) for one in graph.states] == [("past_0", 1)]


def test_positions_that_are_the_number_of_rows_in_the_past_are_refused() -> None:
    with pytest.raises(ModelError, match="number of rows in its past for the position") as refused:
        load_with_context(counting("past"), {}, 16)
    assert "position_ids" in str(refused.value) and "onnxruntime-genai" in str(refused.value)
    # Without a past, all rows are there.
    load_with_context(counting("past"), {}, 16, 16)
