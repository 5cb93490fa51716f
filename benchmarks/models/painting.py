"""Networks that generate pictures, from noise or from smaller pictures, with seeded weights."""

from __future__ import annotations

import math

import numpy as np
from onnx import ModelProto

from benchmarks.models.builder import Builder

SQUARE = (3, 3)
GROUPS = 4


def denoiser(side: int = 64, base: int = 64, depth: int = 2) -> ModelProto:
    """A U-net that removes noise step by step (Ho et al. 2020), as torch exports one.

    The step is encoded as sines and cosines, groups are normalised by way of InstanceNormalization, attention
    is at the smallest resolution, and the way up concatenates what the way down computed.
    """
    b = Builder("denoiser")
    x = b.conv(b.input("sample", (1, 4, side, side)), 4, base, SQUARE, gain=1.0)
    step = _step(b, b.input("timestep", (1,)), base)
    seen, ins = list[tuple[str, int]](), base
    for level in range(depth):
        outs = base << level
        x = _block(b, x, step, ins, outs, base, side >> level)
        seen.append((x, outs))
        x, ins = b.conv(x, outs, outs, SQUARE, stride=2, gain=1.0), outs
    x = _attention(b, _block(b, x, step, ins, ins, base, side >> depth), ins, side >> depth)
    scales = b.constant((1, 1, 2, 2), np.float32)
    for level in reversed(range(depth)):
        kept, outs = seen[level]
        x = b.add(
            "Resize",
            x,
            "",
            scales,
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
        x = _block(b, b.add("Concat", x, kept, axis=1), step, ins + outs, outs, base, side >> level)
        ins = outs
    x = _swish(b, _normalised(b, x, ins, side))
    b.output(b.conv(x, ins, 4, SQUARE, gain=1.0), "noise")
    return b.model()


def _swish(b: Builder, x: str) -> str:
    return b.add("Mul", x, b.add("Sigmoid", x))


def _step(b: Builder, step: str, base: int) -> str:
    """Encode the number of the step as (1, 4 x base)."""
    waves = b.constant(np.exp(-math.log(10000) * np.arange(base // 2) / (base // 2))[None], np.float32)
    angles = b.add("Mul", b.add("Unsqueeze", step, b.constant([1])), waves)
    both = b.add("Concat", b.add("Sin", angles), b.add("Cos", angles), axis=-1)
    return b.gemm(_swish(b, b.gemm(both, base, 4 * base)), 4 * base, 4 * base)


def _normalised(b: Builder, x: str, channels: int, side: int) -> str:
    """Normalise groups of channels."""
    flat = b.reshape(x, 0, GROUPS, -1)
    ones, zeros = b.constant(np.ones(GROUPS), np.float32), b.constant(np.zeros(GROUPS), np.float32)
    flat = b.add("InstanceNormalization", flat, ones, zeros, epsilon=1e-5)
    x = b.reshape(flat, 1, channels, side, side)
    x = b.add("Mul", x, b.noise((channels, 1, 1), 0.1, 1.0))
    return b.add("Add", x, b.noise((channels, 1, 1), 0.05))


def _block(b: Builder, x: str, step: str, ins: int, outs: int, base: int, side: int) -> str:
    y = b.conv(_swish(b, _normalised(b, x, ins, side)), ins, outs, SQUARE)
    told = b.add("Unsqueeze", b.gemm(_swish(b, step), 4 * base, outs), b.constant([2, 3]))
    y = _normalised(b, b.add("Add", y, told), outs, side)
    y = b.conv(_swish(b, y), outs, outs, SQUARE)
    return b.add("Add", y, x if ins == outs else b.conv(x, ins, outs, (1, 1), gain=1.0))


def _attention(b: Builder, x: str, channels: int, side: int) -> str:
    """Add attention of every place to every other."""
    flat = b.transpose(b.reshape(_normalised(b, x, channels, side), 1, channels, side * side), 0, 2, 1)
    query, key, value = (b.linear(flat, channels, channels) for _ in range(3))
    scores = b.scale(b.add("MatMul", query, b.transpose(key, 0, 2, 1)), channels**-0.5)
    y = b.linear(b.add("MatMul", b.add("Softmax", scores, axis=-1), value), channels, channels)
    return b.add("Add", x, b.reshape(b.transpose(y, 0, 2, 1), 1, channels, side, side))


def enlarger(side: int = 96, base: int = 64, blocks: int = 8, times: int = 2) -> ModelProto:
    """A picture `times` as large, made from channels (Shi et al. 2016) after residual blocks, and added to
    the picture resized without a network."""
    b = Builder("enlarger")
    image = b.input("image", (1, 3, side, side))
    first = x = b.conv(image, 3, base, SQUARE, gain=1.0)
    for _ in range(blocks):
        y = b.add("PRelu", b.conv(x, base, base, SQUARE), b.noise((base, 1, 1), 0.05, 0.2))
        x = b.add("Add", x, b.conv(y, base, base, SQUARE, gain=0.5))
    x = b.add("Add", b.conv(x, base, base, SQUARE, gain=1.0), first)
    x = b.conv(x, base, 3 * times * times, SQUARE, gain=1.0)
    x = b.add("DepthToSpace", x, blocksize=times, mode="CRD")
    scales = b.constant((1, 1, times, times), np.float32)
    plain = b.add("Resize", image, "", scales, mode="cubic", coordinate_transformation_mode="half_pixel")
    b.output(
        b.add("Clip", b.add("Add", x, plain), b.constant(-4.0, np.float32), b.constant(4.0, np.float32)),
        "larger",
    )
    return b.model()
