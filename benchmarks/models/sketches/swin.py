"""Swin transformer (Liu et al. 2021): attention inside windows of a picture, shifted by half a window in
every second layer.

The paper's models have four stages, each of half the resolution and twice the width of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.models.sketches.attention import attention, dense
from benchmarks.models.sketches.sketch import Sketch
from edgepart.planner.model.graph import Graph

SIDE = 1100
"""Side of the picture, as in Moirai, section IV-A."""
PATCH, WINDOW = 4, 7
CLASSES = 1000


def swin(depths: Sequence[int], width: int, heads: int, side: int = SIDE, window: int = WINDOW) -> Graph:
    """`width` is that of the first stage. All stages have the same number of heads, in accordance with
    Moirai's counts of operators."""
    s = Sketch("swin")
    x = _patches(s, s.input("pixel_values", 1, 3, side, side), width)
    for stage, depth in enumerate(depths):
        if stage:
            x = _merged(s, x)
        for layer in range(depth):
            x = _layer(s, x, heads, window, shifted=layer % 2 == 1)
    x = s.layer_norm(x)
    _, _, _, last = s.shape(x)
    x = s.add("ReduceMean", (1, last), x, s.integers(1, 2), keepdims=0)
    return s.graph(s.add("Gemm", (1, CLASSES), x, s.weight(last, CLASSES), s.weight(CLASSES)))


def _patches(s: Sketch, picture: str, width: int) -> str:
    """Embed the picture's patches: [1, height, width in patches, channels]."""
    _, channels, height, _ = s.shape(picture)
    side = height // PATCH
    kernel = s.weight(width, channels, PATCH, PATCH)
    x = s.add(
        "Conv", (1, width, side, side), picture, kernel, s.weight(width),
        kernel_shape=[PATCH, PATCH], strides=[PATCH, PATCH],
    )  # fmt: skip
    return s.layer_norm(s.transpose(x, 0, 2, 3, 1))


def _merged(s: Sketch, x: str) -> str:
    """Merge each square of four places into one of twice the width; an odd side is padded."""
    _, side, _, width = s.shape(x)
    if side % 2:
        x = s.pad(x, 0, 1, 1, 0)
        side += 1
    rows = [s.slice(x, 1, start, side, 2) for start in range(2)]
    parts = [s.slice(row, 2, start, side, 2) for start in range(2) for row in rows]
    return s.linear(s.layer_norm(s.concat(parts, 3)), 2 * width, bias=False)


def _layer(s: Sketch, x: str, heads: int, window: int, shifted: bool) -> str:
    _, side, _, width = s.shape(x)
    more = -side % window
    y = s.layer_norm(x)
    y = s.pad(y, 0, more, more, 0) if more else y
    y = _rolled(s, y, window // 2) if shifted else y
    count = (side + more) // window
    y = s.transpose(s.reshape(y, count, window, count, window, width), 0, 2, 1, 3, 4)
    y = attention(s, s.reshape(y, count**2, window**2, width), heads, _seen(s, count, window, shifted))
    y = s.transpose(s.reshape(y, count, count, window, window, width), 0, 2, 1, 3, 4)
    y = s.reshape(y, 1, side + more, side + more, width)
    y = _rolled(s, y, side + more - window // 2) if shifted else y
    y = s.slice(s.slice(y, 1, 0, side), 2, 0, side) if more else y
    x = s.each("Add", x, y)
    return s.each("Add", x, dense(s, s.layer_norm(x)))


def _seen(s: Sketch, count: int, window: int, shifted: bool) -> Callable[[], str]:
    """Return a function that adds what is added to a head's scores: its position bias, and in shifted windows the mask.

    Both are one constant, as they are after constant folding.
    """
    size = window**2
    return partial(s.constant, count**2, size, size) if shifted else partial(s.constant, size, size)


def _rolled(s: Sketch, x: str, by: int) -> str:
    """Roll the picture as exporters write it: along each axis two slices, concatenated in swapped order."""
    for axis in (1, 2):
        side = s.shape(x)[axis]
        x = s.concat([s.slice(x, axis, by, side), s.slice(x, axis, 0, by)], axis)
    return x
