"""How far answers are off, and on which inputs that is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgepart.agent.quantise.comparing import (
    answer_as_it_was,
    choose_samples,
    compare_with,
    error_of,
)
from edgepart.agent.quantise.samples import MADE_UP, MOST_TOKENS, same_tokens
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import ModelError
from tests.agent.quantise.models import SIDE, matrix, mixed, model_of, saved
from tests.planner.model.rewrites.test_merged_decoder import merged


@pytest.mark.parametrize(
    ("got", "expected", "error"),
    [
        ([1.0, -3.0], [1.0, -4.0], 0.25),
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, np.nan], [1.0, -4.0], 1.0),
        ([1.0], [1.0, -4.0], 1.0),
        ([1, 2, 3, 5], [1, 2, 3, 4], 0.25),
        ([1, 2], [1, 2, 3], 1.0),
        ([True, False], [True, False], 0.0),
        (np.array(["a", "b"], dtype=object), np.array(["a", "c"], dtype=object), 0.5),
        ([{"a": 0.5, "b": 0.25}], [{"a": 0.5, "b": 0.5}], 0.5),
        (np.zeros((0,), np.int64), np.zeros((0,), np.int64), 0.0),
        (np.zeros((0,), np.int64), np.zeros((1,), np.int64), 1.0),
    ],
)
def test_error(got: Any, expected: Any, error: float) -> None:
    nested = isinstance(expected, list) and isinstance(expected[0], dict)
    one, other = (value if nested else np.asarray(value) for value in (got, expected))
    exact = np.ones(3)
    assert error_of({"y": one, "z": exact, "more": exact}, {"y": other, "z": exact}) == error


def test_same_tokens() -> None:
    mine, theirs = np.array([[[0.0, 1.0], [3.0, 2.0]]]), np.array([[[0.5, 0.6], [1.0, 2.0]]])
    assert same_tokens(mine, theirs) == 0.5


def test_made_up_inputs_look_up_all_rows_of_a_table(tmp_path: Path) -> None:
    path = saved(mixed(), tmp_path / "m.onnx")
    samples = choose_samples(path, None, DeployOptions(shapes={"ids": (50,)}), None)
    assert (len(samples.steps), samples.about) == (MADE_UP, "4 made-up inputs")
    drawn = np.concatenate([step["ids"] for step in samples.steps])
    assert drawn.shape == (200,) and 150 < drawn.max() < 200 and drawn.min() >= 0
    assert not np.array_equal(samples.steps[0]["ids"], samples.steps[1]["ids"])


def test_pictures_and_noise_are_both_tried(tmp_path: Path) -> None:
    path = saved(
        model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": matrix()}), tmp_path / "m.onnx"
    )
    samples = choose_samples(path, None, DeployOptions(shapes={"x": (8, SIDE)}), None)
    assert [step["x"].min() < 0 for step in samples.steps] == [False, True, False, True]


def test_the_users_inputs_have_to_be_all(tmp_path: Path) -> None:
    path = saved(mixed(), tmp_path / "m.onnx")
    given = tmp_path / "given.npz"
    np.savez(given, ids=np.array([7]))
    samples = choose_samples(path, None, DeployOptions(), given)
    assert samples.about == "the input that was given" and samples.steps[0]["ids"].tolist() == [7]
    np.savez(given, other=np.array([7]))
    with pytest.raises(ModelError, match=r"--input: the model also has the inputs \['ids'\]"):
        choose_samples(path, None, DeployOptions(), given)


def test_random_outputs_and_states_are_not_compared(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("RandomNormalLike", ["x"], ["noise"]),
        helper.make_node("Add", ["h", "x"], ["hn"]),
    ]
    model = model_of(nodes, {"w": matrix()})
    h, noise, hn = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", SIDE]) for name in ("h", "noise", "hn")
    )
    model.graph.input.append(h)
    model.graph.output.extend([noise, hn])
    path = saved(model, tmp_path / "m.onnx")
    options = DeployOptions(shapes={"x": (2, SIDE), "h": (2, SIDE)})
    told = answer_as_it_was(path, None, options, None, tmp_path)
    assert compare_with(path, told, tmp_path).error == 0.0
    other = onnx.load(path)
    other.graph.node[2].input[1] = "h"  # The state alone is another one.
    assert compare_with(saved(other, tmp_path / "other.onnx"), told, tmp_path).error == 0.0
    other.graph.node[0].input[0] = "h"
    off = compare_with(saved(other, tmp_path / "off.onnx"), told, tmp_path)
    assert (off.error, off.inputs, off.same_tokens) == (1.0, "4 made-up inputs", None)


def decoder() -> onnx.ModelProto:
    """The least that counts as a language model: a cache of what it read, put before what it reads."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Unsqueeze", ["rows", "one"], ["keys"]),
        helper.make_node("Concat", ["past_key_values.0.key", "keys"], ["present.0.key"], axis=2),
        helper.make_node("MatMul", ["rows", "head"], ["logits"]),
    ]
    model = model_of(nodes, {"table": matrix(300), "head": matrix(SIDE, 300), "one": np.array([1])})
    graph, cache = model.graph, list[str | int | None]([1, 1, "past", SIDE])
    graph.input.append(helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "rows"]))
    graph.input.append(helper.make_tensor_value_info("past_key_values.0.key", TensorProto.FLOAT, cache))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "rows", 300]))
    grown = list[str | int | None]([1, 1, "past + rows", SIDE])
    graph.output.append(helper.make_tensor_value_info("present.0.key", TensorProto.FLOAT, grown))
    return model


def test_a_language_model_reads_a_text_at_once(tmp_path: Path) -> None:
    path = saved(decoder(), tmp_path / "m.onnx")
    samples = choose_samples(path, None, DeployOptions(), None)
    assert samples.logits == "logits" and samples.compared == ("logits",)
    (step,) = samples.steps
    assert step["input_ids"].shape == (1, MOST_TOKENS) and step["input_ids"].max() > 200
    assert step["past_key_values.0.key"].shape == (1, 1, 0, SIDE)
    assert samples.about == "96 made-up tokens"
    found = compare_with(path, answer_as_it_was(path, None, DeployOptions(), None, tmp_path), tmp_path)
    assert (found.error, found.same_tokens) == (0.0, 1.0)


def test_without_a_tokenizer_package_tokens_are_made_up_and_the_user_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    path = saved(decoder(), tmp_path / "m.onnx")
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    samples = choose_samples(path, tmp_path / "tokenizer.json", DeployOptions(), None)
    assert samples.about.startswith("96 made-up tokens (a text needs the package tokenizers")


def test_a_merged_decoder_is_compared_as_it_is_served_with_its_caches(tmp_path: Path) -> None:
    path = saved(merged(), tmp_path / "m.onnx")
    told = answer_as_it_was(path, None, DeployOptions(context=16), None, tmp_path)
    assert told["steps"] == MADE_UP
    assert compare_with(path, told, tmp_path).error == 0
