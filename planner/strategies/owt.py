"""One weird trick, OptCNN's third baseline (Jia, Lin, Qi, Aiken, section 6, after Krizhevsky 2014): data
parallelism for convolutions and pooling, model parallelism for densely connected layers.

Our additions are those of `data` and `model`. If the batch is 1, data parallelism leaves everything but the
dense layers to one device or to every device, by simulation."""

from __future__ import annotations

from collections.abc import Iterator

from edgepart.planner.layers.coarsen import Layer
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.data import divide_layers
from edgepart.planner.strategies.model import COLUMNS, column
from edgepart.planner.strategies.registry import register


@register("owt")
def candidates(study: Study) -> Iterator[Strategy]:
    """Divide dense layers along channels, and all others along the batch."""
    words = {**COLUMNS, "batch": "by the batch"}

    def axis_of(layer: Layer) -> str | None:
        return column(layer) if is_dense(study.memo, layer) else "batch"

    none = "no layer has a batch of more than one, or is dense, so one device gets it all; "
    batched = any(layer.splits("batch") for layer in study.memo.layers)
    because = "" if batched else "the batch is 1, so all but the dense layers are not divided; "
    yield from divide_layers(study, "owt", axis_of, words, none, because)


def is_dense(memo: Memo, layer: Layer) -> bool:
    """Whether the layer multiplies by a matrix of weights."""
    accesses, constants = memo.coarse.accesses, memo.graph.constants
    dense = (op for op in layer.operators if accesses[op.name].family == "gemm")
    return any(name in constants for op in dense for name in op.inputs[:2])
