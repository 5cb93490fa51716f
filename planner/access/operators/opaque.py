"""Operators that run whole on purpose: control flow, random numbers, training steps, results whose size depends on
values, values that are not tensors, and operators that no device could try. Facts only."""

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

_STEP = "it is a step of training, which ONNX Runtime cannot run"
_COUNTED = "its values decide how much it writes"
_COMPARED = "it compares all of its elements with each other"

_NO_KERNEL = "it has no kernel on processors without an accelerator, so its division could never be tried"

_MICROSOFT = {
    _NO_KERNEL: "BiasDropout BiasSoftmax BitmaskBiasDropout BitmaskDropout FusedMatMulActivation GemmFastGelu "
    "GemmFloat8 GroupNorm MulInteger NhwcConv NhwcFusedConv QLinearReduceMean QOrderedMatMul ReduceSumInteger "
    "SkipGroupNorm",
    "it takes its pads at run time": "ConvTransposeWithDynamicPads",
    "it takes from each window what a mask at run time leaves": "MaxpoolWithMask",
}

OPAQUE = {
    **{("", name): reason for reason, names in _REASONS.items() for name in names.split()},
    **{("com.microsoft", name): reason for reason, names in _MICROSOFT.items() for name in names.split()},
    **{("ai.onnx.preview.training", name): _STEP for name in ("Adagrad", "Adam", "Gradient", "Momentum")},
    ("", "NonZero"): _COUNTED,
    ("", "Unique"): _COMPARED,
    ("com.microsoft", "Unique"): _COMPARED,
    ("", "DynamicQuantizeLinear"): "its scale is that of the smallest and the largest of the whole tensor",
}
