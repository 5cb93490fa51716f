"""Sessions: sharing, letting go, types that numpy lacks, and what ONNX Runtime refuses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from edgepart.agent.execution.sessions import PreparedProgram, Sessions
from edgepart.planner.errors import InternalError, RequestError
from edgepart.planner.plans.plan import Piece, Port, Program, Segment, WeightRef
from edgepart.planner.region import Array, Region
from tests.agent import handmade


class Store:
    """Counts how often each weight is read."""

    def __init__(self) -> None:
        self.reads: list[str] = []

    def __call__(self, ref: WeightRef) -> Array:
        self.reads.append(ref.name)
        array = handmade.read_weight(ref)
        array.flags.writeable = False
        return array


def test_equal_segments_and_weights_are_held_once_and_let_go_with_the_last_program() -> None:
    store = Store()
    sessions = Sessions(1, store)
    plan = handmade.split_plan()
    first = sessions.prepare(plan.programs["a"])
    assert sessions.held == (2, 2)
    second = sessions.prepare(plan.programs["a"])
    assert [one.session for one in first.loaded] == [one.session for one in second.loaded]
    third = sessions.prepare(plan.programs["b"])
    assert sessions.held == (4, 2)
    assert sorted(store.reads) == ["w1", "w2."]
    sessions.release(first)
    sessions.release(third)
    assert sessions.held == (2, 2)
    sessions.release(second)
    assert sessions.held == (0, 0)
    (out,) = first.run(0, [handmade.request_input(1)[:, :, :5]])
    assert out.shape == (1, 2, 4, 6)  # a released program still runs what is under way


def test_letting_go_waits_for_nobody_and_is_not_forgotten() -> None:
    plan = handmade.split_plan()
    first: list[PreparedProgram] = []
    rested: list[float] = []

    def rest(took_s: float) -> None:
        """Called in the middle of a preparation."""
        rested.append(took_s)
        if first:
            sessions.release(first.pop())

    sessions = Sessions(1, handmade.read_weight, rest=rest)
    first.append(sessions.prepare(plan.programs["a"]))
    rested.clear()
    second = sessions.prepare(plan.programs["b"])
    assert sessions.held == (2, 2)
    assert len(rested) == len(plan.programs["b"].segments)
    assert min(rested) >= 0
    sessions.release(second)
    assert sessions.held == (0, 0)


def test_a_segment_computes_with_its_external_weights() -> None:
    sessions = Sessions(1, handmade.read_weight)
    prepared = sessions.prepare(handmade.split_plan().programs["a"])
    x = handmade.request_input(3)
    (c1,) = prepared.run(0, [x[:, :, :5]])
    expected = handmade.conv3x3(x, handmade.weight("w1"))[:, :, :4]
    np.testing.assert_allclose(c1, expected, rtol=1e-4, atol=1e-5)
    assert prepared.dtypes == {name: np.dtype("float32") for name in ("x", "c1", "y")}


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


def ports(*names: str, shape: Sequence[int] = (4,)) -> list[Port]:
    return [Port(name, Piece(name, Region.full(tuple(shape)))) for name in names]


def prepared_run(
    made: Segment, inputs: Sequence[Array], weights: dict[str, Array] | None = None
) -> list[Array]:
    sessions = Sessions(1, lambda ref: (weights or {})[ref.name])
    return sessions.prepare(handmade.one_program(made)).run(0, inputs)


def test_bfloat16_goes_in_and_out() -> None:
    made = handmade.segment(
        [helper.make_node("Identity", ["x"], ["y"])], ports("x"), ports("y"), dtype=TensorProto.BFLOAT16
    )
    x = np.array([1, -2, 0.5, 3], ml_dtypes.bfloat16)
    (y,) = prepared_run(made, [x])
    assert y.dtype == x.dtype
    assert y.tolist() == x.tolist()


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


def test_strings_and_sequences() -> None:
    made = handmade.segment(
        [helper.make_node("Identity", ["x"], ["y"])], ports("x"), ports("y"), dtype=TensorProto.STRING
    )
    (y,) = prepared_run(made, [np.array(["a", "bé", "", "d"], object)])
    assert y.tolist() == ["a", "bé", "", "d"]
    graph = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["x", "x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    whole = [Port("y", Piece("y", Region(())))]
    made = Segment("s", model.SerializeToString(), tuple(ports("x")), tuple(whole), (), ("s",), 0, 0, 0)
    (sequence,) = prepared_run(made, [np.arange(4, dtype=np.float32)])
    assert [one.tolist() for one in sequence] == [[0, 1, 2, 3]] * 2


def test_a_refused_segment_is_named_by_its_operators_and_nothing_is_held() -> None:
    good = handmade.split_plan().programs["a"].segments[0]
    bad = handmade.segment([helper.make_node("Telepathy", ["x"], ["y"])], ports("x"), ports("y"))
    sessions = Sessions(1, handmade.read_weight)
    with pytest.raises(InternalError, match="Telepathy_0"):
        sessions.prepare(Program("a", (), (good, bad), 0, 0))
    assert sessions.held == (0, 0)


def test_a_weight_of_another_size_is_refused() -> None:
    sessions = Sessions(1, lambda ref: np.zeros(3, np.float32))
    with pytest.raises(InternalError, match=r"w1 .* has 12 bytes in the store and 144 in the plan"):
        sessions.prepare(handmade.split_plan().programs["a"])
    assert sessions.held == (0, 0)


def test_what_the_inputs_are_at_fault_for_is_a_request_error() -> None:
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [helper.make_tensor("table", TensorProto.FLOAT, [3], [5.0, 6.0, 7.0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    made = Segment(
        "g", model.SerializeToString(), tuple(ports("x")), tuple(ports("y")), (), ("look up",), 0, 0, 0
    )
    prepared = Sessions(1, handmade.read_weight).prepare(handmade.one_program(made))
    with pytest.raises(RequestError, match=r"look up.*indices element out of data bounds"):
        prepared.run(0, [np.array([0, 1, 2, 9])])
    assert prepared.run(0, [np.array([0, 1, 2, 0])])[0].tolist() == [5, 6, 7, 5]
