"""The referee: one session's answers from a process of its own, whatever the model does to that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgepart.agent.storage.store import Store
from edgepart.agent.verify import reference_process
from edgepart.agent.verify.reference_process import ReferenceProcess
from edgepart.planner.errors import RequestError, Unavailable
from edgepart.planner.model.model_file import model_files
from edgepart.planner.plans.plan import KeptState, ValueInfo
from tests.agent.host.children import running
from tests.planner.model.rewrites.test_merged_decoder import merged
from tests.planner.model.test_context_shapes import HEADS, SIZE

ROOM_BYTES = 1 << 32
BOUND_S = 60.0


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[ReferenceProcess, Store]]:
    store = Store(tmp_path / "store")
    made = ReferenceProcess(store.root)
    yield made, store
    made.stop()


def stored(store: Store, folder: Path, *nodes: onnx.NodeProto, kind: int = TensorProto.FLOAT) -> str:
    """The digest of a model from x [n] to y."""
    ends = [helper.make_tensor_value_info(name, kind, ["n"]) for name in ("x", "y")]
    graph = helper.make_graph(list(nodes), "g", ends[:1], ends[1:])
    path = folder / "model.onnx"
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return store.put_model(model_files(path))


def test_it_says_what_the_model_answers_in_any_shape(
    asked: tuple[ReferenceProcess, Store], tmp_path: Path
) -> None:
    judge, store = asked
    model = stored(store, tmp_path, helper.make_node("Neg", ["x"], ["y"]))
    for count in (3, 5):
        x = np.arange(count, dtype=np.float32)
        assert judge.answer(model, [{"x": x}], ROOM_BYTES, BOUND_S)["y"].tolist() == (-x).tolist()


def test_outputs_that_are_random_are_left_out(asked: tuple[ReferenceProcess, Store], tmp_path: Path) -> None:
    judge, store = asked
    model = stored(store, tmp_path, helper.make_node("RandomNormalLike", ["x"], ["y"]))
    assert judge.answer(model, [{"x": np.ones(8, np.float32)}], ROOM_BYTES, BOUND_S) == {}


def test_a_merged_decoder_answers_with_the_branch_that_has_a_past(
    asked: tuple[ReferenceProcess, Store], tmp_path: Path
) -> None:
    judge, store = asked
    onnx.save_model(merged(), tmp_path / "model.onnx")
    model = store.put_model(model_files(tmp_path / "model.onnx"))
    state = KeptState(
        ValueInfo("past_key_values.0.key", "float", (1, HEADS, 2, SIZE)), "present.0.key", grows=2
    )
    x = np.ones((1, 1, HEADS * SIZE), np.float32)
    steps = [{"x": x, "attention_mask": np.ones((1, 3), np.int64)}] * 2
    answer = judge.answer(model, steps, ROOM_BYTES, BOUND_S, [state])
    assert answer["y"].tolist() == [[0.0, HEADS * SIZE, HEADS * SIZE]]


def test_what_the_model_does_not_take_is_said(asked: tuple[ReferenceProcess, Store], tmp_path: Path) -> None:
    judge, store = asked
    model = stored(store, tmp_path, helper.make_node("Neg", ["x"], ["y"]))
    with pytest.raises(RequestError, match="could not run"):
        judge.answer(model, [{"x": np.ones((2, 2), np.float32)}], ROOM_BYTES, BOUND_S)
    with pytest.raises(RequestError):
        judge.answer("0" * 64, [{"x": np.ones(2, np.float32)}], ROOM_BYTES, BOUND_S)


def test_a_model_that_ends_its_process_ends_only_that(
    asked: tuple[ReferenceProcess, Store], tmp_path: Path
) -> None:
    judge, store = asked
    fine = stored(store, tmp_path, helper.make_node("Neg", ["x"], ["y"]))
    one = helper.make_node("Constant", [], ["by"], value_ints=[-1])
    divide = helper.make_node("Div", ["x", "by"], ["y"])
    deadly = stored(store, tmp_path, one, divide, kind=TensorProto.INT64)
    with pytest.raises(RequestError, match="ended the process"):
        judge.answer(deadly, [{"x": np.array([np.iinfo(np.int64).min])}], ROOM_BYTES, BOUND_S)
    assert judge.answer(fine, [{"x": np.ones(1, np.float32)}], ROOM_BYTES, BOUND_S)["y"].tolist() == [-1.0]


def test_it_takes_no_longer_and_no_more_than_it_is_given(
    asked: tuple[ReferenceProcess, Store], tmp_path: Path
) -> None:
    judge, store = asked
    model = stored(store, tmp_path, helper.make_node("Neg", ["x"], ["y"]))
    with pytest.raises(Unavailable, match="took longer"):
        judge.answer(model, [{"x": np.ones(2, np.float32)}], ROOM_BYTES, 0.0)
    with pytest.raises(RequestError):
        judge.answer(model, [{"x": np.ones(1 << 26, np.float32)}], 100_000_000, BOUND_S)
    assert judge.answer(model, [{"x": np.ones(1, np.float32)}], ROOM_BYTES, BOUND_S)["y"].tolist() == [-1.0]


def test_it_ends_when_nothing_is_asked_and_when_it_is_told_to(
    asked: tuple[ReferenceProcess, Store], tmp_path: Path
) -> None:
    _, store = asked
    judge = ReferenceProcess(store.root, idle_s=0.5)
    model = stored(store, tmp_path, helper.make_node("Neg", ["x"], ["y"]))
    for _ in range(2):  # that it ended by itself is nobody's fault
        assert judge.answer(model, [{"x": np.ones(1, np.float32)}], ROOM_BYTES, BOUND_S)
        assert running("edgepart-reference") and judge._process is not None
        judge._process.join(BOUND_S)
        assert not running("edgepart-reference")
    judge.answer(model, [{"x": np.ones(1, np.float32)}], ROOM_BYTES, BOUND_S)
    judge.stop()
    assert not running("edgepart-reference")
    with pytest.raises(Unavailable, match="stops"):
        judge.answer(model, [{"x": np.ones(1, np.float32)}], ROOM_BYTES, BOUND_S)
    assert reference_process.IDLE_S < BOUND_S
