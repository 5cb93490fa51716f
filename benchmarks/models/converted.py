"""What other tools make of a model: ONNX Runtime's quantisers, its optimiser, and its converter to float16."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto

from benchmarks.models.inputs import smooth
from benchmarks.models.model import save

Convert = Callable[[Path, Path], None]
"""Reads the model in one file, writes another."""


def converted(model: ModelProto, convert: Convert) -> ModelProto:
    """What `convert` makes of the model."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(model, before := Path(folder) / "before.onnx")
        convert(before, after := Path(folder) / "after.onnx")
        return onnx.load(after)


def int8_qdq(before: Path, after: Path) -> None:
    """Static quantisation with QuantizeLinear and DequantizeLinear around every operator, per channel."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    quantize_static(
        before,
        after,
        _Pictures(before),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


class _Pictures:
    """Two smooth images, one after the other, to see values' ranges with."""

    def __init__(self, path: Path) -> None:
        (value,) = onnx.load(path, load_external_data=False).graph.input
        shape = tuple(one.dim_value or 1 for one in value.type.tensor_type.shape.dim)
        rng = np.random.default_rng(0)
        self._left: Iterator[dict[str, Any]] = iter([{value.name: smooth(rng, shape)} for _ in range(2)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._left, None)


def int8_dynamic(before: Path, after: Path) -> None:
    """Weights as int8; activations are quantised while it runs."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(before, after, weight_type=QuantType.QInt8)


def int4_blocks(before: Path, after: Path) -> None:
    """Weights of matrix products as 4-bit blocks: com.microsoft MatMulNBits."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(before), block_size=32, is_symmetric=False)
    quantizer.process()
    onnx.save(quantizer.model.model, after)


def float16(before: Path, after: Path) -> None:
    """Everything in float16, inputs and outputs too."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(before), disable_shape_infer=False), after)


def optimised(before: Path, after: Path) -> None:
    """As ONNX Runtime would run it, with its own fused operators (extended level: the same on every processor)."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(after)
    onnxruntime.InferenceSession(before, options, providers=["CPUExecutionProvider"])


def fused(before: Path, after: Path) -> None:
    """By ONNX Runtime's optimiser for transformers: com.microsoft Attention, SkipLayerNormalization, BiasGelu."""
    from onnxruntime.transformers.optimizer import optimize_model

    optimize_model(str(before), model_type="bert", opt_level=0).save_model_to_file(str(after))
