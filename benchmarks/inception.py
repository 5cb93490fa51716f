"""Inception-v3 (Szegedy et al. 2016) without its auxiliary classifier, with seeded weights; OptCNN was tried with it."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import ModelProto

from benchmarks.models.builder import Builder

Way = Sequence[tuple[int, tuple[int, int]]]
"""Successive convolutions, each with its output channels and kernel."""

FACTORISED = ((1, 7), (7, 1))


def inception_v3(side: int = 299, narrow: int = 1, batch: int = 1) -> ModelProto:
    """Return the model. Channels are divided by `narrow`; batch normalisations are folded into the convolutions."""
    n = _Net(Builder("inception_v3"), narrow)
    x = n.builder.input("pixel_values", (batch, 3, side, side))
    x = n.conv(x, 3, 32, (3, 3), stride=2)
    x = n.conv(x, 32, 32, (3, 3), padded=False)
    x = n.pool(n.conv(x, 32, 64, (3, 3)))
    x = n.conv(x, 64, 80, (1, 1))
    x, ins = n.pool(n.conv(x, 80, 192, (3, 3), padded=False)), 192
    for pooled in (32, 64, 64):
        ways = [[(64, (1, 1))], [(48, (1, 1)), (64, (5, 5))], [(64, (1, 1)), (96, (3, 3)), (96, (3, 3))]]
        x, ins = n.module(x, ins, ways, pooled)
    x, ins = n.reduction(x, ins, [[(384, (3, 3))], [(64, (1, 1)), (96, (3, 3)), (96, (3, 3))]])
    for inner in (128, 160, 160, 192):
        seven = [(inner, kernel) for kernel in FACTORISED]
        ways = [[(192, (1, 1))], [(inner, (1, 1)), seven[0], (192, (7, 1))]]
        ways.append([(inner, (1, 1)), *seven[::-1], seven[1], (192, (1, 7))])
        x, ins = n.module(x, ins, ways, 192)
    last: list[Way] = [[(192, (1, 1)), (320, (3, 3))]]
    last.append([(192, (1, 1)), *((192, kernel) for kernel in FACTORISED), (192, (3, 3))])
    x, ins = n.reduction(x, ins, last)
    for _ in range(2):
        x, ins = n.wide(x, ins)
    b = n.builder
    pooled_all = b.add("Flatten", b.add("GlobalAveragePool", x), axis=1)
    b.output(b.gemm(pooled_all, ins // narrow, 1000), "logits")
    return b.model()


class _Net:
    """Adds parts of the network to a graph. Numbers of channels are given undivided."""

    def __init__(self, builder: Builder, narrow: int) -> None:
        self.builder = builder
        self.narrow = narrow

    def conv(
        self, x: str, ins: int, outs: int, kernel: tuple[int, int], stride: int = 1, padded: bool = True
    ) -> str:
        """Add a convolution, which is padded if its stride is 1 unless not `padded`."""
        b = self.builder
        ins = ins if ins == 3 else ins // self.narrow
        padded = padded and stride == 1
        return b.add("Relu", b.conv(x, ins, outs // self.narrow, kernel, stride=stride, padded=padded))

    def pool(self, x: str) -> str:
        return self.builder.add("MaxPool", x, kernel_shape=(3, 3), strides=(2, 2))

    def way(self, x: str, ins: int, way: Way, stride: int = 1) -> str:
        for n, (outs, kernel) in enumerate(way):
            x, ins = self.conv(x, ins, outs, kernel, stride if n == len(way) - 1 else 1), outs
        return x

    def module(self, x: str, ins: int, ways: Sequence[Way], pooled: int) -> tuple[str, int]:
        """Add parallel branches, and a pool with a 1 x 1 convolution; return the tensor and its channels."""
        made = [self.way(x, ins, way) for way in ways]
        flat = self.builder.add("AveragePool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
        made.append(self.conv(flat, ins, pooled, (1, 1)))
        return self.joined(made), sum(way[-1][0] for way in ways) + pooled

    def reduction(self, x: str, ins: int, ways: Sequence[Way]) -> tuple[str, int]:
        """Add branches that each halve height and width, and a pool that does the same; return the tensor and
        its channels."""
        made = [self.way(x, ins, way, stride=2) for way in ways]
        return self.joined([*made, self.pool(x)]), sum(way[-1][0] for way in ways) + ins

    def wide(self, x: str, ins: int) -> tuple[str, int]:
        """Add one of the last modules, in which two branches end in two parallel convolutions."""
        made = [self.way(x, ins, [(320, (1, 1))])]
        for way in ([(384, (1, 1))], [(448, (1, 1)), (384, (3, 3))]):
            y = self.way(x, ins, way)
            made += [self.conv(y, 384, 384, (1, 3)), self.conv(y, 384, 384, (3, 1))]
        flat = self.builder.add("AveragePool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
        made.append(self.conv(flat, ins, 192, (1, 1)))
        return self.joined(made), 320 + 4 * 384 + 192

    def joined(self, made: Sequence[str]) -> str:
        return self.builder.add("Concat", *made, axis=1)
