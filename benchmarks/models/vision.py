"""Standard networks for images and films, node for node much as torch exports them, with seeded weights.

Batch normalisation is folded into the preceding convolutions if exporters do so.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import ModelProto

from benchmarks.models.builder import Builder

SQUARE = (3, 3)


def resnet50(
    side: int = 224, base: int = 64, batch: int | str = 1, blocks: tuple[int, ...] = (3, 4, 6, 3)
) -> ModelProto:
    """ResNet-50 (He et al. 2016), with bottlenecks."""
    b = Builder("resnet50")
    x = b.input("pixel_values", (batch, 3, side, side))
    x = b.add("Relu", b.conv(x, 3, base, (7, 7), stride=2))
    x = b.add("MaxPool", x, kernel_shape=SQUARE, strides=(2, 2), pads=(1, 1, 1, 1))
    ins = base
    for stage, count in enumerate(blocks):
        inner = base << stage
        for number in range(count):
            stride = 2 if stage and not number else 1
            x, ins = _bottleneck(b, x, ins, inner, stride), inner * 4
    b.output(_head(b, x, ins, 1000 if base == 64 else 10), "logits")
    return b.model()


def _bottleneck(b: Builder, x: str, ins: int, inner: int, stride: int) -> str:
    y = b.add("Relu", b.conv(x, ins, inner, (1, 1)))
    y = b.add("Relu", b.conv(y, inner, inner, SQUARE, stride=stride))
    y = b.conv(y, inner, inner * 4, (1, 1), gain=0.5)
    if stride > 1 or ins != inner * 4:
        x = b.conv(x, ins, inner * 4, (1, 1), stride=stride, gain=1.0)
    return b.add("Relu", b.add("Add", y, x))


def _head(b: Builder, x: str, channels: int, classes: int) -> str:
    pooled = b.add("Flatten", b.add("GlobalAveragePool", x), axis=1)
    return b.gemm(pooled, channels, classes)


def mobilenet_v2(side: int = 224, narrow: int = 1) -> ModelProto:
    """MobileNetV2 (Sandler et al. 2018); channels are divided by `narrow`."""
    b = Builder("mobilenet_v2")
    x = b.input("pixel_values", (1, 3, side, side))
    ins = 32 // narrow
    x = _clipped(b, b.conv(x, 3, ins, SQUARE, stride=2))
    stages = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for expand, outs, count, stride in stages:
        for number in range(count):
            x = _inverted(b, x, ins, outs // narrow, expand, stride if not number else 1)
            ins = outs // narrow
    last = 1280 // narrow
    x = _clipped(b, b.conv(x, ins, last, (1, 1)))
    pooled = b.add("ReduceMean", x, b.constant((2, 3)), keepdims=0)
    b.output(b.gemm(pooled, last, 1000 // narrow), "logits")
    return b.model()


def _clipped(b: Builder, x: str) -> str:
    return b.add("Clip", x, b.constant(0.0, np.float32), b.constant(6.0, np.float32))


def _inverted(b: Builder, x: str, ins: int, outs: int, expand: int, stride: int) -> str:
    inner = ins * expand
    y = _clipped(b, b.conv(x, ins, inner, (1, 1))) if expand > 1 else x
    y = _clipped(b, b.conv(y, inner, inner, SQUARE, stride=stride, group=inner))
    y = b.conv(y, inner, outs, (1, 1), gain=1.0)
    return b.add("Add", x, y) if stride == 1 and ins == outs else y


def shufflenet_v2(side: int = 224, widths: tuple[int, ...] = (116, 232, 464), last: int = 1024) -> ModelProto:
    """ShuffleNet V2 (Ma et al. 2018): halves of the channels, depthwise convolutions, a shuffle after every unit."""
    b = Builder("shufflenet_v2")
    ins = 24
    x = b.add("Relu", b.conv(b.input("pixel_values", (1, 3, side, side)), 3, ins, SQUARE, stride=2))
    x = b.add("MaxPool", x, kernel_shape=SQUARE, strides=(2, 2), pads=(1, 1, 1, 1))
    at = side // 4
    for outs, count in zip(widths, (4, 8, 4), strict=True):
        at //= 2
        for number in range(count):
            half = outs // 2
            if number:
                left, right = b.many("Split", 2, x, b.constant((half, half)), axis=1)
                right = _unit(b, right, half, half, 1)
            else:
                y = b.conv(x, ins, ins, SQUARE, stride=2, group=ins, gain=1.0)
                left, right = b.add("Relu", b.conv(y, ins, half, (1, 1))), _unit(b, x, ins, half, 2)
            x = _shuffled(b, b.add("Concat", left, right, axis=1), outs, at)
            ins = outs
    x = b.add("Relu", b.conv(x, ins, last, (1, 1)))
    b.output(_head(b, x, last, 1000), "logits")
    return b.model()


def _unit(b: Builder, x: str, ins: int, outs: int, stride: int) -> str:
    y = b.add("Relu", b.conv(x, ins, outs, (1, 1)))
    y = b.conv(y, outs, outs, SQUARE, stride=stride, group=outs, gain=1.0)
    return b.add("Relu", b.conv(y, outs, outs, (1, 1)))


def _shuffled(b: Builder, x: str, channels: int, side: int) -> str:
    y = b.reshape(x, 1, 2, channels // 2, side, side)
    return b.reshape(b.transpose(y, 0, 2, 1, 3, 4), 1, channels, side, side)


def unet(side: int = 256, base: int = 32, depth: int = 4) -> ModelProto:
    """U-Net (Ronneberger et al. 2015): a way down, and a way up that concatenates the results of the way down."""
    b = Builder("unet")
    x, ins = b.input("image", (1, 3, side, side)), 3
    seen: list[str] = []
    for level in range(depth):
        x, ins = _twice(b, x, ins, base << level), base << level
        seen.append(x)
        x = b.add("MaxPool", x, kernel_shape=(2, 2), strides=(2, 2))
    x, ins = _twice(b, x, ins, base << depth), base << depth
    for level in reversed(range(depth)):
        outs = base << level
        weight = b.noise((ins, outs, 2, 2), math.sqrt(1 / ins))
        x = b.add("ConvTranspose", x, weight, b.noise((outs,), 0.05), kernel_shape=(2, 2), strides=(2, 2))
        x, ins = _twice(b, b.add("Concat", seen[level], x, axis=1), 2 * outs, outs), outs
    b.output(b.add("Sigmoid", b.conv(x, ins, 1, (1, 1), gain=1.0)), "mask")
    return b.model()


def _twice(b: Builder, x: str, ins: int, outs: int) -> str:
    y = b.add("Relu", b.conv(x, ins, outs, SQUARE))
    return b.add("Relu", b.conv(y, outs, outs, SQUARE))


def film(frames: int = 16, side: int = 64, base: int = 32) -> ModelProto:
    """A residual network of 3-D convolutions (Tran et al. 2018), with its batch normalisations."""
    b = Builder("film")
    cube = (3, 3, 3)
    x = b.input("film", (1, 3, frames, side, side))
    x = b.add("Relu", b.batch_norm(b.conv(x, 3, base, (3, 7, 7), stride=2), base))
    x = b.add("MaxPool", x, kernel_shape=cube, strides=(1, 2, 2), pads=(1,) * 6)
    ins = base
    for stage in range(3):
        outs, stride = base << stage, 2 if stage else 1
        y = b.add("Relu", b.batch_norm(b.conv(x, ins, outs, cube, stride=stride), outs))
        y = b.batch_norm(b.conv(y, outs, outs, cube, gain=0.5), outs)
        if stage:
            x = b.conv(x, ins, outs, (1, 1, 1), stride=stride, gain=1.0)
        x, ins = b.add("Relu", b.add("Add", x, y)), outs
    b.output(_head(b, x, ins, 100), "logits")
    return b.model()


def efficientnet(side: int = 224, narrow: int = 1, deep: int = 6) -> ModelProto:
    """EfficientNet (Tan and Le 2019): inverted bottlenecks whose channels are weighted by a global average of
    the picture; the first `deep` of its stages."""
    b = Builder("efficientnet")
    x, ins = b.input("pixel_values", (1, 3, side, side)), 32 // narrow
    x = _swish(b, b.conv(x, 3, ins, SQUARE, stride=2))
    stages = (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
    )
    for expand, wide, count, stride, kernel in stages[:deep]:
        outs = wide // narrow
        for number in range(count):
            x = _weighed(b, x, ins, outs, expand, kernel, stride if not number else 1)
            ins = outs
    last = 1280 // narrow
    b.output(_head(b, _swish(b, b.conv(x, ins, last, (1, 1))), last, 1000 // narrow), "logits")
    return b.model()


def _swish(b: Builder, x: str) -> str:
    return b.add("Mul", x, b.add("Sigmoid", x))


def _weighed(b: Builder, x: str, ins: int, outs: int, expand: int, kernel: int, stride: int) -> str:
    inner, few = ins * expand, max(1, ins // 4)
    y = _swish(b, b.conv(x, ins, inner, (1, 1))) if expand > 1 else x
    y = _swish(b, b.conv(y, inner, inner, (kernel, kernel), stride=stride, group=inner))
    said = _swish(b, b.conv(b.add("GlobalAveragePool", y), inner, few, (1, 1)))
    y = b.add("Mul", y, b.add("Sigmoid", b.conv(said, few, inner, (1, 1))))
    y = b.conv(y, inner, outs, (1, 1), gain=4.0)
    return b.add("Add", x, y) if stride == 1 and ins == outs else y
