"""Families: graphs of costs that are built like models of one kind, drawn at random. Facts and rules only.

Sizes of tensors and amounts of work are those of layers with drawn widths; only their proportions matter to a placer. No
operator is that of a particular model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

FLOAT_BYTES = 4


@dataclass(frozen=True)
class SketchedTask:
    """An operator of a drawn graph, before it has costs on machines."""

    op: str
    inputs: tuple[int, ...]
    """The tasks whose tensor it reads."""
    flops: float
    nbytes: float
    """The bytes of the tensor that it makes."""
    weight_bytes: float


@dataclass
class Sketch:
    """A graph while it is drawn."""

    tasks: list[SketchedTask] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tasks)

    def add(self, op: str, inputs: Sequence[int], flops: float, elements: float, weights: float = 0.0) -> int:
        """Add a task that makes a tensor of so many elements from those of `inputs`; return its number."""
        task = SketchedTask(
            op, tuple(dict.fromkeys(inputs)), flops, FLOAT_BYTES * elements, FLOAT_BYTES * weights
        )
        self.tasks.append(task)
        return len(self.tasks) - 1

    def elements(self, task: int) -> float:
        """The elements of the task's tensor."""
        return self.tasks[task].nbytes / FLOAT_BYTES

    def pointwise(self, op: str, *inputs: int) -> int:
        """Add a task that computes each element from those of its inputs."""
        elements = self.elements(inputs[0])
        return self.add(op, inputs, elements * len(inputs), elements)

    def matmul(self, x: int, rows: int, inner: int, columns: int) -> int:
        """Add a product of (rows, inner) with weights of (inner, columns)."""
        return self.add("MatMul", [x], 2.0 * rows * inner * columns, rows * columns, inner * columns)

    def conv(self, x: int, pixels: int, inner: int, channels: int, kernel: int) -> int:
        """Add a convolution of `inner` to `channels` channels on so many pixels of output."""
        weights = inner * channels * kernel * kernel
        return self.add("Conv", [x], 2.0 * pixels * weights, pixels * channels, weights)

    def join(self, op: str, inputs: Sequence[int]) -> int:
        """Add a task that joins tensors to one with all of their elements."""
        elements = sum(self.elements(one) for one in inputs)
        return self.add(op, inputs, 0.0, elements)


def _draw_branches(sketch: Sketch, random: Random, size: int) -> None:
    """A chain, parts of which are branches side by side."""
    width = random.choice([128, 256, 512])
    rows = random.choice([32, 128, 512])
    x = sketch.add("Input", [], 0.0, rows * width)
    while len(sketch) < size:
        ends = []
        for _ in range(random.choice([1, 1, 2, 3, 4])):
            end = x
            for _ in range(random.randint(1, 6)):
                end = (
                    sketch.matmul(end, rows, width, width)
                    if random.random() < 0.6
                    else sketch.pointwise("Relu", end)
                )
            ends.append(end)
        x = sketch.pointwise("Add", *ends)


def _draw_inception(sketch: Sketch, random: Random, size: int) -> None:
    """Modules of four branches of convolutions, as in GoogLeNet."""
    pixels, channels = random.choice([28, 56]) ** 2, random.choice([64, 128, 192])
    x = sketch.conv(sketch.add("Input", [], 0.0, 16 * pixels), pixels, 4, channels, 7)
    while len(sketch) < size:
        if pixels > 49 and random.random() < 0.2:
            pixels //= 4
            x = sketch.add("MaxPool", [x], 9.0 * pixels * channels, pixels * channels)
        parts = [max(8, int(channels * random.uniform(0.15, 0.5))) for _ in range(4)]
        narrow = max(8, channels // random.choice([2, 4]))
        deep = random.choice([1, 2])
        ends = [sketch.conv(x, pixels, channels, parts[0], 1)]
        for branch, kernel in ((1, 3), (2, random.choice([3, 5]))):
            end = sketch.pointwise("Relu", sketch.conv(x, pixels, channels, narrow, 1))
            for _ in range(deep if branch == 2 else 1):
                end = sketch.pointwise("Relu", sketch.conv(end, pixels, narrow, parts[branch], kernel))
                narrow = parts[branch]
            ends.append(end)
        pool = sketch.add("MaxPool", [x], 9.0 * pixels * channels, pixels * channels)
        ends.append(sketch.conv(pool, pixels, channels, parts[3], 1))
        x, channels = sketch.join("Concat", ends), sum(parts)
        if channels > 1024:
            x, channels = sketch.conv(x, pixels, channels, 256, 1), 256


def _draw_attention(sketch: Sketch, random: Random, size: int) -> None:
    """Blocks of attention, each head by itself, and of a feed-forward layer."""
    width, heads, rows = (
        random.choice([256, 512, 1024]),
        random.choice([2, 4, 8]),
        random.choice([64, 256, 512]),
    )
    x = sketch.add("Input", [], 0.0, rows * width)
    while len(sketch) < size:
        x = _attend(sketch, x, x, rows, width, heads)
        hidden = sketch.pointwise("Gelu", sketch.matmul(x, rows, width, 4 * width))
        x = sketch.pointwise("Add", sketch.matmul(hidden, rows, 4 * width, width), x)


def _attend(sketch: Sketch, x: int, memory: int, rows: int, width: int, heads: int) -> int:
    """Add a block of attention from the rows of `x` to those of `memory`."""
    each, ends = width // heads, []
    normal = sketch.pointwise("LayerNormalization", x)
    for _ in range(heads):
        query = sketch.matmul(normal, rows, width, each)
        key, value = (sketch.matmul(normal if memory == x else memory, rows, width, each) for _ in range(2))
        scores = sketch.add("MatMul", [query, key], 2.0 * rows * rows * each, rows * rows)
        weights = sketch.pointwise("Softmax", scores)
        ends.append(sketch.add("MatMul", [weights, value], 2.0 * rows * rows * each, rows * each))
    return sketch.pointwise("Add", sketch.matmul(sketch.join("Concat", ends), rows, width, width), x)


def _draw_unet(sketch: Sketch, random: Random, size: int) -> None:
    """Hourglasses with a connection across at each level, one behind another."""
    pixels, channels = random.choice([64, 128]) ** 2, random.choice([16, 32])
    x = sketch.conv(sketch.add("Input", [], 0.0, 3 * pixels), pixels, 3, channels, 3)
    while len(sketch) < size:
        across, deep = [], random.choice([3, 4])
        for _ in range(deep):
            for _ in range(random.choice([2, 3])):
                x = sketch.pointwise("Relu", sketch.conv(x, pixels, channels, channels, 3))
            across.append(x)
            pixels, channels = pixels // 4, channels * 2
            x = sketch.conv(x, pixels, channels // 2, channels, 2)
        for skipped in reversed(across):
            pixels, channels = pixels * 4, channels // 2
            x = sketch.conv(x, pixels, channels * 2, channels, 2)
            x = sketch.join("Concat", [x, skipped])
            x = sketch.pointwise("Relu", sketch.conv(x, pixels, 2 * channels, channels, 3))


def _draw_cells(sketch: Sketch, random: Random, size: int) -> None:
    """One drawn cell again and again, each reading from the two before it, as searches for architectures find them."""
    pixels, channels, nodes = random.choice([16, 32]) ** 2, random.choice([32, 64, 128]), random.randint(4, 7)
    cell = [
        [(random.randrange(node + 2), random.choice([1, 3, 5, 0])) for _ in range(2)] for node in range(nodes)
    ]
    before = x = sketch.conv(sketch.add("Input", [], 0.0, 3 * pixels), pixels, 3, channels, 3)
    while len(sketch) < size:
        made = [before, x]
        read: set[int] = set()
        for pairs in cell:
            ends = []
            for which, kernel in pairs:
                read.add(which)
                if kernel:
                    ends.append(sketch.conv(made[which], pixels, channels, channels, kernel))
                else:
                    ends.append(
                        sketch.add("MaxPool", [made[which]], 9.0 * pixels * channels, pixels * channels)
                    )
            made.append(sketch.pointwise("Add", *ends))
        loose = [made[n] for n in range(2, len(made)) if n not in read]
        joined = sketch.join("Concat", loose)
        before, x = x, sketch.conv(joined, pixels, channels * len(loose), channels, 1)


def _draw_sequence(sketch: Sketch, random: Random, size: int) -> None:
    """Recurrent layers over the steps of a sequence; half of them with a decoder that attends to all steps."""
    width, rows, layers = random.choice([256, 512, 1024]), random.choice([1, 8, 32]), random.randint(1, 4)
    attends = random.random() < 0.5
    each = layers * 3 * (2 if attends else 1) + (3 if attends else 1)
    steps = max(2, size // each)
    states = _unroll(
        sketch, [sketch.add("Input", [], 0.0, rows * width) for _ in range(steps)], layers, rows, width
    )
    if attends:
        memory = sketch.join("Concat", states)
        inputs = []
        for _ in range(steps):
            scores = sketch.add("MatMul", [memory], 2.0 * rows * steps * width, rows * steps)
            inputs.append(
                sketch.add(
                    "MatMul", [sketch.pointwise("Softmax", scores)], 2.0 * rows * steps * width, rows * width
                )
            )
        states = _unroll(sketch, inputs, layers, rows, width)
    for state in states:
        sketch.matmul(state, rows, width, 4 * width)


def _unroll(sketch: Sketch, inputs: list[int], layers: int, rows: int, width: int) -> list[int]:
    """Add recurrent layers over `inputs`, one for each step; return the last layer's outputs."""
    for _ in range(layers):
        state: list[int] = []
        for x in inputs:
            read = [x, *state[-1:]]
            gates = sketch.add(
                "Gemm", read, 16.0 * rows * width * width, 4 * rows * width, 8 * width * width / len(inputs)
            )
            cell = sketch.add("Sigmoid", [gates], 4.0 * rows * width, rows * width)
            state.append(sketch.pointwise("Mul", cell))
        inputs = state
    return inputs


def _draw_experts(sketch: Sketch, random: Random, size: int) -> None:
    """Blocks of attention and of feed-forward experts side by side behind a gate."""
    width, rows, experts = random.choice([256, 512]), random.choice([64, 256]), random.choice([4, 8, 16])
    x = sketch.add("Input", [], 0.0, rows * width)
    while len(sketch) < size:
        x = _attend(sketch, x, x, rows, width, random.choice([1, 2]))
        gate = sketch.pointwise("Softmax", sketch.matmul(x, rows, width, experts))
        ends = []
        for _ in range(experts):
            share = max(1, int(rows * random.uniform(0.5, 2) / experts))
            routed = sketch.add("Gather", [x, gate], 0.0, share * width)
            ends.append(
                sketch.matmul(sketch.matmul(routed, share, width, 4 * width), share, 4 * width, width)
            )
        x = sketch.add("Add", [x, gate, *ends], float(rows * width * 2), rows * width)


FAMILIES: Mapping[str, Callable[[Sketch, Random, int], None]] = MappingProxyType(
    {
        "branches": _draw_branches,
        "inception": _draw_inception,
        "attention": _draw_attention,
        "unet": _draw_unet,
        "sequence": _draw_sequence,
        "experts": _draw_experts,
        "cells": _draw_cells,
    }
)
"""What draws a graph of each family, until it has about so many tasks."""

HELD_OUT = "cells"
"""The family that nothing is trained on."""


def draw_sketch(family: str, random: Random, size: int) -> tuple[SketchedTask, ...]:
    """Return a graph of the family with about `size` tasks."""
    sketch = Sketch()
    FAMILIES[family](sketch, random, size)
    return tuple(sketch.tasks)
