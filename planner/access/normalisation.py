"""Normalisations: softmax and the norms. The axes that are normalised over must be whole; the rest is free.
Pure."""

from __future__ import annotations

from edgepart.planner.access.aligned import Aligned, AxisReads, broadcast, vector
from edgepart.planner.access.bound import Bound
from edgepart.planner.access.derived import Derived, Reads, Whole, local_node, split_axes
from edgepart.planner.access.language import Axis, Local, Outputs
from edgepart.planner.region import Region, span, span_hull, span_size


def softmax(bound: Bound) -> Derived:
    """Softmax, LogSoftmax, Hardmax; before opset 13 everything from `axis` on is one flat axis."""
    rank = len(bound.output)
    flat = bound.version < 13 and bound.operator.domain == ""
    axis = int(bound.attribute("axis", 1 if flat else -1))
    axis += rank if axis < 0 else 0
    whole = range(axis, rank) if flat else (axis,)
    return Aligned(bound, [_same(bound)], whole=whole, family="reduce", work=5.0)


def _same(bound: Bound) -> AxisReads | None:
    return broadcast(bound.inputs[0], bound.output)


def layer_norm(bound: Bound) -> Derived:
    """LayerNormalization, RMSNormalization: everything from `axis` on."""
    if bound.wants(1) or bound.wants(2):
        return Whole(bound, "it gives the mean or the deviation, as training does")
    rank = len(bound.output)
    axis = int(bound.attribute("axis", -1)) % rank
    reads = [broadcast(shape, bound.output) for shape in bound.inputs]
    return Aligned(bound, reads, whole=range(axis, rank), family="reduce", work=8.0)


def skip_layer_norm(bound: Bound) -> Derived:
    """com.microsoft: a sum, then LayerNormalization over the last axis; the sum may be output 3."""
    if bound.wants(1) or bound.wants(2):
        return Whole(bound, "it gives the mean or the deviation, as training does")
    reads = [broadcast(shape, bound.output) for shape in bound.inputs]
    return Aligned(bound, reads, whole=(len(bound.output) - 1,), family="reduce", work=9.0)


def batch_norm(bound: Bound) -> Derived:
    """At inference: scale, bias, mean and variance of its own for each channel."""
    if any(bound.wants(index) for index in range(1, len(bound.outputs))) or bound.attribute("training_mode"):
        return Whole(bound, "it is in training mode")
    if bound.version < 7 or not bound.attribute("spatial", 1) or len(bound.output) < 2:
        return Whole(bound, "it normalises over more than channels")
    channels = [vector(shape, 1, bound.output[1]) for shape in bound.inputs[1:]]
    return Aligned(bound, [_same(bound), *channels], work=2.0)


def instance_norm(bound: Bound) -> Derived:
    rank = len(bound.output)
    channels = [vector(shape, 1, bound.output[1]) for shape in bound.inputs[1:]]
    return Aligned(bound, [_same(bound), *channels], whole=range(2, rank), family="reduce", work=6.0)


def group_norm(bound: Bound) -> Derived:
    """Scale and bias are one for each group in opset 18, one for each channel since 21."""
    channels = bound.output[1]
    each = channels // int(bound.attribute("num_groups"))
    per = each if bound.version < 21 else 1

    def groups(region: Region) -> dict[str, int]:
        return {"num_groups": span_size(region.spans[1]) // each}

    reads = [_same(bound), *(vector(shape, 1, channels, per) for shape in bound.inputs[1:])]
    whole = range(2, len(bound.output))
    return Aligned(bound, reads, whole=whole, family="reduce", work=6.0, attributes=groups, quanta={1: each})


def lp_norm(bound: Bound) -> Derived:
    axis = int(bound.attribute("axis", -1)) % len(bound.output)
    return Aligned(bound, [_same(bound)], whole=(axis,), family="reduce", work=3.0)


def mean_variance_norm(bound: Bound) -> Derived:
    axes = bound.integers("axes") or (0, 2, 3)
    whole = [axis % len(bound.output) for axis in axes]
    return Aligned(bound, [_same(bound)], whole=whole, family="reduce", work=6.0)


class ChannelWindow(Derived):
    """LRN: a channel reads its neighbours. They are made too and cut off, as their own neighbours are not
    there."""

    family = "elementwise"

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        size = int(bound.attribute("size"))
        self.before, self.after = (size - 1) // 2, size - 1 - (size - 1) // 2
        self.size = size

    def axes(self) -> tuple[Axis, ...]:
        return split_axes(self.bound.output, range(len(self.bound.output)))

    def widen(self, outputs: Outputs) -> Outputs:
        channels = self.bound.output[1]
        hull = span_hull(outputs[0].spans[1])[0]
        made = span((max(hull.start - self.before, 0), min(hull.stop + self.after, channels)))
        return {0: outputs[0].replace(1, made)}

    def reads(self, computed: Outputs) -> Reads:
        return (computed[0],)

    def nodes(self, computed: Outputs) -> Local:
        return (local_node(self.bound),)

    def work(self, computed: Outputs) -> float:
        return float(computed[0].size * (self.size + 3))


DECLARATIONS = {
    "BatchNormalization": batch_norm,
    "GroupNormalization": group_norm,
    "Hardmax": softmax,
    "InstanceNormalization": instance_norm,
    "LRN": ChannelWindow,
    "LayerNormalization": layer_norm,
    "LogSoftmax": softmax,
    "LpNormalization": lp_norm,
    "MeanVarianceNormalization": mean_variance_norm,
    "RMSNormalization": layer_norm,
    "Softmax": softmax,
}
MICROSOFT = {"SkipLayerNormalization": skip_layer_norm}
