"""Decoders that count their positions by the rows of their past: with the rule, a past that is padded on the left, and
masked there, changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.model.context_shapes import load_with_context
from edgepart.planner.model.model_file import read_model
from edgepart.planner.model.rewrites.masked_positions import COUNTED, count_positions_in_mask
from edgepart.planner.region import Array
from tests.processes.tiny_language import KV_HEADS, OPTIMUM, SIZE, VOCABULARY, optimum_decoder

PASTS = [f"past_key_values.{layer}.{kind}" for layer in range(OPTIMUM.layers) for kind in ("key", "value")]


def changed() -> onnx.ModelProto:
    return count_positions_in_mask(optimum_decoder(counts=True))


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


WITH_THE_RULE, AS_EXPORTED = session(changed()), session(optimum_decoder(counts=True))


def drawn(seed: int, batch: int, past: int, rows: int) -> dict[str, Array]:
    """The inputs of a step whose past has no padding."""
    random = np.random.default_rng(seed)
    feeds: dict[str, Array] = {
        name: random.normal(size=(batch, KV_HEADS, past, SIZE)).astype(np.float32) for name in PASTS
    }
    feeds["input_ids"] = random.integers(3, VOCABULARY, (batch, rows))
    feeds["attention_mask"] = np.ones((batch, past + rows), np.int64)
    return feeds


def padded(feeds: Mapping[str, Array], count: int) -> dict[str, Array]:
    """The same with rows on the left that mean nothing, and that the mask leaves out."""
    found = {}
    for name, value in feeds.items():
        width = [(0, 0)] * value.ndim
        if name != "input_ids":
            width[2 if name in PASTS else 1] = (count, 0)
        found[name] = np.pad(value, width, constant_values=0 if name == "attention_mask" else 7)
    return found


def logits(runs: ort.InferenceSession, feeds: Mapping[str, Array]) -> Array:
    found: Array = runs.run(["logits"], dict(feeds))[0]
    return found


steps = st.tuples(st.integers(0, 99), st.integers(1, 2), st.integers(0, 6), st.integers(1, 4))


@given(step=steps)
def test_without_padding_nothing_changes(step: tuple[int, int, int, int]) -> None:
    feeds = drawn(*step)
    assert np.array_equal(logits(WITH_THE_RULE, feeds), logits(AS_EXPORTED, feeds))


@given(step=steps, count=st.integers(1, 9))
def test_rows_that_the_mask_leaves_out_count_for_no_position(
    step: tuple[int, int, int, int], count: int
) -> None:
    feeds = drawn(*step)
    found, expected = logits(WITH_THE_RULE, padded(feeds, count)), logits(AS_EXPORTED, feeds)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-3)


def test_as_it_is_exported_a_padded_past_gives_another_answer() -> None:
    feeds = drawn(0, 1, 5, 1)
    assert np.abs(logits(AS_EXPORTED, padded(feeds, 9)) - logits(AS_EXPORTED, feeds)).max() > 0.1


def test_sequences_of_a_batch_have_paddings_of_their_own() -> None:
    short, long = drawn(1, 1, 2, 1), drawn(2, 1, 7, 1)
    both = {
        name: np.concatenate([padded(short, 5)[name], long[name]])
        for name in (*PASTS, "input_ids", "attention_mask")
    }
    found = logits(WITH_THE_RULE, both)
    for number, alone in enumerate((short, long)):
        assert found[number] == pytest.approx(logits(AS_EXPORTED, alone)[0], rel=1e-4, abs=1e-3)


def test_a_decoder_that_is_told_its_positions_is_left_as_it_is() -> None:
    assert count_positions_in_mask(optimum_decoder()) == optimum_decoder()


def test_relative_positions_are_right_with_padding_and_are_left_as_they_are() -> None:
    model = optimum_decoder(counts=True)
    for node in model.graph.node:
        if node.op_type == "Range" and node.output[0] == "rotated.rows":
            node.input[0] = (
                "first"  # From the first row of the past on: how far each is away, not where a token is.
            )
    whole = onnx.ModelProto.FromString(model.SerializeToString())
    assert count_positions_in_mask(model) == whole


def test_an_operator_set_that_has_no_such_operators_is_left_as_it_is() -> None:
    model = optimum_decoder(counts=True)
    model.opset_import[0].version = 12
    whole = onnx.ModelProto.FromString(model.SerializeToString())
    assert count_positions_in_mask(model) == whole


def test_the_rule_is_applied_to_a_model_once() -> None:
    assert count_positions_in_mask(changed()) == changed()


@pytest.mark.parametrize("rows", [1, 8])
def test_a_step_of_a_bound_context_depends_on_the_mask(rows: int) -> None:
    data = optimum_decoder(counts=True).SerializeToString()
    assert any(node.name.startswith(COUNTED) for node in read_model(data).graph.node)
    graph, _ = load_with_context(data, {}, 32, rows)
    assert all(one.in_place for one in graph.states) and len(graph.states) == len(PASTS)
    # The operators of the two layers stay apart.
    added = [number for number, one in enumerate(graph.operators) if one.name.startswith(COUNTED)]
    (first,) = [number for number, one in enumerate(graph.operators) if one.name == "cosine.rows/Cos"]
    assert added and max(added) < first
    assert any("count for no position" in note for note in graph.notes)
