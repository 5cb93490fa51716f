"""Standard transformers, node for node much as exporters write them, with seeded weights."""

from __future__ import annotations

import math

import numpy as np
from onnx import ModelProto, TensorProto

from benchmarks.models.builder import Builder

INT64 = TensorProto.INT64


def bert(
    layers: int = 12, width: int = 768, heads: int = 12, tokens: int = 128, words: int = 30522
) -> ModelProto:
    """BERT (Devlin et al. 2019): an encoder with a mask and a pooled output."""
    b = Builder("bert")
    ids = b.input("input_ids", (1, tokens), INT64)
    kinds = b.input("token_type_ids", (1, tokens), INT64)
    mask = _additive_mask(b, b.input("attention_mask", (1, tokens), INT64))
    found = b.add("Gather", b.noise((words, width), 1.0), ids)
    found = b.add("Add", found, b.add("Gather", b.noise((2, width), 0.3), kinds))
    x = b.layer_norm(b.add("Add", found, b.noise((1, tokens, width), 0.3)), width)
    for _ in range(layers):
        y = _attention(b, x, width, heads, mask)
        x = b.layer_norm(b.add("Add", y, x), width)
        y = b.linear(_gelu(b, b.linear(x, width, 4 * width)), 4 * width, width)
        x = b.layer_norm(b.add("Add", y, x), width)
    b.output(x, "last_hidden_state")
    first = b.add("Gather", x, b.constant(0), axis=1)
    b.output(b.add("Tanh", b.gemm(first, width, width)), "pooler_output")
    return b.model()


def _gelu(b: Builder, x: str) -> str:
    """Apply Gelu as exporters write it for opsets without a Gelu operator."""
    y = b.add("Erf", b.add("Div", x, b.constant(math.sqrt(2), np.float32)))
    return b.scale(b.add("Mul", x, b.add("Add", y, b.constant(1.0, np.float32))), 0.5)


def _additive_mask(b: Builder, mask: str) -> str:
    wide = b.add("Unsqueeze", b.add("Unsqueeze", mask, b.constant([1])), b.constant([2]))
    seen = b.add("Cast", wide, to=TensorProto.FLOAT)
    return b.scale(b.add("Sub", b.constant(1.0, np.float32), seen), -10000.0)


def _heads(b: Builder, x: str, count: int, size: int, keys: bool = False) -> str:
    """Reshape [1, tokens, width] to [1, heads, tokens, size], or for keys to [1, heads, size, tokens]."""
    parted = b.reshape(x, 0, 0, count, size)
    return b.transpose(parted, 0, 2, 3, 1) if keys else b.transpose(parted, 0, 2, 1, 3)


def _attention(b: Builder, x: str, width: int, heads: int, mask: str) -> str:
    size = width // heads
    query = _heads(b, b.linear(x, width, width), heads, size)
    key = _heads(b, b.linear(x, width, width), heads, size, keys=True)
    value = _heads(b, b.linear(x, width, width), heads, size)
    scores = b.add("Div", b.add("MatMul", query, key), b.constant(math.sqrt(size), np.float32))
    seen = b.add("MatMul", b.add("Softmax", b.add("Add", scores, mask), axis=-1), value)
    return b.linear(b.reshape(b.transpose(seen, 0, 2, 1, 3), 0, 0, width), width, width)


def vit(layers: int = 12, width: int = 768, heads: int = 12, side: int = 224, patch: int = 16) -> ModelProto:
    """ViT (Dosovitskiy et al. 2021): a picture as a sequence of patches; one product makes queries, keys and
    values."""
    b = Builder("vit", opset=20)
    count, size = (side // patch) ** 2, width // heads
    tokens = count + 1
    x = b.input("pixel_values", (1, 3, side, side))
    weight = b.noise((width, 3, patch, patch), math.sqrt(1 / (3 * patch * patch)))
    x = b.add("Conv", x, weight, b.noise((width,), 0.05), kernel_shape=(patch, patch), strides=(patch, patch))
    x = b.transpose(b.reshape(x, 1, width, count), 0, 2, 1)
    x = b.add("Concat", b.noise((1, 1, width), 0.5), x, axis=1)
    x = b.add("Add", x, b.noise((1, tokens, width), 0.3))
    for _ in range(layers):
        y = b.linear(b.layer_norm(x, width), width, 3 * width)
        y = b.transpose(b.reshape(y, 1, tokens, 3, heads, size), 2, 0, 3, 1, 4)
        query, key, value = (b.add("Gather", y, b.constant(n), axis=0) for n in range(3))
        root = size**-0.25
        scores = b.add("MatMul", b.scale(query, root), b.scale(b.transpose(key, 0, 1, 3, 2), root))
        y = b.add("MatMul", b.add("Softmax", scores, axis=-1), value)
        y = b.reshape(b.transpose(y, 0, 2, 1, 3), 1, tokens, width)
        x = b.add("Add", x, b.linear(y, width, width))
        y = b.add("Gelu", b.linear(b.layer_norm(x, width), width, 4 * width))
        x = b.add("Add", x, b.linear(y, 4 * width, width))
    first = b.add("Gather", b.layer_norm(x, width), b.constant(0), axis=1)
    b.output(b.gemm(first, width, 1000 if width == 768 else 10), "logits")
    return b.model()


def gpt_past(
    layers: int = 6, width: int = 512, heads: int = 8, new: int = 16, past: int = 48, words: int = 8000
) -> ModelProto:
    """GPT-2 (Radford et al. 2019): a decoder that takes the keys and values of earlier tokens, and returns
    them with its own."""
    b = Builder("gpt_past")
    size, seen = width // heads, past + new
    ids = b.input("input_ids", (1, new), INT64)
    table = b.noise((words, width), 1.0)
    places = b.add(
        "Slice", b.noise((1024, width), 0.3), b.constant([past]), b.constant([seen]), b.constant([0])
    )
    x = b.add("Add", b.add("Gather", table, ids), places)
    later = b.constant(np.triu(np.full((new, seen), -10000.0), past + 1), np.float32)
    for layer in range(layers):
        y = b.linear(b.layer_norm(x, width), width, 3 * width)
        parts = b.many("Split", 3, y, b.constant([width] * 3), axis=2)
        query, key, value = (_heads(b, one, heads, size) for one in parts)
        key, value = (
            _with_past(b, one, f"{layer}.{kind}", (1, heads, past, size))
            for one, kind in ((key, "key"), (value, "value"))
        )
        scores = b.scale(b.add("MatMul", query, b.transpose(key, 0, 1, 3, 2)), size**-0.5)
        y = b.add("MatMul", b.add("Softmax", b.add("Add", scores, later), axis=-1), value)
        y = b.reshape(b.transpose(y, 0, 2, 1, 3), 1, new, width)
        x = b.add("Add", x, b.linear(y, width, width))
        y = _gelu_tanh(b, b.linear(b.layer_norm(x, width), width, 4 * width))
        x = b.add("Add", x, b.linear(y, 4 * width, width))
    logits = b.add("MatMul", b.layer_norm(x, width), b.transpose(table, 1, 0))
    b.output(b.scale(logits, width**-0.5), "logits")
    return b.model()


def _with_past(b: Builder, made: str, name: str, shape: tuple[int, ...]) -> str:
    held = b.input(f"past_key_values.{name}", shape)
    y = b.add("Concat", held, made, axis=2)
    b.output(y, f"present.{name}")
    return y


def _gelu_tanh(b: Builder, x: str) -> str:
    cubed = b.scale(b.add("Pow", x, b.constant(3.0, np.float32)), 0.044715)
    inner = b.add("Tanh", b.scale(b.add("Add", x, cubed), math.sqrt(2 / math.pi)))
    return b.add("Mul", b.scale(x, 0.5), b.add("Add", inner, b.constant(1.0, np.float32)))


def llama(
    layers: int = 4, width: int = 512, heads: int = 8, shared: int = 2, tokens: int = 64, words: int = 8000
) -> ModelProto:
    """Llama (Touvron et al. 2023), with the operators that ai.onnx has for it since opset 23:
    RMSNormalization, RotaryEmbedding, and Attention whose heads share `shared` sets of keys and values."""
    b = Builder("llama", opset=23)
    size = width // heads
    x = b.add("Gather", b.noise((words, width), 1.0), b.input("input_ids", (1, tokens), INT64))
    angles = np.outer(np.arange(tokens), 10000.0 ** (-np.arange(0, size, 2) / size))[None]
    cosines, sines = b.constant(np.cos(angles), np.float32), b.constant(np.sin(angles), np.float32)
    for _ in range(layers):
        y = _rms(b, x, width)
        query, key, value = (
            b.linear(y, width, count * size, bias=False) for count in (heads, shared, shared)
        )
        query = b.add("RotaryEmbedding", query, cosines, sines, num_heads=heads)
        key = b.add("RotaryEmbedding", key, cosines, sines, num_heads=shared)
        y = b.add("Attention", query, key, value, q_num_heads=heads, kv_num_heads=shared, is_causal=1)
        x = b.add("Add", x, b.linear(y, width, width, bias=False))
        y = _rms(b, x, width)
        gate = b.linear(y, width, 3 * width, bias=False)
        gate = b.add("Mul", gate, b.add("Sigmoid", gate))
        y = b.add("Mul", gate, b.linear(y, width, 3 * width, bias=False))
        x = b.add("Add", x, b.linear(y, 3 * width, width, bias=False))
    b.output(b.linear(_rms(b, x, width), width, words, bias=False), "logits")
    return b.model()


def _rms(b: Builder, x: str, width: int) -> str:
    return b.add("RMSNormalization", x, b.noise((width,), 0.1, 1.0), axis=-1, epsilon=1e-6)


def swin(
    side: int = 224,
    width: int = 96,
    depths: tuple[int, ...] = (2, 2, 6, 2),
    heads: int = 3,
    window: int = 7,
) -> ModelProto:
    """Swin (Liu et al. 2021): attention in windows, which every second layer shifts around the picture's edges."""
    b = Builder("swin", opset=20)
    x, at = b.input("pixel_values", (1, 3, side, side)), side // 4
    weight = b.noise((width, 3, 4, 4), math.sqrt(1 / 48))
    x = b.add("Conv", x, weight, b.noise((width,), 0.05), kernel_shape=(4, 4), strides=(4, 4))
    x = b.layer_norm(b.transpose(x, 0, 2, 3, 1), width)
    for stage, depth in enumerate(depths):
        if stage:
            x, at, width, heads = _merged(b, x, at, width), at // 2, 2 * width, 2 * heads
        for number in range(depth):
            shift = window // 2 if number % 2 and at > window else 0
            x = _in_windows(b, x, at, width, heads, window, shift)
            y = b.add("Gelu", b.linear(b.layer_norm(x, width), width, 4 * width))
            x = b.add("Add", x, b.linear(y, 4 * width, width))
    pooled = b.add("ReduceMean", b.layer_norm(x, width), b.constant((1, 2)), keepdims=0)
    b.output(b.gemm(pooled, width, 1000 if width == 768 else 10), "logits")
    return b.model()


def _merged(b: Builder, x: str, at: int, width: int) -> str:
    """Merge four places into one of twice the width."""
    parts = b.transpose(b.reshape(x, 1, at // 2, 2, at // 2, 2, width), 0, 1, 3, 4, 2, 5)
    parts = b.reshape(parts, 1, at // 2, at // 2, 4 * width)
    return b.linear(b.layer_norm(parts, 4 * width), 4 * width, 2 * width, bias=False)


def _rolled(b: Builder, x: str, at: int, by: int) -> str:
    """Roll a picture: what leaves at one edge enters at the opposite one."""
    for axis in (1, 2):
        starts = (by % at, at), (0, by % at)
        parts = (
            b.add("Slice", x, b.constant([lo]), b.constant([hi]), b.constant([axis])) for lo, hi in starts
        )
        x = b.add("Concat", *parts, axis=axis)
    return x


def _in_windows(b: Builder, x: str, at: int, width: int, heads: int, window: int, shift: int) -> str:
    many, size, places = at // window, width // heads, window * window
    y = b.layer_norm(x, width)
    y = _rolled(b, y, at, shift) if shift else y
    y = b.transpose(b.reshape(y, 1, many, window, many, window, width), 0, 1, 3, 2, 4, 5)
    y = b.linear(b.reshape(y, many * many, places, width), width, 3 * width)
    y = b.transpose(b.reshape(y, many * many, places, 3, heads, size), 2, 0, 3, 1, 4)
    query, key, value = (
        b.add("Squeeze", one, b.constant([0])) for one in b.many("Split", 3, y, axis=0, num_outputs=3)
    )
    scores = b.add("MatMul", b.scale(query, size**-0.5), b.transpose(key, 0, 1, 3, 2))
    scores = b.add("Add", scores, b.noise((1, heads, places, places), 0.5))
    y = b.transpose(b.add("MatMul", b.add("Softmax", scores, axis=-1), value), 0, 2, 1, 3)
    y = b.linear(b.reshape(y, many * many, places, width), width, width)
    y = b.transpose(b.reshape(y, 1, many, many, window, window, width), 0, 1, 3, 2, 4, 5)
    y = b.reshape(y, 1, at, at, width)
    return b.add("Add", x, _rolled(b, y, at, at - shift) if shift else y)
