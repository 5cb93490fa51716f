"""Decoders that put their past before new rows: when they write it in place, they say what they said, and their states hold
what they held; where that is not sure, they stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from edgepart.planner.errors import NotInPlace
from edgepart.planner.model.context_shapes import context_of_block, load_with_context
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph, load_planned
from edgepart.planner.model.rewrites.in_place import write_in_place
from edgepart.planner.model.rewrites.merged_decoder import CACHE_BRANCH
from edgepart.planner.model.rewrites.past_before_rows import find_growing
from edgepart.planner.model.rewrites.row_order import ROWS
from edgepart.planner.model.states import find_states
from edgepart.planner.plans.plan import IN_PLACE_ROWS
from edgepart.planner.region import Array
from tests.planner.model.rewrites.decoders import RIGHT, WRONG, made
from tests.planner.model.test_context_shapes import buffered
from tests.processes.tiny_language import VOCABULARY, kept_apart, optimum_decoder

CONTEXT, BLOCK, BATCH = 16, 5, 3
KINDS = [*RIGHT, "counting"]


@cache
def model_of(kind: str) -> bytes:
    found = made(RIGHT["plain"], counts=True) if kind == "counting" else made(RIGHT[kind])
    return bytes(found.SerializeToString())


@cache
def loaded(kind: str, rows: int, batch: int) -> Graph:
    return load_with_context(model_of(kind), {}, CONTEXT, rows, batch)[0]


def session_of(data: bytes) -> ort.InferenceSession:
    return ort.InferenceSession(data, providers=["CPUExecutionProvider"])


@cache
def as_exported(kind: str) -> ort.InferenceSession:
    return session_of(model_of(kind))


@cache
def in_place(kind: str) -> ort.InferenceSession:
    graph = loaded(kind, 1, 1)
    assert graph.whole is not None
    held = {one.name: numpy_helper.from_array(one.load(), one.name) for one in graph.whole.weights}
    model = onnx.ModelProto.FromString(graph.whole.model)
    for one in model.graph.initializer:
        if one.name in held:
            one.CopyFrom(held[one.name])
    return session_of(model.SerializeToString())


def run(session: ort.InferenceSession, feeds: Mapping[str, Array]) -> dict[str, Array]:
    names = [one.name for one in session.get_outputs()]
    read = {one.name for one in session.get_inputs()}
    found = session.run(names, {name: value for name, value in feeds.items() if name in read})
    return dict(zip(names, found, strict=True))


def buffers_of(graph: Graph, random: np.random.Generator) -> dict[str, Array]:
    """States with any values in all rows, those that do not count too, as float16 holds them."""
    shapes = {one.input: graph.shape_of(one.input) or () for one in graph.states}
    drawn = {name: random.normal(size=shape) * 3 for name, shape in shapes.items()}
    return {name: value.astype(np.float16).astype(np.float32) for name, value in drawn.items()}


def step(tokens: Array, before: Sequence[int]) -> dict[str, Array]:
    """The inputs of a step of a model that writes in place; `before` are the rows of each sequence."""
    rows, columns = tokens.shape[1], np.arange(CONTEXT)
    return {
        "input_ids": tokens,
        "attention_mask": np.stack([(columns < count + rows).astype(np.int64) for count in before]),
        "position_ids": np.stack([np.arange(count, count + rows) for count in before]),
    }


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None, database=None)
@given(
    seed=st.integers(0, 999),
    rows=st.sampled_from([1, 2, BLOCK]),
    sizes=st.lists(st.integers(0, CONTEXT), min_size=1, max_size=BATCH),
)
def test_it_says_what_it_said_and_keeps_what_it_kept(
    kind: str, seed: int, rows: int, sizes: list[int]
) -> None:
    random, before = np.random.default_rng(seed), [min(size, CONTEXT - rows) for size in sizes]
    graph = loaded(kind, rows, len(before))
    assert all(one.in_place for one in graph.states)
    tokens = random.integers(3, VOCABULARY, (len(before), rows))
    buffers = buffers_of(graph, random)
    found = run(in_place(kind), {**step(tokens, before), **buffers})
    for place, count in enumerate(before):
        alone = {
            "input_ids": tokens[place : place + 1],
            "attention_mask": np.ones((1, count + rows), np.int64),
            "position_ids": np.arange(count, count + rows)[None],
        }
        pasts = {name: value[place : place + 1, :, :count] for name, value in buffers.items()}
        expected = run(as_exported(kind), {**alone, **pasts})
        allowed = 2e-2 if kind == "in halves" else 1e-4
        np.testing.assert_allclose(
            found["logits"][place], expected["logits"][0], atol=allowed * np.abs(expected["logits"]).max()
        )
        for state in graph.states:
            kept = buffers[state.input][place].copy()
            kept[:, count : count + rows] = expected[state.output][0, :, count:]
            np.testing.assert_allclose(found[state.output][place], kept, atol=allowed * 10)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_blocks_and_batches_are_of_one_model_and_have_the_same_states(kind: str) -> None:
    graphs = [loaded(kind, 1, 1), loaded(kind, BLOCK, 1), loaded(kind, 1, BATCH)]
    assert len({graph.whole.model for graph in graphs if graph.whole is not None}) == 1
    assert len({graph.states for graph in graphs}) == 1
    assert context_of_block(graphs[0], CONTEXT, BLOCK) == CONTEXT
    shapes = [graph.shape_of("past_key_values.0.key") for graph in graphs]
    assert [shape[2] for shape in shapes if shape is not None] == [CONTEXT] * 3


@pytest.mark.parametrize("kind", ["plain", "counting"])
def test_the_graph_of_a_plan_is_loaded_again_by_its_shapes(kind: str) -> None:
    graph = loaded(kind, 1, 1)
    bound = {name: graph.shape_of(name) or () for name in graph.inputs}
    again = find_states(load_planned(model_of(kind), bound))
    assert again.operators == graph.operators and again.states == graph.states


def test_the_operator_writes_over_its_input() -> None:
    session, graph = in_place("plain"), loaded("plain", 1, 1)
    buffers = buffers_of(graph, np.random.default_rng(1))
    feeds = {**step(np.array([[7]]), [4]), **buffers}
    expected, binding = run(session, feeds), session.io_binding()
    held = {name: ort.OrtValue.ortvalue_from_numpy(value.copy()) for name, value in buffers.items()}
    for one in session.get_inputs():
        if one.name in held:
            binding.bind_ortvalue_input(one.name, held[one.name])
        else:
            binding.bind_cpu_input(one.name, feeds[one.name])
    for state in graph.states:
        binding.bind_ortvalue_output(state.output, held[state.input])
    binding.bind_output("logits")
    for _ in range(2):  # A step that is made again leaves the same.
        session.run_with_iobinding(binding)
        for state in graph.states:
            np.testing.assert_array_equal(held[state.input].numpy(), expected[state.output])
    np.testing.assert_array_equal(binding.get_outputs()[-1].numpy(), expected["logits"])


def test_nothing_else_reads_a_past_and_no_rows_are_joined() -> None:
    graph = loaded("plain", 1, 1)
    for state in graph.states:
        (reader,) = graph.consumers[state.input]
        assert reader.op_type == "ScatterElements" and reader is graph.producers[state.output]


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("rows", [1, BLOCK])
def test_where_it_may_be_wrong_the_past_is_put_before_new_rows_as_it_was(kind: str, rows: int) -> None:
    change, why = WRONG[kind]
    graph, _ = load_with_context(made(change).SerializeToString(), {}, CONTEXT, rows)
    assert all(one.grows == 2 and not one.in_place for one in graph.states)
    assert graph.shape_of("past_key_values.0.key") == (1, 2, CONTEXT - rows, 16)
    (note,) = [note for note in graph.notes if note.startswith("caches are copied at each step")]
    assert why in note


def test_other_shapes_and_other_models_are_left_as_they_are() -> None:
    data = optimum_decoder().SerializeToString()
    # A block that fills the context has no past, and a past that the user binds is as long as that says.
    assert load_with_context(data, {}, CONTEXT, CONTEXT)[0].shape_of("past_key_values.0.key") == (1, 2, 0, 16)
    apart, _ = load_with_context(kept_apart(optimum_decoder()).SerializeToString(), {}, CONTEXT)
    assert not apart.in_place and any("how it puts them" in note for note in apart.notes)
    graph = load_graph(data)
    assert not any(one.op_type == "ScatterElements" for one in graph.operators)
    builders, _ = load_with_context(buffered(), {}, CONTEXT)
    assert not any(one.op_type == "ScatterElements" for one in builders.operators)


def test_an_older_operator_set_is_refused_with_the_reason() -> None:
    model = optimum_decoder()
    shapes: dict[str, tuple[int, ...]] = {"input_ids": (1, 1), "attention_mask": (1, CONTEXT)}
    pasts = [one.name for one in model.graph.input if one.name.startswith("past")]
    growing = find_growing(model, {**shapes, **dict.fromkeys(pasts, (1, 2, CONTEXT, 16))})
    assert growing is not None and growing.rows == 1 and [one.past for one in growing.states] == pasts
    model.opset_import[0].version = 12
    with pytest.raises(NotInPlace, match="older than 13"):
        write_in_place(model, loaded("plain", 1, 1), growing)


def test_a_merged_decoder_is_the_branch_with_a_past() -> None:
    model = optimum_decoder()
    graph, own = model.graph, list(model.graph.node)
    outputs = [onnx.helper.make_empty_tensor_value_info(one.name) for one in graph.output]
    branches = {f"{name}_branch": onnx.helper.make_graph(own, name, [], outputs) for name in ("then", "else")}
    names = [one.name for one in graph.output]
    del graph.node[:]
    graph.node.append(onnx.helper.make_node("If", [CACHE_BRANCH], names, name="optimum::if", **branches))
    graph.input.append(onnx.helper.make_tensor_value_info(CACHE_BRANCH, onnx.TensorProto.BOOL, [1]))
    data = model.SerializeToString()
    found, bound = load_with_context(data, {}, CONTEXT)
    assert found.states == loaded("plain", 1, 1).states and bound[CACHE_BRANCH] == ()
    assert [one.op_type for one in found.operators] == [
        one.op_type for one in loaded("plain", 1, 1).operators
    ]
    planned = load_planned(data, {name: found.shape_of(name) or () for name in found.inputs})
    assert planned.operators == found.operators
    assert found.whole is not None and CACHE_BRANCH not in found.whole.inputs


def test_an_operator_that_scatters_of_itself_does_not_write_in_place() -> None:
    names = ["past_key_values.0.key", "indices", "new"]
    scatter = onnx.helper.make_node("ScatterElements", names, ["present.0.key"], axis=2)
    values: dict[str, tuple[int, tuple[int, ...]]] = {
        **dict.fromkeys((names[0], "present.0.key"), (1, (1, 2, 8, 4))),
        "indices": (7, (1, 2, 1, 4)),
        "new": (1, (1, 2, 1, 4)),
    }
    infos = {name: onnx.helper.make_tensor_value_info(name, *of) for name, of in values.items()}
    graph = onnx.helper.make_graph(
        [scatter], "own", [infos[name] for name in names], [infos["present.0.key"]]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    (state,) = find_states(load_graph(model.SerializeToString())).states
    assert not state.in_place


def test_rows_are_where_plans_have_them() -> None:
    assert ROWS == IN_PLACE_ROWS
