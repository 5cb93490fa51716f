"""GPT-3 (Brown et al. 2020): a decoder over a whole sequence."""

from __future__ import annotations

from benchmarks.models.sketches.attention import attention, dense
from benchmarks.models.sketches.sketch import Sketch
from edgepart.planner.model.graph import Graph

WORDS = 50257
TOKENS = 2048
"""As in Moirai, section IV-A."""


def gpt(layers: int, width: int, heads: int, tokens: int = TOKENS, words: int = WORDS) -> Graph:
    """Each layer has 12 operators and 12 for each head. The word embedding is also the output projection."""
    s = Sketch("gpt")
    table = s.weight(words, width)
    x = s.gather(table, s.input("input_ids", 1, tokens, dtype="int64", item_bytes=8))
    x = s.each("Add", x, s.weight(1, tokens, width))
    later = s.constant(tokens, tokens)
    for _ in range(layers):
        x = s.each("Add", x, attention(s, s.layer_norm(x), heads, lambda: later))
        x = s.each("Add", x, dense(s, s.layer_norm(x)))
    # The exporter folds the transposed table into a constant of its own: the same bytes, read a second time.
    return s.graph(s.matmul(s.layer_norm(x), s.constant(width, words)))
