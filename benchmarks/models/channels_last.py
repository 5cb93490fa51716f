"""Networks whose channels come last, as frameworks other than torch write them, with seeded weights.

ONNX's convolutions take channels second, so each of them has a Transpose before and after it.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from benchmarks.models.builder import Builder

GAIN = 2.8
"""Keeps the output of x * sigmoid(x) about as large as its input."""


def _conv(
    b: Builder, x: str, ins: int, outs: int, side: int, *, stride: int = 1, group: int = 1, gain: float = 1.0
) -> str:
    """Convolve a tensor whose channels come last."""
    y = b.conv(b.transpose(x, 0, 3, 1, 2), ins, outs, (side, side), stride=stride, group=group, gain=gain)
    return b.transpose(y, 0, 2, 3, 1)


def _swish(b: Builder, x: str) -> str:
    return b.add("Mul", x, b.add("Sigmoid", x))


def detector(side: int = 416, base: int = 24, classes: int = 80) -> ModelProto:
    """A detector like YOLO (Redmon et al. 2016), as a converter from TensorFlow leaves it.

    It has separable convolutions, a pyramid resized with channels last, and boxes and scores from the last
    axis. The outputs are (1, places, 4) and (1, places, classes).
    """
    b = Builder("detector_nhwc")
    x = _swish(b, _conv(b, b.input("images", (1, side, side, 3)), 3, base, 3, stride=2, gain=GAIN))
    ins, found = base, []
    for level in range(4):
        outs = base << (level + 1)
        y = _conv(b, x, ins, ins, 3, stride=2, group=ins, gain=1.0)
        x, ins = _swish(b, _conv(b, y, ins, outs, 1, gain=GAIN)), outs
        y = _swish(b, _conv(b, x, outs, outs, 3, group=outs, gain=GAIN))
        x = b.add("Add", x, _conv(b, y, outs, outs, 1))
        found.append(x)
    scales = b.constant((1, 2, 2, 1), np.float32)
    larger = b.add(
        "Resize",
        x,
        "",
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    beside = b.add("Concat", larger, found[-2], axis=3)
    both = _swish(b, _conv(b, beside, ins + ins // 2, ins // 2, 3, gain=GAIN))
    heads = [_head(b, one, width, classes) for one, width in ((both, ins // 2), (x, ins))]
    boxes, scores = (b.add("Concat", *parts, axis=1) for parts in zip(*heads, strict=True))
    b.output(boxes, "boxes")
    b.output(scores, "scores")
    return b.model()


def _head(b: Builder, x: str, width: int, classes: int) -> tuple[str, str]:
    y = b.reshape(_conv(b, x, width, 4 + classes, 1), 1, -1, 4 + classes)
    box, kind = b.many("Split", 2, y, b.constant((4, classes)), axis=-1)
    return b.add("Exp", b.add("Tanh", box)), b.add("Softmax", kind, axis=-1)


def convnext(
    side: int = 224, widths: tuple[int, ...] = (96, 192, 384, 768), depths: tuple[int, ...] = (3, 3, 9, 3)
) -> ModelProto:
    """ConvNeXt (Liu et al. 2022): wide depthwise convolutions; all operators between them have channels last."""
    b = Builder("convnext", opset=20)
    x, ins = b.transpose(b.input("pixel_values", (1, 3, side, side)), 0, 2, 3, 1), 3
    for stage, (outs, depth) in enumerate(zip(widths, depths, strict=True)):
        x = _patches(b, x, ins, outs, 2 if stage else 4)
        ins = outs
        for _ in range(depth):
            y = b.layer_norm(_conv(b, x, outs, outs, 7, group=outs), outs)
            y = b.linear(b.add("Gelu", b.linear(y, outs, 4 * outs)), 4 * outs, outs)
            x = b.add("Add", x, b.add("Mul", y, b.noise((outs,), 0.1, 0.5)))
    pooled = b.add("ReduceMean", x, b.constant((1, 2)), keepdims=0)
    b.output(b.gemm(b.layer_norm(pooled, ins), ins, 1000 if ins == 768 else 10), "logits")
    return b.model()


def _patches(b: Builder, x: str, ins: int, outs: int, size: int) -> str:
    """Divide the picture into square patches of that size, and return a vector of `outs` channels for each."""
    weight = b.noise((outs, ins, size, size), (1 / (ins * size * size)) ** 0.5)
    y = b.transpose(x, 0, 3, 1, 2)
    y = b.add("Conv", y, weight, b.noise((outs,), 0.05), kernel_shape=(size, size), strides=(size, size))
    return b.layer_norm(b.transpose(y, 0, 2, 3, 1), outs)
