"""A network for sound: 1-D convolutions, strided and dilated, with seeded weights."""

from __future__ import annotations

from onnx import ModelProto

from benchmarks.models.builder import Builder


def sound_net(samples: int = 16000, base: int = 64, blocks: int = 6) -> ModelProto:
    """Strides as speech features are made (Schneider et al. 2019), then dilated gates (van den Oord et al. 2016)."""
    b = Builder("sound_net")
    x, ins = b.input("sound", (1, 1, samples)), 1
    for kernel, stride in ((11, 5), (7, 4), (5, 2)):
        x = b.conv(x, ins, base, (kernel,), stride=stride)
        x = b.add("InstanceNormalization", x, b.noise((base,), 0.1, 1.0), b.noise((base,), 0.05))
        x, ins = b.add("LeakyRelu", x, alpha=0.1), base
    for number in range(blocks):
        y = b.conv(x, base, 2 * base, (3,), dilation=1 << number, gain=1.0)
        left, right = b.many("Split", 2, y, b.constant((base, base)), axis=1)
        y = b.add("Mul", b.add("Tanh", left), b.add("Sigmoid", right))
        x = b.add("Add", x, b.conv(y, base, base, (1,), gain=1.0))
    pooled = b.add("Flatten", b.add("GlobalAveragePool", x), axis=1)
    b.output(x, "frames")
    b.output(b.add("Softmax", b.gemm(pooled, base, 20), axis=-1), "classes")
    return b.model()
