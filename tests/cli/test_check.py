"""`edgepart check`: every way to split a model, against one session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgepart.agent.execution.schedule import Progress
from edgepart.agent.verify.sample_inputs import random_inputs
from edgepart.cli.main import main
from edgepart.cli.output import FAILED, WRONG_USAGE
from edgepart.planner.access import registry
from edgepart.planner.errors import UsageError
from edgepart.planner.model.load import load_graph
from tests.planner.model.test_context_shapes import concatenating
from tests.planner.small_models import model, residual


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    path.write_bytes(residual(rows=12, channels=4))
    return path


def check(*arguments: object) -> int:
    """The exit status."""
    with pytest.raises(SystemExit) as ended:
        main(["check", *map(str, arguments)])
    return int(ended.value.code or 0)


def test_every_way_gives_the_same_answer(network: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(network, "--json") == 0
    document: Any = json.loads(capsys.readouterr().out)
    assert document["equal"] is True
    assert document["devices"] == 3
    assert {"channel", "height", "width", "inner"} <= set(document["axes"])
    assert [way["axis"] for way in document["ways"]] == [None, *document["axes"]]
    assert all(way["difference"] < 1e-5 and way["devices_used"] == 3 for way in document["ways"])
    conv = document["operators"]["Conv"]
    assert conv["nodes"] == conv["split"] == 3
    assert conv["axes"]["height"] == 3
    assert document["nodes"]["softmax"]["op_type"] == "Softmax"
    assert document["opaque_flops_share"] == 0


def test_people_see_operators_axes_and_a_conclusion(
    network: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(network, "--devices", 2) == 0
    shown = capsys.readouterr().out
    assert "small.onnx on 2 simulated devices" in shown
    assert "Every split gives the same answer" in shown
    assert "channel, height, inner, width" in shown


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_rounding_is_told_and_is_no_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = tmp_path / "large.onnx"
    path.write_bytes(residual(rows=64, channels=8))
    assert check(path, "--transfer-dtype", kind, "--json") == 0
    document: Any = json.loads(capsys.readouterr().out)
    assert document["equal"] is True and document["transfer_dtype"] == kind
    ways = {way["axis"]: way for way in document["ways"]}
    assert ways["height"]["difference"] < 1e-5 < ways["height"]["rounded_difference"] < 0.05
    assert ways["height"]["rounded_pieces"] > 0 and ways["height"]["pieces_as_they_are"] == 0
    assert check(path, "--transfer-dtype", kind) == 0
    shown = capsys.readouterr().out
    assert f"as {kind}" in " ".join(shown.split()) and f"Rounding to {kind} changes answers by" in shown
    assert check(path, "--transfer-dtype", "int4") == WRONG_USAGE


def test_what_cannot_be_split_is_told_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"], name="where")]
    path = tmp_path / "where.onnx"
    source = onnx.load_model_from_string(model(nodes, {"x": (2, 3)}, ["y"], {}))
    source.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    path.write_bytes(source.SerializeToString())
    assert check(path, "--json") == 0
    document: Any = json.loads(capsys.readouterr().out)
    assert document["axes"] == []
    assert [way["name"] for way in document["ways"]] == ["whole"]
    assert document["nodes"]["where"]["opaque"]
    assert document["opaque_flops_share"] == 1


def test_a_difference_is_told_and_fails(
    network: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Softmax, declared as if it were element-wise."""
    monkeypatch.setitem(registry.DECLARED, ("", "Softmax"), registry.DECLARED["", "Relu"])
    assert check(network) == FAILED
    shown = capsys.readouterr().out
    assert "split along channel: y differs by" in shown
    assert "gave another answer" in shown


def test_random_outputs_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["noise"]),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    path = tmp_path / "noise.onnx"
    path.write_bytes(model(nodes, {"x": (2, 3)}, ["noise", "y"], {}))
    assert check(path) == 0
    assert "Output 'noise' is random, and was not compared." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.onnx"], "there is no model"),
        (["--shape", "x"], "--shape"),
        (["--shape", "z=1"], "no input is called 'z'"),
    ],
)
def test_wrong_usage(
    network: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments if arguments[0].endswith(".onnx") else [str(network), *arguments]
    assert check(*given) == WRONG_USAGE
    assert said in capsys.readouterr().err


def test_made_up_inputs_are_of_the_models_types_and_harm_nothing() -> None:
    kinds = {"image": TensorProto.UINT8, "index": TensorProto.INT64, "flag": TensorProto.BOOL,
             "half": TensorProto.FLOAT16, "text": TensorProto.STRING, "nibble": TensorProto.INT4}  # fmt: skip
    names = list(kinds)
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [2]))
    infos = [helper.make_tensor_value_info(name, kind, [3, 40]) for name, kind in kinds.items()]
    graph = helper.make_graph(
        [
            *(helper.make_node("Identity", [name], [f"{name}_out"]) for name in names),
            helper.make_node("SequenceLength", ["list"], ["length"]),
        ],
        "g",
        [*infos, helper.make_value_info("list", sequence)],
        [helper.make_tensor_value_info(f"{name}_out", kind, [3, 40]) for name, kind in kinds.items()]
        + [helper.make_tensor_value_info("length", TensorProto.INT64, [])],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    made = random_inputs(load_graph(source.SerializeToString()), seed=1)
    assert {name: made[name].dtype.name for name in names} == {
        "image": "uint8", "index": "int64", "flag": "bool", "half": "float16", "text": "object", "nibble": "int4",
    }  # fmt: skip
    assert made["image"].max() > 100
    assert set(np.unique(made["index"])) == {0, 1}
    assert [item.shape for item in made["list"]] == [(2,), (2,)]
    again = random_inputs(load_graph(source.SerializeToString()), seed=1)
    np.testing.assert_array_equal(again["half"], made["half"])


def test_integers_that_may_divide_are_never_zero() -> None:
    graph = helper.make_graph(
        [helper.make_node("Div", ["a", "b"], ["c"])],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.INT64, [50]) for name in ("a", "b")],
        [helper.make_tensor_value_info("c", TensorProto.INT64, [50])],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert random_inputs(load_graph(source.SerializeToString()))["b"].min() == 1


def test_an_input_without_a_shape_asks_for_one() -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UsageError, match="--shape x="):
        random_inputs(load_graph(source.SerializeToString()))


def test_a_model_with_states_is_tried_step_after_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sum over all steps, which names nothing that tells which output becomes which input."""
    path = tmp_path / "sum.onnx"
    nodes = [helper.make_node("Add", ["x", "before"], ["after"]), helper.make_node("Neg", ["after"], ["y"])]
    path.write_bytes(model(nodes, {"x": (4, 6), "before": (4, 6)}, ["y", "after"], {}))
    assert check(path, "--json") == 0
    document: Any = json.loads(capsys.readouterr().out)
    assert document["states"] == [] and document["steps"] == 1 and set(document["inputs"]) == {"x", "before"}
    assert check(path, "--state-pair", "after=before", "--steps", 4, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["states"] == [{"output": "after", "input": "before", "grows": None}]
    assert document["steps"] == 4 and set(document["inputs"]) == {"x"} and document["equal"]
    assert check(path, "--state-pair", "after=before") == 0
    assert "3 steps of one sequence. Devices keep after -> before." in capsys.readouterr().out


def test_a_step_that_differs_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running mean, in which the devices keep twice of what they should: the first step has nothing to double."""
    path = tmp_path / "mean.onnx"
    nodes = [helper.make_node("Mean", ["x", "h"], ["y"]), helper.make_node("Identity", ["y"], ["hn"])]
    path.write_bytes(model(nodes, {"x": (4, 6), "h": (4, 6)}, ["y", "hn"], {}))
    keep = Progress.keep_state
    monkeypatch.setattr(
        Progress, "keep_state", lambda self, **named: [2 * value for value in keep(self, **named)]
    )
    assert check(path) == FAILED
    assert "split along channel: step 2: y differs by" in capsys.readouterr().out


def test_a_decoder_is_tried_with_room_for_a_context(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "decoder.onnx"
    path.write_bytes(concatenating())
    assert check(path, "--context", 12, "--json") == 0
    document: Any = json.loads(capsys.readouterr().out)
    assert {name: one["shape"] for name, one in document["inputs"].items()} == {
        "x": [1, 1, 8],
        "attention_mask": [1, 12],
    }
    assert document["states"] == [{"output": "present.0.key", "input": "past_key_values.0.key", "grows": 2}]
    assert document["steps"] == 3 and document["equal"] and len(document["ways"]) > 2
    assert check(path, "--context", 0) == WRONG_USAGE


@pytest.mark.parametrize(
    ("pair", "status", "said"),
    [
        ("after", WRONG_USAGE, "write it as OUTPUT=INPUT"),
        ("z=before", FAILED, "the model has no output 'z'"),
        ("after=x", FAILED, "only one axis may differ"),
    ],
)
def test_states_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pair: str, status: int, said: str
) -> None:
    path = tmp_path / "sum.onnx"
    nodes = [helper.make_node("Add", ["x", "before"], ["after"])]
    path.write_bytes(model(nodes, {"x": (1, 1), "before": (4, 6)}, ["after"], {}))
    assert check(path, "--state-pair", pair) == status
    assert said in capsys.readouterr().err
