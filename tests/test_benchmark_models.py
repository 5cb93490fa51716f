"""The models for trials: the same for the same seed, sensitive to their input, and unchanged by loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from benchmarks.models import LIGHT, SMALL, ZOO, Inputs, light, main, real_models, sample_inputs, zoo_model
from benchmarks.models.exported import EXPORTS
from benchmarks.models.real import REAL as NAMES
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from edgepart.planner.errors import UsageError
from edgepart.planner.model.graph import Graph, broken_graph_rules
from edgepart.planner.model.load import load_graph
from edgepart.planner.region import Array
from tests.nightly import nightly

REAL = {model.name: model for model in real_models()}


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder := tmp_path_factory.mktemp("cache")))
        yield folder


def run(model: Path | bytes, feeds: Inputs) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def rebuilt(graph: Graph) -> ModelProto:
    """Return a model of only what the graph holds.

    With branches it has no shapes: the branch that is not taken need not fit them.
    """
    branches = any(op.op_type == "If" for op in graph.operators)
    nodes = []
    for op in graph.operators:
        attributes = {
            name: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
            for name, value in op.attributes.items()
            if not isinstance(value, GraphProto)
        }
        node = helper.make_node(op.op_type, op.inputs, op.outputs, op.name, domain=op.domain, **attributes)
        graphs = {name: value for name, value in op.attributes.items() if isinstance(value, GraphProto)}
        node.attribute.extend(helper.make_attribute(name, value) for name, value in graphs.items())
        nodes.append(node)
    values = [
        helper.make_tensor_value_info(
            name, TensorProto.DataType.Value(tensor.dtype.upper()), None if branches else tensor.shape
        )
        for name, tensor in graph.tensors.items()
        if tensor.shape is not None
    ]
    inputs = [value for value in values if value.name in graph.inputs]
    outputs = [onnx.ValueInfoProto(name=name) for name in graph.outputs]
    weights = [numpy_helper.from_array(np.array(c.load()), name) for name, c in graph.constants.items()]
    proto = helper.make_graph(nodes, "rebuilt", inputs, outputs, weights, value_info=values)
    imports = [helper.make_opsetid(domain, version) for domain, version in graph.opset_imports.items()]
    return helper.make_model(proto, opset_imports=imports, ir_version=max(graph.ir_version, 4))


def assert_equal(found: list[Array], expected: list[Array], tolerance: float) -> None:
    assert [array.shape for array in found] == [array.shape for array in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert float(np.abs(mine - theirs).max()) <= tolerance * float(np.abs(theirs).max())


@pytest.mark.nightly
@pytest.mark.parametrize("name", REAL)
def test_real_models_load_with_every_shape_right_and_the_same_answer(name: str) -> None:
    model = REAL[name]
    graph = load_graph(model.path, shapes=model.shapes)
    assert list(broken_graph_rules(graph)) == []
    assert graph.notes == ()
    expected = run(model.path, model.inputs(1))
    if name != "silero_vad":  # its outputs come from an If on an input
        assert [graph.shape_of(output) for output in graph.outputs] == [array.shape for array in expected]
        assert all(tensor.shape is not None for tensor in graph.tensors.values())
    # int8: the runtime fuses differently after constant folding (the noise floor of quantised models)
    tolerance = 0.05 if name == "minilm_l6_int8" else 1e-4
    assert_equal(run(rebuilt(graph).SerializeToString(), model.inputs(1)), expected, tolerance)


@pytest.mark.nightly
@pytest.mark.parametrize("name", REAL)
def test_real_models_answer_differently_to_different_inputs(name: str) -> None:
    first, second = (run(REAL[name].path, REAL[name].inputs(seed))[0] for seed in (0, 1))
    assert float(np.abs(first - second).max()) > 1e-3 * float(np.abs(first).max())


OPERATORS = {
    "bert_base_small": {"LayerNormalization", "Erf", "Softmax", "Gather"},
    "bert_float16_small": {"LayerNormalization"},
    "bert_fused_small": {"Attention", "SkipLayerNormalization", "BiasGelu"},
    "bert_int8_dynamic_small": {"DynamicQuantizeLinear", "MatMulInteger"},
    "bert_optimised_small": {"SkipLayerNormalization", "FusedMatMul", "Gelu"},
    "convnext_small": {"Conv", "LayerNormalization", "Transpose"},
    "denoiser_small": {"Conv", "InstanceNormalization", "Resize", "Sin"},
    "detector_nhwc_small": {"Conv", "Resize", "Transpose"},
    "efficientnet_small": {"Conv", "GlobalAveragePool", "Sigmoid"},
    "enlarger_small": {"DepthToSpace", "PRelu", "Resize"},
    "film_3d_small": {"Conv", "BatchNormalization", "MaxPool"},
    "gpt_past_4bit_small": {"MatMulNBits"},
    "gpt_past_small": {"Concat", "Softmax", "Split"},
    "letters_int8_small": {"ConvInteger", "DynamicQuantizeLSTM", "MatMulInteger"},
    "letters_small": {"Conv", "LSTM", "LogSoftmax"},
    "llama_attention_small": {"Attention", "RotaryEmbedding", "RMSNormalization"},
    "loop_decoder_small": {"Loop", "Scan"},
    "lstm_lm_small": {"LSTM"},
    "mobilenet_v2_float16_small": {"Conv", "Clip"},
    "mobilenet_v2_small": {"Conv", "Clip", "ReduceMean"},
    "resnet50_dyn_small": {"Conv"},
    "resnet50_optimised_small": {"FusedConv"},
    "resnet50_qdq_int8_small": {"QuantizeLinear", "DequantizeLinear"},
    "resnet50_small": {"Conv", "Relu", "Add"},
    "shufflenet_v2_small": {"Conv", "Split", "Transpose"},
    "sound_1d_small": {"Conv", "InstanceNormalization"},
    "swin_small": {"Slice", "Softmax", "Squeeze"},
    "unet_256_small": {"Conv", "ConvTranspose", "Concat"},
    "vit_b16_small": {"Conv", "Gelu", "Softmax"},
    "whisper_small": {"Conv", "Gelu", "Softmax"},
    "yolo_640_small": {"Conv", "Resize", "Split", "Softmax"},
}
"""Operators for whose sake each model is there."""


@pytest.mark.parametrize("name", SMALL)
def test_small_models_are_of_their_kind_and_depend_on_their_input(name: str) -> None:
    model = zoo_model(name)
    graph = load_graph(model.path, shapes=model.shapes)
    assert list(broken_graph_rules(graph)) == []
    assert {op.op_type for op in graph.operators} >= OPERATORS[name]
    (first, *_), (second, *_) = (run(model.path, model.inputs(seed)) for seed in (0, 1))
    first, second = first.astype(np.float32), second.astype(np.float32)
    assert np.isfinite(first).all()
    assert float(np.abs(first - second).max()) > 0.05 * float(np.abs(first).max())


def test_the_zoo_names_every_model_once() -> None:
    assert tuple(model.name for model in real_models()) == NAMES
    assert {*NAMES, "ort_mul_1", "light_resnet50", "seeded_light_vgg19", "bert_base", "vit_b16"} <= set(ZOO)
    assert not set(SMALL) & set(ZOO)
    with pytest.raises(UsageError, match="no model 'resnet51'; there are ppocrv4_det"):
        zoo_model("resnet51")
    for name in ("ort_mul_1", "ort_logreg_iris", "light_squeezenet"):
        model = ZOO[name]()
        assert model.name == name
        assert run(model.path, model.inputs(0))


def test_what_torch_exports_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in EXPORTS:
        with pytest.raises(UsageError, match=rf"{name} needs torch, onnxscript.*: `make exports`"):
            zoo_model(name)


@pytest.mark.parametrize("name", ["squeezenet", *nightly("shufflenet", "inception_v2")])
def test_seeded_models_depend_on_their_input_and_only_on_their_seed(name: str, tmp_path: Path) -> None:
    path = light(name)
    graph = load_graph(path)
    assert all(tensor.shape is not None for tensor in graph.tensors.values())
    feeds = sample_inputs(graph, 0)
    (first,), (second,) = run(path, feeds), run(path, sample_inputs(graph, 1))
    assert np.isfinite(first).all()
    assert 0.002 < float(first.max()) < 0.99  # neither flat nor saturated
    assert float(np.abs(first - second).max()) > 0.01 * float(np.abs(first).max())
    assert_equal(run(rebuilt(graph).SerializeToString(), feeds), [first], 1e-4)
    assert load_graph(light(name, seed=1)).constants.keys() == graph.constants.keys()
    assert light(name, seed=1).read_bytes() != path.read_bytes()
    assert light(f"light_{name}") == path


def test_weights_are_the_same_every_time(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = light("squeezenet").read_bytes()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert light("squeezenet").read_bytes() == first
    assert light("squeezenet").is_relative_to(tmp_path)


def test_all_nine_are_offered() -> None:
    assert len(set(LIGHT)) == 9
    with pytest.raises(UsageError, match="no model 'resnet51'"):
        light("resnet51")


def test_the_command_writes_a_model_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["light_squeezenet", "-o", str(tmp_path / "sub/s.onnx")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "sub/s.onnx")
    assert load_graph(tmp_path / "sub/s.onnx").shape_of("softmaxout_1") == (1, 1000, 1, 1)
    with pytest.raises(SystemExit) as stopped:
        main(["resnet51", "-o", "x.onnx"])
    assert stopped.value.code == 2
