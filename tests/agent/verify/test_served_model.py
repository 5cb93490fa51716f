"""What one session is given is what plans compute: where a rule changes a model, the changed one; else its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto

from edgepart.agent.verify.reference import load_served, shapes_of
from edgepart.agent.verify.served_model import served_model
from edgepart.planner.model.load import load_graph
from edgepart.planner.model.rewrites.masked_positions import COUNTED
from edgepart.planner.model.rewrites.merged_decoder import CACHE_BRANCH
from tests.planner.model.rewrites.test_merged_decoder import merged
from tests.planner.model.test_context_shapes import HEADS, SIZE, concatenating
from tests.processes.tiny_language import optimum_decoder

STEP = {
    "x": np.arange(HEADS * SIZE, dtype=np.float32).reshape(1, 1, -1),
    "attention_mask": np.ones((1, 3), np.int64),
    "past_key_values.0.key": np.ones((1, HEADS, 2, SIZE), np.float32),
}


def saved(model: ModelProto, folder: Path) -> Path:
    """With large weights beside it."""
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=256)
    return path


def test_a_model_that_no_rule_changes_is_its_file(tmp_path: Path) -> None:
    path = saved(onnx.load_from_string(concatenating()), tmp_path)
    assert served_model(path, load_graph(path).inputs) is path


def test_a_merged_decoder_is_the_branch_with_a_past_unless_requests_decide(tmp_path: Path) -> None:
    path = saved(merged(), tmp_path)
    assert served_model(path, [*STEP, CACHE_BRANCH]) is path
    session = load_served(path, shapes_of(STEP))
    assert CACHE_BRANCH not in session.input_names
    found = session.run([STEP[name] for name in session.input_names])
    plain = load_served(concatenating(), shapes_of(STEP))
    for one, other in zip(found, plain.run([STEP[name] for name in plain.input_names]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_decoder_that_counts_its_rows_is_the_one_that_counts_in_the_mask(tmp_path: Path) -> None:
    model = optimum_decoder(counts=True)
    names = [one.name for one in model.graph.input]
    path = saved(model, tmp_path)
    served = served_model(path, names)
    assert isinstance(served, bytes)
    assert any(node.name.startswith(COUNTED) for node in ModelProto.FromString(served).graph.node)
    assert set(load_served(path, dict.fromkeys(names, ())).input_names) == set(names)
