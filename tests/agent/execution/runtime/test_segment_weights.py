"""Segment weights: from files and arrays, of types that numpy lacks, and those that are refused."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from edgepart.agent.execution.runtime.sessions import Sessions
from edgepart.planner.errors import InternalError
from edgepart.planner.plans.plan import WeightRef
from edgepart.planner.region import Region
from tests.agent import handmade
from tests.agent.execution.runtime.one_segment import ports, prepared_run


def test_weights_that_are_files_give_the_same_answer(tmp_path: Path) -> None:
    """From two folders, one of them behind a link, as the store has them."""

    def as_file(ref: WeightRef) -> Path:
        folder = tmp_path / "store" / ref.digest[:2]
        folder.mkdir(parents=True, exist_ok=True)
        (tmp_path / "store" / "elsewhere").mkdir(exist_ok=True)
        (folder / ref.digest).unlink(missing_ok=True)
        (tmp_path / "store" / "elsewhere" / ref.name).write_bytes(handmade.read_weight(ref).tobytes())
        (folder / ref.digest).symlink_to(tmp_path / "store" / "elsewhere" / ref.name)
        return folder / ref.digest

    program = handmade.split_plan().programs["a"]
    x = handmade.request_input(3)
    answers = []
    for weights in (handmade.read_weight, as_file):
        prepared = Sessions(1, weights).prepare(program)
        answers.append(prepared.run(0, [x[:, :, :5]])[0])
    np.testing.assert_array_equal(*answers)


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(bytes(12))
    sessions = Sessions(1, lambda ref: tmp_path / "w")
    with pytest.raises(InternalError, match=r"w1 .* has 12 bytes in the store and 144 in the plan"):
        sessions.prepare(handmade.split_plan().programs["a"])
    assert sessions.held == (0, 0)


def test_a_weight_of_another_size_is_refused() -> None:
    sessions = Sessions(1, lambda ref: np.zeros(3, np.float32))
    with pytest.raises(InternalError, match=r"w1 .* has 12 bytes in the store and 144 in the plan"):
        sessions.prepare(handmade.split_plan().programs["a"])
    assert sessions.held == (0, 0)


def test_bfloat16_weights_are_shared() -> None:
    array = np.array([1, 2, 3, 4], ml_dtypes.bfloat16)
    nodes = [
        helper.make_node("Cast", ["w"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "wide"], ["y"]),
    ]
    made = handmade.segment(nodes, ports("x"), ports("y"), [handmade.weight_ref("w", array, "bfloat16")])
    (y,) = prepared_run(made, [np.zeros(4, np.float32)], {"w": array})
    assert y.tolist() == [1, 2, 3, 4]


def test_weights_of_equal_bytes_keep_their_own_shapes() -> None:
    """Zeros, mostly: one blob, several weights."""
    weights = {"w": np.zeros((4, 2), np.float32), "v": np.zeros((2, 4), np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("MatMul", ["t", "v"], ["y"])]
    refs = [handmade.weight_ref(name, array) for name, array in weights.items()]
    assert refs[0].digest == refs[1].digest
    (y,) = prepared_run(
        handmade.segment(nodes, ports("x"), ports("y"), refs), [np.ones(4, np.float32)], weights
    )
    assert y.tolist() == [0, 0, 0, 0]


def test_sub_byte_weights_have_to_be_inside_the_segment() -> None:
    ref = WeightRef("w", "d" * 64, "w", Region.full((4,)), "uint4", (4,), 2)
    made = handmade.segment([helper.make_node("Identity", ["x"], ["y"])], ports("x"), ports("y"), [ref])
    with pytest.raises(InternalError, match="w is of uint4, which has to be inside its segment"):
        prepared_run(made, [np.zeros(4, np.float32)], {"w": np.array([0x21, 0x43], np.uint8)})
