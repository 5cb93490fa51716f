"""Attention whose heads are operators of their own, and the two dense layers after it, which GPT and Swin share."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.models.sketches.sketch import Sketch


def attention(s: Sketch, x: str, heads: int, seen: Callable[[], str]) -> str:
    """Add attention over [..., tokens, width]. `seen` returns what is added to a head's scores. Each head has
    12 operators; 3 more follow."""
    width = s.shape(x)[-1]
    return s.linear(
        s.concat([_head(s, x, width // heads, seen()) for _ in range(heads)], len(s.shape(x)) - 1), width
    )


def _head(s: Sketch, x: str, size: int, seen: str) -> str:
    query, key, value = (s.linear(x, size) for _ in range(3))
    axes = len(s.shape(x))
    scores = s.scale(s.matmul(query, s.transpose(key, *range(axes - 2), axes - 1, axes - 2)))
    return s.matmul(s.softmax(s.each("Add", scores, seen)), value)


def dense(s: Sketch, x: str, times: int = 4) -> str:
    """Add a dense layer to a width `times` as large, and one back: 5 operators."""
    width = s.shape(x)[-1]
    return s.linear(s.each("Gelu", s.linear(x, times * width)), width)
