"""Losses: NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss. The classes of a sample are whole; samples
and their positions can be cut. If the losses are combined into one loss, that loss is a sum, or a mean, of
parts. Rules only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from edgepart.planner.access.declare.aligned import Aligned, AxisReads, Fixed, Inner
from edgepart.planner.access.declare.bound import BoundOperator, axis_names, numpy_dtype
from edgepart.planner.access.declare.derived import Derived, WholeOperator
from edgepart.planner.access.declare.protocol import Addend, Axis, Local, LocalNode, Outputs, Reduction
from edgepart.planner.access.declare.reducers import chain
from edgepart.planner.access.declare.shared_axes import Runs, SharedAxes, Tracks
from edgepart.planner.region import Interval


def loss(bound: BoundOperator) -> Derived:
    """Declares either loss, with the inputs scores (samples, classes, positions ...), labels (samples, positions ...)
    and perhaps a weight for each class. The second output of SoftmaxCrossEntropyLoss has the scores' shape."""
    shape = bound.shape(0)
    if len(shape) < 2 or len(bound.shape(1)) != len(shape) - 1:
        return WholeOperator(bound, "its labels do not fit its scores")
    names = axis_names(len(shape), spatial=True)
    kept = [name for axis, name in enumerate(names) if axis != 1]
    extents = dict(zip(kept, bound.shape(1), strict=True))
    how = bound.text("reduction", "mean")
    if how == "none":
        return _each(bound, names, extents)
    if how not in ("sum", "mean"):
        return WholeOperator(bound, f"its reduction is {how!r}")
    if bound.wants(1):
        return WholeOperator(bound, "it gives one loss of all samples and log-probabilities of each")
    reads: list[AxisReads | None] = [
        [None if axis == 1 else Inner(name) for axis, name in enumerate(names)],
        [Inner(name) for name in kept],
        *([None] for _ in bound.inputs[2:]),
    ]
    weighed = how == "mean" and (bound.has(2) or bound.attribute("ignore_index") is not None)
    ways = [Axis(name, 0, extent, reducer=how) for name, extent in extents.items() if extent > 1]
    if weighed:
        return WeightedMean(bound, reads, ways)
    return Aligned(bound, reads, family="reduce", work=_work(bound), reduced=tuple(ways))


def _work(bound: BoundOperator) -> float:
    """Returns the FLOPs: a softmax takes an exponential, a sum and a logarithm for each score; without a
    softmax, one score for each label is read."""
    softmax = bound.operator.op_type == "SoftmaxCrossEntropyLoss"
    return 5.0 * prod(bound.shape(0)) if softmax else 2.0 * prod(bound.shape(1))


def _each(bound: BoundOperator, names: Sequence[str], extents: dict[str, int]) -> Derived:
    """Declares a loss that is given for each sample, or for each position of a sample."""
    scores: Tracks = [None if axis == 1 else Runs(name) for axis, name in enumerate(names)]
    labels: Tracks = [Runs(name) for name in extents]
    inputs: list[Tracks | None] = [scores, labels, *([None] for _ in bound.inputs[2:])]
    return SharedAxes(bound, extents, inputs, [labels, scores], family="reduce", work=_work(bound))


class WeightedMean(Aligned):
    """A mean: the sum of the weighted losses divided by the sum of the weights, both over the labels that are
    not ignored."""

    def __init__(self, bound: BoundOperator, reads: Sequence[AxisReads | None], ways: Sequence[Axis]) -> None:
        super().__init__(bound, reads, family="reduce", work=_work(bound), reduced=tuple(ways))

    def reduction(self, axis: Axis) -> Reduction:
        addend = Addend((), self.bound.dtype(0))
        return Reduction(
            (addend, addend),
            lambda part: WeightedSums(self.bound, self._reads, axis, part),
            lambda parts: Quotient(self.bound, len(parts)),
        )


class WeightedSums(Aligned):
    """The operator that makes the addends of a part of the samples: the sum of the weighted losses (output 0)
    and the sum of the weights (output 1)."""

    def __init__(
        self, bound: BoundOperator, reads: Sequence[AxisReads | None], axis: Axis, part: Interval
    ) -> None:
        def restrict(read: AxisReads) -> AxisReads:
            return [Fixed(part) if one == Inner(axis.name) else one for one in read]

        super().__init__(
            replace(bound, outputs=((), ())),
            [None if read is None else restrict(read) for read in reads],
            family="reduce",
            work=_work(bound) * part.size / axis.extent,
        )

    def nodes(self, computed: Outputs) -> Local:
        """Returns the operator as a sum, and the same operator on log-probabilities of -1, which gives the
        sum of the weights."""
        op, (_, *rest) = self.bound.operator, self.bound.present
        attributes = self.bound.with_attributes(reduction="sum")
        nodes = []
        if 0 in computed:
            nodes.append(LocalNode(op.op_type, self.bound.present, (0,), attributes))
        if 1 in computed:
            one = np.asarray([-1], numpy_dtype(self.bound.dtype(0)))
            nodes.append(LocalNode("Shape", (0,), ("shape",)))
            nodes.append(LocalNode("Expand", (one, "shape"), ("ones",)))
            nodes.append(LocalNode("NegativeLogLikelihoodLoss", ("ones", *rest), (1,), attributes))
        return tuple(nodes)


class Quotient(Aligned):
    """The operator that makes the mean from every part's sum of losses and sum of weights."""

    def __init__(self, bound: BoundOperator, count: int) -> None:
        operator = replace(bound.operator, inputs=("",) * (2 * count))
        given = replace(bound, operator=operator, inputs=((),) * (2 * count))
        super().__init__(given, [()] * (2 * count), work=2.0 * count)
        self.count = count

    def nodes(self, computed: Outputs) -> Local:
        losses, weights = range(0, 2 * self.count, 2), range(1, 2 * self.count, 2)
        return (
            *chain("Add", losses, "losses", "loss"),
            *chain("Add", weights, "weights", "weight"),
            LocalNode("Div", ("losses", "weights"), (0,)),
        )


DECLARATIONS = {"NegativeLogLikelihoodLoss": loss, "SoftmaxCrossEntropyLoss": loss}
