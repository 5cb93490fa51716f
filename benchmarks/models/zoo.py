"""The zoo: every public model that edgepart is tried on, by name. A model is made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from onnx import ModelProto

from benchmarks.models import (
    channels_last,
    converted,
    detection,
    listening,
    painting,
    recurrent,
    transformers,
    vision,
)
from benchmarks.models.converted import Convert
from benchmarks.models.exported import EXPORTS, exported
from benchmarks.models.inputs import sample_inputs
from benchmarks.models.light import LIGHT, PLAIN, light_models, seeded_light_model
from benchmarks.models.model import Inputs, Model, kept, place_of
from benchmarks.models.real import REAL, real_models, runtime_models
from edgepart.planner.errors import UsageError
from edgepart.planner.model.load import load_graph

Build = Callable[[], ModelProto]
Shapes = Mapping[str, tuple[int, ...]]

_resnet = vision.resnet50
_small_resnet = partial(_resnet, side=64, base=16, blocks=(1, 1, 1, 1))
_small_bert = partial(transformers.bert, layers=2, width=64, heads=4, tokens=24, words=200)
_small_letters = partial(listening.letters, frames=48, bands=16, hidden=24)
_middle_bert = partial(transformers.bert, layers=4, width=256, heads=4, tokens=64, words=2000)


def _after(build: Build, convert: Convert) -> Build:
    return lambda: converted.converted(build(), convert)


ARCHITECTURES: Mapping[str, tuple[Build, Build]] = {
    "bert_base": (transformers.bert, _small_bert),
    "bert_fused": (_after(_middle_bert, converted.fused), _after(_small_bert, converted.fused)),
    "bert_optimised": (_after(_middle_bert, converted.optimised), _after(_small_bert, converted.optimised)),
    "bert_int8_dynamic": (
        _after(_middle_bert, converted.int8_dynamic),
        _after(_small_bert, converted.int8_dynamic),
    ),
    "bert_float16": (_after(_middle_bert, converted.float16), _after(_small_bert, converted.float16)),
    "convnext": (
        channels_last.convnext,
        partial(channels_last.convnext, side=64, widths=(16, 32, 64), depths=(1, 1, 1)),
    ),
    "denoiser": (painting.denoiser, partial(painting.denoiser, side=16, base=8, depth=1)),
    "detector_nhwc": (channels_last.detector, partial(channels_last.detector, side=64, base=8, classes=4)),
    "efficientnet": (vision.efficientnet, partial(vision.efficientnet, side=64, narrow=4, deep=3)),
    "enlarger": (painting.enlarger, partial(painting.enlarger, side=24, base=8, blocks=2)),
    "film_3d": (vision.film, partial(vision.film, frames=8, side=32, base=8)),
    "gpt_past": (
        transformers.gpt_past,
        partial(transformers.gpt_past, layers=2, width=64, heads=4, new=6, past=10, words=200),
    ),
    "gpt_past_4bit": (
        _after(partial(transformers.gpt_past, layers=2), converted.int4_blocks),
        _after(
            partial(transformers.gpt_past, layers=1, width=64, heads=4, new=6, past=10, words=200),
            converted.int4_blocks,
        ),
    ),
    "letters": (listening.letters, _small_letters),
    "letters_int8": (
        _after(listening.letters, converted.int8_dynamic),
        _after(_small_letters, converted.int8_dynamic),
    ),
    "llama_attention": (
        transformers.llama,
        partial(transformers.llama, layers=2, width=64, heads=4, tokens=12, words=200),
    ),
    "loop_decoder": (recurrent.loop_decoder, partial(recurrent.loop_decoder, width=16, tokens=8, steps=4)),
    "lstm_lm": (
        recurrent.lstm_lm,
        partial(recurrent.lstm_lm, words=200, width=24, hidden=32, tokens=8),
    ),
    "mobilenet_v2": (vision.mobilenet_v2, partial(vision.mobilenet_v2, side=64, narrow=4)),
    "mobilenet_v2_float16": (
        _after(vision.mobilenet_v2, converted.float16),
        _after(partial(vision.mobilenet_v2, side=64, narrow=4), converted.float16),
    ),
    "resnet50": (_resnet, _small_resnet),
    "resnet50_dyn": (partial(_resnet, batch="batch"), partial(_small_resnet, batch="batch")),
    "resnet50_optimised": (_after(_resnet, converted.optimised), _after(_small_resnet, converted.optimised)),
    "resnet50_qdq_int8": (_after(_resnet, converted.int8_qdq), _after(_small_resnet, converted.int8_qdq)),
    "shufflenet_v2": (
        vision.shufflenet_v2,
        partial(vision.shufflenet_v2, side=64, widths=(24, 48, 96), last=128),
    ),
    "sound_1d": (listening.sound_net, partial(listening.sound_net, samples=2000, base=16, blocks=3)),
    "swin": (
        transformers.swin,
        partial(transformers.swin, side=32, width=24, depths=(2, 1), heads=3, window=4),
    ),
    "unet_256": (vision.unet, partial(vision.unet, side=32, base=4, depth=2)),
    "vit_b16": (
        transformers.vit,
        partial(transformers.vit, layers=2, width=64, heads=4, side=64),
    ),
    "whisper": (
        listening.whisper,
        partial(listening.whisper, layers=1, width=48, heads=3, frames=40, bands=16, tokens=6, words=200),
    ),
    "yolo_640": (detection.yolo, partial(detection.yolo, side=64, base=4, classes=4)),
}
"""Standard architectures with seeded random weights: a builder for the full size, and one for a small model
of the same kind."""

SHAPES: Mapping[str, tuple[Shapes, Shapes]] = {
    "resnet50_dyn": ({"pixel_values": (2, 3, 224, 224)}, {"pixel_values": (5, 3, 64, 64)}),
}
"""Shapes for models with free dimensions: for the full size, and for the small model."""


def architecture(name: str) -> Model:
    """Return a standard architecture, or the small one of its kind ("bert_base_small"); it is made if missing."""
    base = name.removesuffix("_small")
    small = base != name
    shapes = SHAPES.get(base, ({}, {}))[small]
    path = kept(name, f"{name}.onnx", ARCHITECTURES[base][small])
    return Model(name, path, shapes, partial(_inputs, path, shapes))


def torch_export(name: str) -> Model:
    """Return a torch export. Raises UsageError if it has not been made yet and torch is not installed."""
    path = kept(name, f"{name}.onnx", partial(exported, name))
    return Model(name, path, {}, partial(_inputs, path, {}))


def can_be_had(export: str) -> bool:
    """Whether an export has been made, or all packages to make it are installed here."""
    return place_of(export, f"{export}.onnx").exists() or not EXPORTS[export].missing


def _inputs(path: Path, shapes: Shapes, seed: int) -> Inputs:
    return sample_inputs(load_graph(path, shapes=shapes), seed)


def _named(models: Callable[[], list[Model]], name: str) -> Model:
    return next(model for model in models() if model.name == name)


ZOO: Mapping[str, Callable[[], Model]] = {
    **{name: partial(_named, real_models, name) for name in REAL},
    **{
        f"ort_{name}": partial(_named, runtime_models, f"ort_{name}")
        for name in ("logreg_iris", "mul_1", "sigmoid")
    },
    **{f"light_{name}": partial(_named, light_models, f"light_{name}") for name in PLAIN},
    **{f"seeded_light_{name}": partial(seeded_light_model, name) for name in LIGHT},
    **{name: partial(architecture, name) for name in ARCHITECTURES},
    **{name: partial(torch_export, name) for name in EXPORTS if can_be_had(name)},
}
"""The models in full size, by name."""

SMALL: tuple[str, ...] = tuple(f"{name}_small" for name in ARCHITECTURES)
"""Names of the small models of the standard architectures, for tests."""


def named_model(name: str) -> Model:
    """Return a light model with seeded weights by its short name, or one of the zoo. Raises UsageError if
    there is none."""
    return seeded_light_model(name) if name in LIGHT else zoo_model(name)


def zoo_model(name: str) -> Model:
    """Return a model of the zoo by name. Raises UsageError if there is none."""
    if name in SMALL:
        return architecture(name)
    if name in EXPORTS:
        return torch_export(name)
    if name not in ZOO:
        raise UsageError(f"no model {name!r}; there are {', '.join([*ZOO, *EXPORTS, *SMALL])}")
    return ZOO[name]()
