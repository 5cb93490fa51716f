"""Pairs of dense layers that need one sum: the first is split by what it writes, the second by what it sums over
(Megatron-LM, Shoeybi et al. 2019, section 3). Heads of attention, and convolutions that follow one another, are
such pairs too. Rules only."""

from __future__ import annotations

from edgepart.planner.division import Choice, Divide, Reduce, Whole
from edgepart.planner.fusion import Layer
from edgepart.planner.study import Shares, Study

COLUMNS = ("feature", "head", "channel")
"""Axes of what a dense layer writes."""

DENSE = frozenset({"gemm", "conv", "pointwise"})
"""Families of operators with weights that are worth splitting."""


def paired(study: Study, shares: Shares) -> dict[int, Choice] | None:
    """Choices for every layer; None where nothing pairs. Between pairs every device has, and computes, all."""
    everywhere = Whole(tuple(name for name, _ in shares))
    choices: dict[int, Choice] = {}
    for layer in study.layers:
        arrives_split = any(isinstance(choices.get(n), Divide) for n in _sources(study, layer))
        choices[layer.number] = _choice(study, layer, shares, everywhere, arrives_split)
    return choices if any(isinstance(choice, Reduce) for choice in choices.values()) else None


def _choice(study: Study, layer: Layer, shares: Shares, everywhere: Whole, arrives_split: bool) -> Choice:
    columns = next((name for name in COLUMNS if layer.splits(name)), None)
    weighted = _has_weights(study, layer)
    if arrives_split and weighted and layer.reduces("inner"):
        return Reduce("inner", shares, everywhere)
    if columns is not None and (arrives_split or (weighted and not layer.opaque)):
        return Divide((columns,), shares, aligned=True)
    return everywhere


def _has_weights(study: Study, layer: Layer) -> bool:
    """Whether its dense operator multiplies by a constant, and not two tensors by one another."""
    coarse, constants = study.coarse, study.graph.constants
    dense = [op for op in layer.operators if coarse.accesses[op.name].family in DENSE]
    return any(name in constants for op in dense for name in op.inputs[:2])


def _sources(study: Study, layer: Layer) -> set[int]:
    """Layers that write what it reads, through what is computed by its readers."""
    graph, coarse = study.graph, study.coarse
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
