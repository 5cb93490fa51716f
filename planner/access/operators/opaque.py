"""Operators that run whole on purpose: control flow, chance, and values that are no tensors. Facts only."""

from __future__ import annotations

_SUBGRAPH = "it holds a sub-graph, which runs whole where it is"
_CHANCE = "it draws random numbers"
_SEQUENCE = "it handles a sequence, which is no tensor and cannot be cut"
_OPTIONAL = "it handles an optional value, which is no tensor and cannot be cut"

_REASONS = {
    _SUBGRAPH: "If Loop Scan SequenceMap",
    _CHANCE: "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
    _SEQUENCE: "ConcatFromSequence SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert "
    "SequenceLength SplitToSequence",
    _OPTIONAL: "Optional OptionalGetElement OptionalHasElement",
}

OPAQUE = {("", name): reason for reason, names in _REASONS.items() for name in names.split()}
