"""Normalisations: softmax and the norms. The axes that are normalised over are whole, or reduced in parts; the other axes
can be cut. Rules only."""

from __future__ import annotations

from dataclasses import replace

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads, Fixed, Inner, broadcast, vector
from edgepart.planner.access.declare.bound import BoundOperator, axis_names, matrix_names
from edgepart.planner.access.declare.derived import Derived, Reads, WholeOperator, local_node, split_axes
from edgepart.planner.access.declare.protocol import Addend, Axis, Local, LocalNode, Outputs, Reduction
from edgepart.planner.access.declare.reducers import chain, lowest, reduce_node
from edgepart.planner.access.operators.partial_norms import Moments, NormDivisor
from edgepart.planner.region import Interval, Region, span, span_hull, span_size


def softmax(bound: BoundOperator) -> Derived:
    """Declares Softmax, LogSoftmax and Hardmax. Before opset 13, everything from `axis` on is one flat axis."""
    rank = len(bound.output)
    flat = bound.version < 13 and bound.operator.domain == ""
    axis = int(bound.attribute("axis", 1 if flat else -1))
    axis += rank if axis < 0 else 0
    whole = range(axis, rank) if flat else (axis,)
    if not flat and bound.operator.op_type in ("Softmax", "LogSoftmax") and bound.output[axis] > 1:
        return Exponentials(bound, axis)
    return Aligned(bound, [_same(bound)], whole=whole, family="reduce", work=5.0)


class Exponentials(Aligned):
    """Softmax and LogSoftmax. The axis is whole, or reduced in parts; each part gives its maximum, and the
    sum of the exponentials of its elements less that maximum (Milakov and Gimelshein 2018, section 3)."""

    def __init__(self, bound: BoundOperator, axis: int) -> None:
        rank = len(bound.output)
        names = matrix_names(rank) if axis == rank - 1 else axis_names(rank)
        name = names[axis]
        self.reduced = Axis(name, axis, bound.output[axis], reducer="log-sum-exp")
        reads = [Inner(name) if n == axis else Along(n) for n in range(len(bound.output))]
        super().__init__(
            bound, [reads], whole=(axis,), family="reduce", work=5.0, reduced=(self.reduced,), names=names
        )

    def reduction(self, axis: Axis) -> Reduction:
        addend = Addend(
            Region.full(self.bound.output).replace(axis.index, span((0, 1))).shape, self.bound.dtype(0)
        )
        return Reduction(
            (addend, addend),
            lambda part: Stabilised(self.bound, axis, part),
            lambda parts: Normalised(self.bound, axis, len(parts)),
            again=(0,),
        )


class Stabilised(Aligned):
    """The operator that makes the addends of a part of a Softmax's axis: the part's maximum (output 0), and
    the sum of the exponentials of its elements less that maximum (output 1)."""

    def __init__(self, bound: BoundOperator, axis: Axis, part: Interval) -> None:
        shape = bound.output
        reads = [Fixed(part) if n == axis.index else Along(n) for n in range(len(shape))]
        small = (*shape[: axis.index], 1, *shape[axis.index + 1 :])
        super().__init__(
            replace(bound, outputs=(small, small)), [reads], family="reduce", work=5.0 * part.size
        )
        self.axis = axis.index

    def nodes(self, computed: Outputs) -> Local:
        return stabilise(0, self.axis, self.bound.dtype(0), self.bound.opset, (0, 1))


class Normalised(Aligned):
    """The operator that makes any part of the output from the maximum and the sum of every part, and from the
    same part of the input."""

    def __init__(self, bound: BoundOperator, axis: Axis, count: int) -> None:
        shape = bound.output
        small = (*shape[: axis.index], 1, *shape[axis.index + 1 :])
        shapes = (*(small,) * (2 * count), shape)
        operator = replace(bound.operator, inputs=("",) * len(shapes))
        given = replace(bound, operator=operator, inputs=shapes)
        super().__init__(given, [broadcast(one, shape) for one in shapes], work=5.0)
        self.count = count

    def nodes(self, computed: Outputs) -> Local:
        most, sums = range(0, 2 * self.count, 2), range(1, 2 * self.count, 2)
        nodes = [*chain("Max", most, "most", "max")]
        for n, (one, total) in enumerate(zip(most, sums, strict=True)):
            nodes.append(LocalNode("Sub", (one, "most"), (f"less_{n}",)))
            nodes.append(LocalNode("Exp", (f"less_{n}",), (f"scale_{n}",)))
            nodes.append(LocalNode("Mul", (total, f"scale_{n}"), (f"scaled_{n}",)))
        nodes += chain("Add", [f"scaled_{n}" for n in range(self.count)], "total", "sum")
        nodes.append(LocalNode("Sub", (2 * self.count, "most"), ("less",)))
        if self.bound.operator.op_type == "LogSoftmax":
            return (*nodes, LocalNode("Log", ("total",), ("log",)), LocalNode("Sub", ("less", "log"), (0,)))
        return (*nodes, LocalNode("Exp", ("less",), ("exp",)), LocalNode("Div", ("exp", "total"), (0,)))


def stabilise(
    source: int | str, axis: int, dtype: str, opset: int, targets: tuple[int | str, int | str]
) -> Local:
    """Returns nodes that make `targets`: the maximum of `source` along `axis`, kept finite where everything is masked by
    minus infinity, and the sum of the exponentials of `source` less that maximum."""
    most, total = targets
    return (
        reduce_node("ReduceMax", source, "raw_most", axis, opset),
        LocalNode("Max", ("raw_most", lowest(dtype)), ("most",)),
        LocalNode("Identity", ("most",), (most,)),
        LocalNode("Sub", (source, "most"), ("below",)),
        LocalNode("Exp", ("below",), ("exponentials",)),
        reduce_node("ReduceSum", "exponentials", total, axis, opset),
    )


def _same(bound: BoundOperator) -> AxisReads | None:
    return broadcast(bound.inputs[0], bound.output)


def layer_norm(bound: BoundOperator) -> Derived:
    """Declares LayerNormalization and RMSNormalization, which normalise over everything from `axis` on."""
    rank = len(bound.output)
    axis = int(bound.attribute("axis", -1)) % rank
    reads = [broadcast(shape, bound.output) for shape in bound.inputs]
    if axis == 0 and (bound.wants(1) or bound.wants(2)):
        return WholeOperator(
            bound, "it normalises over all of its input, and gives the mean or the deviation of that"
        )
    centred = bound.operator.op_type == "LayerNormalization"
    return Moments(bound, reads, range(axis, rank), NormDivisor(centred, inside=_epsilon(bound)), work=8.0)


def _epsilon(bound: BoundOperator) -> float:
    return float(bound.attribute("epsilon", 1e-5))


def skip_layer_norm(bound: BoundOperator) -> Derived:
    """Declares SkipLayerNormalization and SkipSimplifiedLayerNormalization of com.microsoft: a sum, then
    LayerNormalization (or RMSNormalization) over the last axis. The sum may be output 3."""
    if bound.wants(1) or bound.wants(2):
        return WholeOperator(bound, "it gives the mean or the deviation, as training does")
    reads = [broadcast(shape, bound.output) for shape in bound.inputs]
    return Aligned(bound, reads, whole=(len(bound.output) - 1,), family="reduce", work=9.0)


def batch_norm(bound: BoundOperator) -> Derived:
    """Declares BatchNormalization at inference, with scale, bias, mean and variance for each channel."""
    if any(bound.wants(index) for index in range(1, len(bound.outputs))) or bound.attribute("training_mode"):
        return WholeOperator(bound, "it is in training mode")
    if bound.version < 7 or not bound.attribute("spatial", 1) or len(bound.output) < 2:
        return WholeOperator(bound, "it normalises over more than channels")
    channels = [vector(shape, 1, bound.output[1]) for shape in bound.inputs[1:]]
    return Aligned(bound, [_same(bound), *channels], work=2.0)


def instance_norm(bound: BoundOperator) -> Derived:
    reads = [_same(bound), *(vector(shape, 1, bound.output[1]) for shape in bound.inputs[1:])]
    axes, spread = range(2, len(bound.output)), NormDivisor(inside=_epsilon(bound))
    return Moments(bound, reads, axes, spread, spatial=True, work=6.0)


def group_norm(bound: BoundOperator) -> Derived:
    """Declares GroupNormalization. Scale and bias have one value for each group in opset 18, and for each channel since
    opset 21."""
    channels = bound.output[1]
    each = channels // int(bound.attribute("num_groups"))
    per = each if bound.version < 21 else 1

    def groups(region: Region) -> dict[str, int]:
        return {"num_groups": span_size(region.spans[1]) // each}

    reads = [_same(bound), *(vector(shape, 1, channels, per) for shape in bound.inputs[1:])]
    axes, spread = range(2, len(bound.output)), NormDivisor(inside=_epsilon(bound))
    return Moments(
        bound, reads, axes, spread, spatial=True, work=6.0, each=each, attributes=groups, quanta={1: each}
    )


def lp_norm(bound: BoundOperator) -> Derived:
    axis = int(bound.attribute("axis", -1)) % len(bound.output)
    spread = NormDivisor(centred=False, power=int(bound.attribute("p", 2)), averaged=False)
    return Moments(bound, [_same(bound)], (axis,), spread, work=3.0)


def mean_variance_norm(bound: BoundOperator) -> Derived:
    axes = bound.integers("axes") or (0, 2, 3)
    whole = sorted({axis % len(bound.output) for axis in axes})
    return Moments(bound, [_same(bound)], whole, NormDivisor(outside=1e-9), work=6.0)


class ChannelWindow(Derived):
    """LRN: a channel reads its neighbours. The neighbours are computed too, and cut off because their own neighbours are
    missing."""

    family = "elementwise"

    def __init__(self, bound: BoundOperator) -> None:
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
    "SimplifiedLayerNormalization": layer_norm,
    "Softmax": softmax,
}
MICROSOFT = {
    "SkipLayerNormalization": skip_layer_norm,
    "SkipSimplifiedLayerNormalization": skip_layer_norm,
}
