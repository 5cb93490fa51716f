"""Realistic inputs: images, pages, sounds and texts. They are the same for the same seed."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from benchmarks.models.model import Inputs
from edgepart.planner.errors import UsageError
from edgepart.planner.model.graph import Graph, Tensor
from edgepart.planner.region import Array


def sample_inputs(graph: Graph, seed: int = 0) -> Inputs:
    """Return seeded, realistic inputs: smooth images, signals, small token numbers, masks of ones."""
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
        return rng.integers(0, 2 if "type_ids" in tensor.name else 100, tensor.shape).astype(dtype)
    return smooth(rng, tensor.shape).astype(dtype)


def smooth(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return coarse blocks with fine noise along the last two axes, in [-2, 2]."""
    coarse_shape = tuple(
        -(-extent // 16) if axis >= len(shape) - 2 else extent for axis, extent in enumerate(shape)
    )
    coarse = rng.standard_normal(coarse_shape, dtype=np.float32)
    for axis in range(max(0, len(shape) - 2), len(shape)):
        coarse = np.repeat(coarse, 16, axis=axis).take(range(shape[axis]), axis=axis)
    return np.clip(coarse + np.float32(0.2) * rng.standard_normal(shape, dtype=np.float32), -2, 2)


def page(seed: int, height: int, width: int) -> Array:
    """Return a page-like image [1, 3, height, width] in [-1, 1]: dark strokes in lines on light paper."""
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


def sound(seed: int, samples: int) -> Array:
    """Return a chord that swells and fades, with some noise, at 16,000 samples per second."""
    rng = np.random.default_rng(seed)
    seconds = np.arange(samples) / 16000
    tones = sum(np.sin(2 * np.pi * f * seconds + rng.uniform(0, 6)) for f in rng.uniform(110, 880, 3))
    swell = 0.5 - 0.5 * np.cos(2 * np.pi * seconds / max(seconds[-1], 1e-3))
    made: Array = (0.2 * tones * swell + 0.01 * rng.standard_normal(samples)).astype(np.float32)
    return made
