"""A detector of the YOLO family, node for node much as exporters write one, with seeded weights."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from benchmarks.models.builder import Builder

SQUARE = (3, 3)
GAIN = 2.8
BINS = 16
"""The distance to a side of a box is a weighted mean of this many values (Li et al. 2020)."""


def yolo(side: int = 640, base: int = 32, depth: int = 1, classes: int = 80) -> ModelProto:
    """A detector like YOLOv8 (Jocher et al. 2023), with an output of (1, 4 + classes, places).

    It has a backbone of cross-stage parts, a pyramid up and down, heads without anchors, and boxes decoded in
    the model. With base 32 it has the widths of the small variant, 28.6 GFLOPs at 640x640.
    """
    b = Builder("yolo")
    x = _conv(b, b.input("images", (1, 3, side, side)), 3, base, SQUARE, stride=2)
    ins, found = base, []
    for level, blocks in enumerate((depth, 2 * depth, 2 * depth, depth)):
        outs = base << (level + 1)
        x = _conv(b, x, ins, outs, SQUARE, stride=2)
        x, ins = _parts(b, x, outs, outs, blocks, True), outs
        found.append(x)
    _, eighth, sixteenth, last = found
    low = _pooled(b, last, ins)
    half, quarter = ins // 2, ins // 4
    middle = _parts(b, _beside(b, _twice_as_large(b, low), sixteenth), ins + half, half, depth, False)
    high = _parts(b, _beside(b, _twice_as_large(b, middle), eighth), half + quarter, quarter, depth, False)
    down = _conv(b, high, quarter, quarter, SQUARE, stride=2)
    middle = _parts(b, _beside(b, down, middle), quarter + half, half, depth, False)
    down = _conv(b, middle, half, half, SQUARE, stride=2)
    low = _parts(b, _beside(b, down, low), half + ins, ins, depth, False)
    levels = ((high, quarter, 8), (middle, half, 16), (low, ins, 32))
    heads = [_head(b, x, channels, quarter, classes, side // stride) for x, channels, stride in levels]
    boxes, scores = (b.add("Concat", *parts, axis=2) for parts in zip(*heads, strict=True))
    b.output(
        b.add("Concat", _decoded(b, boxes, side), b.add("Sigmoid", scores), axis=1),
        "detections",
    )
    return b.model()


def _conv(b: Builder, x: str, ins: int, outs: int, kernel: tuple[int, int], stride: int = 1) -> str:
    """Convolve and apply x * sigmoid(x), with weights that keep the output about as large as the input."""
    x = b.conv(x, ins, outs, kernel, stride=stride, gain=GAIN)
    return b.add("Mul", x, b.add("Sigmoid", x))


def _beside(b: Builder, *values: str) -> str:
    return b.add("Concat", *values, axis=1)


def _parts(b: Builder, x: str, ins: int, outs: int, count: int, adds: bool) -> str:
    """Send half of the channels through `count` bottlenecks, and concatenate all intermediate results with
    the other half."""
    half = outs // 2
    x = _conv(b, x, ins, outs, (1, 1))
    parts = list(b.many("Split", 2, x, b.constant((half, half)), axis=1))
    for _ in range(count):
        y = _conv(b, parts[-1], half, half, SQUARE)
        y = _conv(b, y, half, half, SQUARE)
        parts.append(b.add("Add", parts[-1], y) if adds else y)
    return _conv(b, _beside(b, *parts), half * len(parts), outs, (1, 1))


def _pooled(b: Builder, x: str, channels: int) -> str:
    """Concatenate maxima over increasingly large neighbourhoods."""
    half = channels // 2
    parts = [_conv(b, x, channels, half, (1, 1))]
    for _ in range(3):
        parts.append(b.add("MaxPool", parts[-1], kernel_shape=(5, 5), strides=(1, 1), pads=(2, 2, 2, 2)))
    return _conv(b, _beside(b, *parts), 4 * half, channels, (1, 1))


def _twice_as_large(b: Builder, x: str) -> str:
    scales = b.constant((1, 1, 2, 2), np.float32)
    return b.add(
        "Resize",
        x,
        "",
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def _head(b: Builder, x: str, channels: int, narrow: int, classes: int, side: int) -> tuple[str, str]:
    """Return a level's predictions for its places: (1, 4 x BINS, places) for boxes and (1, classes, places)."""
    for_box, for_class = max(16, narrow // 2, 4 * BINS), max(narrow, min(classes, 100))
    said = []
    # Boxes have a larger gain: else random weights would make all bins about equally likely, and boxes would
    # hardly depend on the picture.
    for inner, outs, gain in ((for_box, 4 * BINS, 8.0), (for_class, classes, 1.0)):
        y = _conv(b, x, channels, inner, SQUARE)
        y = _conv(b, y, inner, inner, SQUARE)
        said.append(b.reshape(b.conv(y, inner, outs, (1, 1), gain=gain), 1, outs, side * side))
    return said[0], said[1]


def _decoded(b: Builder, boxes: str, side: int) -> str:
    """Return the centre and size of each box in pixels, from the distances of its sides to the centre of its
    place."""
    counts = [side // stride for stride in (8, 16, 32)]
    places = sum(count * count for count in counts)
    bins = b.add("Softmax", b.transpose(b.reshape(boxes, 1, 4, BINS, places), 0, 2, 1, 3), axis=1)
    weights = b.constant(np.arange(BINS).reshape(1, BINS, 1, 1), np.float32)
    distances = b.reshape(b.add("Conv", bins, weights, kernel_shape=(1, 1)), 1, 4, places)
    before, after = b.many("Split", 2, distances, b.constant((2, 2)), axis=1)
    grids = [np.stack(np.meshgrid(np.arange(n), np.arange(n))).reshape(2, -1) + 0.5 for n in counts]
    anchors = b.constant(np.concatenate(grids, axis=1)[None], np.float32)
    low, high = b.add("Sub", anchors, before), b.add("Add", anchors, after)
    middle = b.add("Div", b.add("Add", low, high), b.constant(2.0, np.float32))
    strides = np.repeat(np.array([8, 16, 32]), [count * count for count in counts])[None, None]
    return b.add("Mul", _beside(b, middle, b.add("Sub", high, low)), b.constant(strides, np.float32))
