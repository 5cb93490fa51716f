"""Networks for sound: 1-D convolutions, followed by transformers or LSTMs, with seeded weights."""

from __future__ import annotations

import math

import numpy as np
from onnx import ModelProto, TensorProto

from benchmarks.models.builder import Builder


def sound_net(samples: int = 16000, base: int = 64, blocks: int = 6) -> ModelProto:
    """Strided convolutions as for speech features (Schneider et al. 2019), then dilated gated ones (van den
    Oord et al. 2016)."""
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


def whisper(
    layers: int = 4,
    width: int = 384,
    heads: int = 6,
    frames: int = 1000,
    bands: int = 80,
    tokens: int = 16,
    words: int = 8000,
) -> ModelProto:
    """Whisper (Radford et al. 2023) with the widths of its tiny variant: an encoder of the sound, and a
    decoder that attends to it while it reads the text written so far."""
    b = Builder("whisper", opset=20)
    x = b.add("Gelu", b.conv(b.input("mel", (1, bands, frames)), bands, width, (3,)))
    x = b.transpose(b.add("Gelu", b.conv(x, width, width, (3,), stride=2)), 0, 2, 1)
    heard = -(-frames // 2)
    x = b.add("Add", x, b.noise((heard, width), 0.3))
    for _ in range(layers):
        x = _looked(b, x, x, width, heads, "")
        x = _thought(b, x, width)
    heard_text = b.layer_norm(x, width)
    table = b.noise((words, width), 1.0)
    ids = b.input("input_ids", (1, tokens), TensorProto.INT64)
    x = b.add("Add", b.add("Gather", table, ids), b.noise((tokens, width), 0.3))
    later = b.constant(np.triu(np.full((tokens, tokens), -10000.0), 1), np.float32)
    for _ in range(layers):
        x = _looked(b, x, x, width, heads, later)
        x = _looked(b, x, heard_text, width, heads, "")
        x = _thought(b, x, width)
    logits = b.add("MatMul", b.layer_norm(x, width), b.transpose(table, 1, 0))
    b.output(b.scale(logits, width**-0.5), "logits")
    return b.model()


def _looked(b: Builder, x: str, at: str, width: int, heads: int, mask: str) -> str:
    """Add attention of `x` to `at`; self-attention if both are the same."""
    size, y = width // heads, b.layer_norm(x, width)
    seen = y if x == at else at
    query, key, value = (
        b.transpose(b.reshape(b.linear(one, width, width), 0, 0, heads, size), 0, 2, *order)
        for one, order in ((y, (1, 3)), (seen, (3, 1)), (seen, (1, 3)))
    )
    scores = b.scale(b.add("MatMul", query, key), 1 / math.sqrt(size))
    scores = b.add("Add", scores, mask) if mask else scores
    y = b.transpose(b.add("MatMul", b.add("Softmax", scores, axis=-1), value), 0, 2, 1, 3)
    return b.add("Add", x, b.linear(b.reshape(y, 0, 0, width), width, width))


def _thought(b: Builder, x: str, width: int) -> str:
    y = b.add("Gelu", b.linear(b.layer_norm(x, width), width, 4 * width))
    return b.add("Add", x, b.linear(y, 4 * width, width))


def letters(
    frames: int = 200, bands: int = 40, hidden: int = 256, layers: int = 2, signs: int = 32
) -> ModelProto:
    """A network that says which letter is heard when (Amodei et al. 2016).

    It has convolutions over time and pitch, bidirectional LSTMs, and the logarithm of each letter's
    probability as output.
    """
    b = Builder("letters", opset=17)
    x, low = b.input("mel", (1, 1, bands, frames)), bands
    ins = 1
    for outs in (16, 32):
        x = b.add("Relu", b.conv(x, ins, outs, (3, 3), stride=2))
        ins, low, frames = outs, -(-low // 2), -(-frames // 2)
    x = b.reshape(b.transpose(x, 3, 0, 1, 2), frames, 1, ins * low)
    wide = ins * low
    for _ in range(layers):
        w, r = (b.noise((2, 4 * hidden, n), math.sqrt(1 / n)) for n in (wide, hidden))
        bias = b.noise((2, 8 * hidden), 0.05)
        y = b.many("LSTM", 3, x, w, r, bias, hidden_size=hidden, direction="bidirectional")[0]
        x, wide = b.reshape(b.transpose(y, 0, 2, 1, 3), frames, 1, 2 * hidden), 2 * hidden
    b.output(b.add("LogSoftmax", b.linear(x, wide, signs, gain=16.0), axis=-1), "chances")
    return b.model()
