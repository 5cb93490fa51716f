"""The light_* topologies that the onnx package ships, with weights of their own.

They make their weights by ConstantOfShape, so their answer does not depend on the input. Here they get seeded
random weights (He et al. 2015), and statistics that keep signals in range.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from benchmarks.models.inputs import sample_inputs, smooth
from benchmarks.models.model import Inputs, Model, kept, package, save
from edgepart.planner.errors import UsageError
from edgepart.planner.model.load import load_graph
from edgepart.planner.region import Array

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

PLAIN = ("resnet50", "shufflenet", "squeezenet")
"""Models that are also offered with the weights that they are shipped with."""


def light(name: str, seed: int = 0) -> Path:
    """Return the file of a light_* model ("resnet50" or "light_resnet50") with seeded weights; it is made if
    missing."""
    short = name.removeprefix("light_")
    if short not in LIGHT:
        raise UsageError(f"no model {name!r}; there are {', '.join(LIGHT)}")
    return kept(
        f"light_{short}-seed{seed}", f"{short}.onnx", lambda: calibrated(seeded(_proto(short), seed), seed)
    )


def all_light(seed: int = 0) -> Iterator[tuple[str, Path]]:
    """Yield name and file of each of the nine."""
    for name in LIGHT:
        yield name, light(name, seed)


def light_models() -> list[Model]:
    """Return the models as the onnx package ships them. Their answer is always the same: it proves shapes,
    not numbers."""
    return [Model(f"light_{name}", _plain(name), {}, _images(_plain(name))) for name in PLAIN]


def seeded_light_model(name: str) -> Model:
    """Return one of the nine with seeded weights."""
    return Model(f"seeded_light_{name}", path := light(name), {}, _images(path))


def _images(path: Path) -> Callable[[int], Inputs]:
    return lambda seed: sample_inputs(load_graph(path), seed)


def _plain(short: str) -> Path:
    return package("onnx") / "backend/test/data/light" / f"light_{short}.onnx"


def _proto(short: str) -> ModelProto:
    return onnx.load(_plain(short))


def seeded(model: ModelProto, seed: int) -> ModelProto:
    """Return the model with each ConstantOfShape on a constant replaced by a random initializer."""
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
    result.ir_version = max(model.ir_version, 4)  # before 4, every initializer had to be an input too
    return result


def _weight(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    reader: NodeProto,
    index: int,
    readers: Mapping[str, tuple[NodeProto, int]],
) -> Array:
    """Return a random weight: He-normal for the weights of Conv and Gemm, near 1 for scales, at least 0.5 for
    variances, near 0 for the rest."""
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
    """Return the model with its batch statistics, and the scale of its logits, taken from one seeded image.

    Without that a deep random network saturates: it answers the same for every input, and proves nothing. For
    one image, normalising by batch statistics is instance normalisation.
    """
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
    """Return inner values of a model for one seeded image."""
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names))
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:  # as a file: models come near protobuf's size limit
        save(model, path := Path(folder) / "trial.onnx")
        session = onnxruntime.InferenceSession(path, quiet, providers=["CPUExecutionProvider"])
        image = {
            one.name: smooth(np.random.default_rng(seed), tuple(one.shape)) for one in session.get_inputs()
        }
        return dict(zip(dict.fromkeys(names), session.run(None, image), strict=True))


def _set(tensor: TensorProto, value: Array) -> None:
    tensor.CopyFrom(numpy_helper.from_array(value.astype(np.float32), tensor.name))
