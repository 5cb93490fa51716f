"""Models converted by other tools: ONNX Runtime's quantisers, its optimiser, and its converter to float16."""

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
"""Reads a model from the first file and writes the converted one to the second."""


def converted(model: ModelProto, convert: Convert) -> ModelProto:
    """Return the model converted by `convert`."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(model, before := Path(folder) / "before.onnx")
        convert(before, after := Path(folder) / "after.onnx")
        return onnx.load(after)


def int8_qdq(before: Path, after: Path) -> None:
    """Quantise statically, with QuantizeLinear and DequantizeLinear around every operator, per channel."""
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
    """Two smooth images for the calibration of values' ranges."""

    def __init__(self, path: Path) -> None:
        (value,) = onnx.load(path, load_external_data=False).graph.input
        shape = tuple(one.dim_value or 1 for one in value.type.tensor_type.shape.dim)
        rng = np.random.default_rng(0)
        self._left: Iterator[dict[str, Any]] = iter([{value.name: smooth(rng, shape)} for _ in range(2)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._left, None)


def int8_dynamic(before: Path, after: Path) -> None:
    """Quantise weights to int8; activations are quantised at run time."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(before, after, weight_type=QuantType.QInt8)


def int4_blocks(before: Path, after: Path) -> None:
    """Quantise weights of matrix products to 4-bit blocks: com.microsoft MatMulNBits."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(before), block_size=32, is_symmetric=False)
    quantizer.process()
    onnx.save(quantizer.model.model, after)


def float16(before: Path, after: Path) -> None:
    """Convert everything to float16, inputs and outputs too."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(before), disable_shape_infer=False), after)


def optimised(before: Path, after: Path) -> None:
    """Write the model as ONNX Runtime optimises it, with its own fused operators (extended level: the same on
    every processor)."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(after)
    onnxruntime.InferenceSession(before, options, providers=["CPUExecutionProvider"])


def fused(before: Path, after: Path) -> None:
    """Fuse operators with ONNX Runtime's optimiser for transformers: com.microsoft Attention,
    SkipLayerNormalization, BiasGelu."""
    from onnxruntime.transformers.optimizer import optimize_model

    optimize_model(str(before), model_type="bert", opt_level=0).save_model_to_file(str(after))
