"""Pairs dense layers so that two layers need only one sum: the first is divided along the axis that it
writes, the second along the axis that it sums over (Megatron-LM, Shoeybi et al. 2019, section 3). Heads of
attention, and consecutive convolutions, are such pairs too. Rules only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layout.choices import Choice, Divide, Reduce, Shares, Whole
from edgepart.planner.search.memo import Memo

COLUMNS = ("head", "feature", "channel")
"""The axes that a dense layer writes."""

DENSE = frozenset({"gemm", "conv", "pointwise"})
"""Families of operators with weights that are worth dividing."""


def pair_dense_layers(memo: Memo, shares: Shares, *, heads: bool = True) -> dict[int, Choice] | None:
    """Choices by layer that pair dense layers; None if there is no pair. Between pairs, every device computes
    everything; without `heads` also attention, with the dense layers before and behind it. That needs half as many sums,
    and may be quicker where heads are few or sums are slow."""
    everywhere = Whole(tuple(name for name, _ in shares))
    apart = frozenset() if heads else frozenset(_around_heads(memo))
    choices: dict[int, Choice] = {}
    for layer in memo.layers:
        if layer.number in apart:
            choices[layer.number] = everywhere
            continue
        arriving = tuple(_arriving_units(memo, choices, layer))
        choices[layer.number] = _choice(memo, layer, shares, everywhere, arriving)
    return choices if any(isinstance(choice, Reduce) for choice in choices.values()) else None


def _around_heads(memo: Memo) -> Iterator[int]:
    """Yields the layers with heads, and those that they read from or that read from them."""
    with_heads = {layer.number for layer in memo.layers if layer.splits("head")}
    yield from with_heads
    for layer in memo.layers:
        sources = _sources(memo, layer)
        if layer.number in with_heads:
            yield from sources
        elif not with_heads.isdisjoint(sources):
            yield layer.number


def _arriving_units(memo: Memo, choices: Mapping[int, Choice], layer: Layer) -> Iterator[int]:
    """Yields the most parts into which each of the layer's inputs that arrive divided can be divided: its columns, or its
    groups of heads."""
    for number in _sources(memo, layer):
        choice = choices.get(number)
        if isinstance(choice, Divide) and (axis := memo.coarse.layers[number].axis(choice.axes[0])):
            yield -(-axis.extent // axis.quantum)


def _choice(memo: Memo, layer: Layer, shares: Shares, everywhere: Whole, arriving: Sequence[int]) -> Choice:
    columns = next((name for name in COLUMNS if layer.splits(name)), None)
    weighted, reduced = _has_weights(memo, layer), layer.reduces("inner")
    if arriving and weighted and reduced:
        inner = reduced[1].extent
        return Reduce("inner", shares, everywhere, max(inner // n if inner % n == 0 else 1 for n in arriving))
    if columns is not None and (arriving or weighted):
        return Divide((columns,), shares, aligned=True)
    return everywhere


def _has_weights(memo: Memo, layer: Layer) -> bool:
    """Whether the layer's dense operator multiplies by a constant, instead of multiplying two tensors."""
    coarse, constants = memo.coarse, memo.graph.constants
    dense = [op for op in layer.operators if coarse.accesses[op.name].family in DENSE]
    return any(name in constants for op in dense for name in op.inputs[:2])


def _sources(memo: Memo, layer: Layer) -> set[int]:
    """Layers that write what `layer` reads. Layers that are computed by their readers are looked through."""
    graph, coarse = memo.graph, memo.coarse
    found: set[int] = set()
    names = [name for op in layer.operators for name in graph.reads(op)]
    seen = set(names)
    while names:
        writer = graph.producers.get(names.pop())
        if writer is None or coarse.layer_of[writer.name] == layer.number:
            continue
        if coarse.layers[coarse.layer_of[writer.name]].exits:
            found.add(coarse.layer_of[writer.name])
            continue
        new = [name for name in graph.reads(writer) if name not in seen]
        seen.update(new)
        names += new
    return found
