"""The Evoformer of AlphaFold 2 (Jumper et al. 2021, supplement, algorithms 6 to 15), for inference.

Its blocks transform an alignment (sequences x residues x width) and pairs (residues x residues x width).
Products are Einsums, as in the published code; factors are folded into weights. The published linear layers have
biases; Moirai's numbers of operators leave no room for them, so they are left out unless they are asked for. The heads
of the two attentions over the alignment are computed in groups, each by operators of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.models.sketches.sketch import Sketch
from edgepart.planner.model.graph import Graph

SEQUENCES, RESIDUES = 128, 256
"""128 as in Moirai, section IV-A; 256 as in AlphaFold's training."""
HEAD = 32
"""Width of a head."""


@dataclass(frozen=True)
class Widths:
    """The widths of an Evoformer."""

    alignment: int
    heads: int
    pairs: int
    outer: int = 32
    """Channels of the outer product."""
    row_groups: int = 1
    """Groups of heads in which attention along residues is computed."""
    column_groups: int = 1
    """Groups of heads in which attention along sequences is computed."""
    biases: bool = False
    """Whether linear layers have the biases that are published: those of gates, of outputs and of everything that is not
    attention. They are then products and sums, as exporters write them."""


def evoformer(blocks: int, widths: Widths, sequences: int = SEQUENCES, residues: int = RESIDUES) -> Graph:
    s = Sketch("evoformer")
    m = s.input("alignment", sequences, residues, widths.alignment)
    z = s.input("pairs", residues, residues, widths.pairs)
    for _ in range(blocks):
        m = _rows(s, m, z, widths)
        m = _columns(s, m, widths)
        m = _transition(s, m, widths.biases)
        z = _outer_product(s, m, z, widths)
        z = _triangle_product(s, z, "ikc,jkc->ijc", widths.biases)
        z = _triangle_product(s, z, "kic,kjc->ijc", widths.biases)
        z = _triangle_attention(s, z, "iqhc,ikhc->ihqk", "ihqk,ikhc->iqhc", widths.biases)
        z = _triangle_attention(s, z, "qihc,kihc->ihqk", "ihqk,kihc->qihc", widths.biases)
        z = _transition(s, z, widths.biases)
    return s.graph(m, z)


def _rows(s: Sketch, m: str, z: str, widths: Widths) -> str:
    """Add attention along residues, with a bias from the pairs."""
    x = s.layer_norm(m)
    bias = s.einsum("qkc,ch->hqk", s.layer_norm(z), s.weight(widths.pairs, widths.heads))
    groups = widths.row_groups
    biases = s.split(bias, groups, 0) if groups > 1 else (bias,)
    size = widths.heads // groups
    heads = [_heads(s, x, size, "sqhc,skhc->shqk", "shqk,skhc->sqhc", one) for one in biases]
    return _gated(s, m, x, s.concat(heads, 2) if groups > 1 else heads[0], widths.biases)


def _columns(s: Sketch, m: str, widths: Widths) -> str:
    """Add attention along sequences."""
    x, groups = s.layer_norm(m), widths.column_groups
    size = widths.heads // groups
    heads = [_heads(s, x, size, "qrhc,krhc->rhqk", "rhqk,krhc->qrhc") for _ in range(groups)]
    return _gated(s, m, x, s.concat(heads, 2) if groups > 1 else heads[0], widths.biases)


def _triangle_attention(s: Sketch, z: str, scores: str, seen: str, biases: bool) -> str:
    """Add attention around a residue at which edges start, or at which they end."""
    x = s.layer_norm(z)
    width = s.shape(z)[-1]
    heads = width // HEAD
    bias = s.einsum("qkc,ch->hqk", x, s.weight(width, heads))
    return _gated(s, z, x, _heads(s, x, heads, scores, seen, bias), biases)


def _heads(s: Sketch, x: str, heads: int, scores: str, seen: str, bias: str | None = None) -> str:
    """Add attention heads [rows, columns, heads, HEAD]: 6 operators, 7 with a bias."""
    width = s.shape(x)[-1]
    query, key, value = (s.einsum("abw,whc->abhc", x, s.weight(width, heads, HEAD)) for _ in range(3))
    found = s.einsum(scores, query, key)
    return s.einsum(seen, s.softmax(s.each("Add", found, bias) if bias else found), value)


def _gated(s: Sketch, base: str, x: str, found: str, biases: bool) -> str:
    """Multiply the heads' output by a gate, project it to the width of `base` and add it to that: 5 operators, 9 with
    biases."""
    *rows, heads, size = s.shape(found)
    width = s.shape(x)[-1]
    if biases:
        gate = s.each("Sigmoid", s.reshape(s.linear(x, heads * size), *rows, heads, size))
        flat = s.reshape(s.each("Mul", found, gate), *rows, heads * size)
        return s.each("Add", base, s.linear(flat, width))
    gate = s.each("Sigmoid", s.einsum("abw,whc->abhc", x, s.weight(width, heads, size)))
    y = s.einsum("abhc,hcw->abw", s.each("Mul", found, gate), s.weight(heads, size, width))
    return s.each("Add", base, y)


def _transition(s: Sketch, x: str, biases: bool) -> str:
    width = s.shape(x)[-1]
    wide = s.each("Relu", s.linear(s.layer_norm(x), 4 * width, biases))
    return s.each("Add", x, s.linear(wide, width, biases))


def _outer_product(s: Sketch, m: str, z: str, widths: Widths) -> str:
    """Add the mean over sequences of the outer product."""
    x, residues = s.layer_norm(m), s.shape(z)[0]
    left, right = (s.linear(x, widths.outer, widths.biases) for _ in range(2))
    mean = s.scale(s.einsum("sic,sjd->ijcd", left, right))
    flat = s.reshape(mean, residues, residues, widths.outer**2)
    return s.each("Add", z, s.linear(flat, widths.pairs, widths.biases))


def _triangle_product(s: Sketch, z: str, equation: str, biases: bool) -> str:
    """Update each edge by the sum over the third corner of its triangles; left and right factors are made
    together."""
    x, width = s.layer_norm(z), s.shape(z)[-1]
    gate = s.each("Sigmoid", s.linear(x, 2 * width, biases))
    left, right = s.split(s.each("Mul", s.linear(x, 2 * width, biases), gate), 2, 2)
    y = s.linear(s.layer_norm(s.einsum(equation, left, right)), width, biases)
    gate = s.each("Sigmoid", s.linear(x, width, biases))
    return s.each("Add", z, s.each("Mul", y, gate))
