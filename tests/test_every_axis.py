"""Small models of every kind, divided along each of their axes, answer like one session."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.every_axis import AUTO, Trial, main, trials
from benchmarks.models import SMALL, Model, zoo_model
from onnx import TensorProto, helper

from benchmarks import every_axis
from tests.nightly import nightly

AXES = {
    "bert_base_small": {"sequence", "feature", "inner", "width"},
    "bert_float16_small": {"sequence", "feature", "inner"},
    "bert_fused_small": {"feature"},
    "bert_int8_dynamic_small": {"sequence", "feature", "inner"},
    "bert_optimised_small": {"feature", "inner"},
    "convnext_small": {"channel", "height", "width", "feature", "inner"},
    "denoiser_small": {"channel", "height", "width", "inner"},
    "detector_nhwc_small": {"channel", "height", "width"},
    "efficientnet_small": {"channel", "height", "width", "inner"},
    "enlarger_small": {"channel", "height", "width"},
    "film_3d_small": {"channel", "depth", "height", "width"},
    "gpt_past_4bit_small": {"sequence", "feature"},
    "gpt_past_small": {"sequence", "feature", "inner"},
    "letters_int8_small": {"channel", "direction", "feature", "height", "width"},
    "letters_small": {"channel", "direction", "feature", "height", "width"},
    "llama_attention_small": {"sequence", "feature"},
    "loop_decoder_small": {"sequence", "feature"},
    "lstm_lm_small": {"sequence", "feature"},
    "mobilenet_v2_float16_small": {"channel", "height", "width"},
    "mobilenet_v2_small": {"channel", "height", "width", "inner"},
    "resnet50_dyn_small": {"batch", "channel", "height", "width"},
    "resnet50_optimised_small": {"channel", "height", "width"},
    "resnet50_qdq_int8_small": {"channel", "height", "width"},
    "resnet50_small": {"channel", "height", "width", "inner"},
    "shufflenet_v2_small": {"channel", "height", "width"},
    "sound_1d_small": {"channel", "width"},
    "swin_small": {"head", "feature", "height", "inner"},
    "unet_256_small": {"channel", "height", "width"},
    "vit_b16_small": {"sequence", "feature", "inner"},
    "whisper_small": {"head", "feature", "sequence", "inner"},
    "yolo_640_small": {"channel", "height", "width"},
}
"""Axes that each model must have at least."""
ALIKE = {
    "bert_float16_small",
    "bert_fused_small",
    "bert_optimised_small",
    "convnext_small",
    "denoiser_small",
    "efficientnet_small",
    "enlarger_small",
    "gpt_past_4bit_small",
    "letters_int8_small",
    "letters_small",
    "llama_attention_small",
    "mobilenet_v2_float16_small",
    "mobilenet_v2_small",
    "resnet50_dyn_small",
    "resnet50_optimised_small",
    "resnet50_small",
    "shufflenet_v2_small",
    "sound_1d_small",
    "swin_small",
    "vit_b16_small",
    "yolo_640_small",
}
"""Models whose kind or axes another model has, too."""


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder := tmp_path_factory.mktemp("cache")))
        yield folder


def test_every_kind_of_model_is_tried() -> None:
    assert set(AXES) == set(SMALL)


@pytest.mark.parametrize("name", [*sorted({*SMALL} - ALIKE), *nightly(*sorted(ALIKE))])
def test_a_model_answers_the_same_along_every_axis(name: str) -> None:
    found = list(trials(zoo_model(name), [3], search_s=0.5))
    assert [text for one in found for text in one.wrong] == []
    forced = {one.axis: one for one in found if one.axis != AUTO}
    assert forced.keys() >= AXES[name]
    assert all(one.split and one.used > 1 for one in forced.values())


def one_operator(path: Path, op_type: str) -> Model:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], ["y"], "it")],
        "one",
        [value("x", TensorProto.FLOAT, (4, 6))],
        [value("y", TensorProto.FLOAT, (4, 6))],
    )
    imports = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path / f"{op_type}.onnx")
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    return Model(op_type, path / f"{op_type}.onnx", {}, lambda seed: {"x": x + seed})


def test_a_wrong_answer_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        every_axis, "run_alone", lambda path, inputs: {"y": -inputs["x"] * 1.001}
    )  # the answer of another model
    found = list(trials(one_operator(tmp_path, "Neg"), [2]))
    assert {one.axis for one in found} == {AUTO, "batch", "channel"}
    assert all("differs by 0.000999" in one.wrong[0] and "WRONG" in one.cell for one in found)


def test_the_command_prints_and_writes_every_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(every_axis, "zoo_model", lambda name: one_operator(tmp_path, name))
    assert main(["--models", "Neg", "--devices", "2,5", "--json", str(tmp_path / "found.json")]) == 0
    out = capsys.readouterr().out
    assert "6 divisions" in out
    assert "0 with a wrong answer or none" in out
    written = [Trial(**one) for one in json.loads((tmp_path / "found.json").read_text())["trials"]]
    assert {(one.devices, one.axis) for one in written} == {
        (n, axis) for n in (2, 5) for axis in (AUTO, "batch", "channel")
    }
    assert all(one.used > 1 for one in written if one.axis != AUTO)
