"""RotaryEmbedding of ONNX and of ONNX Runtime's own domain, which rotates each head of each row by the row's
position. Rules only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgepart.planner.access.attention.mask import positions
from edgepart.planner.access.declare.aligned import Along
from edgepart.planner.access.declare.bound import BoundOperator
from edgepart.planner.access.declare.derived import Derived, WholeOperator, local_node
from edgepart.planner.access.declare.loops import (
    MISFIT,
    Followed,
    Job,
    Loop,
    LoopOutput,
    Loops,
    of_ranks,
    require_fit,
)
from edgepart.planner.access.declare.protocol import Local, LocalNode
from edgepart.planner.region import span_size

BATCH, HEAD, ROW = range(3)


def rotary_embedding(bound: BoundOperator) -> Derived:
    """Declares RotaryEmbedding with the inputs X, cos_cache, sin_cache, position_ids. Positions choose rows of the
    caches; without positions, the caches have a row for each row of X."""
    return _rotary(bound, positions_at=3, caches=(1, 2))


def rotary_embedding_microsoft(bound: BoundOperator) -> Derived:
    """Declares RotaryEmbedding of com.microsoft with the inputs input, position_ids, cos_cache, sin_cache.
    The input has a position for each row, or only the position of the first row."""
    if bound.attribute("is_packed_batching", 0):
        return WholeOperator(bound, "its batches are packed without padding")
    return _rotary(bound, positions_at=1, caches=(2, 3))


def _rotary(bound: BoundOperator, positions_at: int, caches: tuple[int, int]) -> Derived:
    shape = bound.output
    if not of_ranks(bound, {caches[0]: (2, 3), caches[1]: (2, 3), positions_at: (1, 2)}):
        return WholeOperator(bound, MISFIT)
    if len(shape) == 3:
        count = int(bound.attribute("num_heads", 0))
        if not count and not bound.attribute("rotary_embedding_dim", 0):
            count = shape[2] // max(2 * bound.shape(caches[0])[-1], 1)
        if count < 1 or shape[2] % count:
            return WholeOperator(bound, "its hidden size is not that of whole heads")
        flat = [Along(BATCH), Along(ROW), Along(HEAD, shape[2] // count)]
        return require_fit(Rotary(bound, (shape[0], count, shape[1]), flat, positions_at, caches))
    if len(shape) != 4:
        return WholeOperator(bound, "its heads are not known")
    apart = [Along(BATCH), Along(HEAD), Along(ROW), None]
    return require_fit(Rotary(bound, shape[:3], apart, positions_at, caches))


class Rotary(Loops):
    """RotaryEmbedding. The local node is the operator itself. If the model gives only the first row's position, the
    rows of a later part get explicit positions."""

    def __init__(
        self,
        bound: BoundOperator,
        extents: tuple[int, ...],
        axes: Sequence[Along | None],
        positions_at: int,
        caches: tuple[int, int],
    ) -> None:
        inputs: list[Followed | None] = [None] * len(bound.inputs)
        inputs[0] = axes
        for index in caches:
            rank = len(bound.shape(index))
            inputs[index] = [Along(BATCH), Along(ROW), None] if rank == 3 else [None] * rank
        self.first_at = None
        if bound.has(positions_at):
            each = len(bound.shape(positions_at)) == 2
            inputs[positions_at] = [Along(BATCH), Along(ROW)] if each else [None]
            self.first_at = None if each else positions_at
        loops = [
            Loop(name, extent) for name, extent in zip(("batch", "head", "sequence"), extents, strict=True)
        ]
        super().__init__(bound, loops, inputs, {0: LoopOutput(axes)}, family="elementwise")

    def job_nodes(self, job: Job) -> Local:
        node = local_node(self.bound)
        if self.bound.attribute("num_heads", 0):
            heads = span_size(job.space.spans[HEAD])
            node = replace(node, attributes=self.bound.with_attributes(num_heads=heads))
        rows = job.space.spans[ROW]
        if self.first_at is None or (len(rows) == 1 and rows[0].start == 0):
            return (node,)
        placed = np.tile(positions(rows), (span_size(job.space.spans[BATCH]), 1))
        inputs = tuple("positions" if index == self.first_at else index for index in node.inputs)
        return LocalNode("Add", (self.first_at, placed), ("positions",)), replace(node, inputs=inputs)

    def job_work(self, job: Job) -> float:
        return 3.0 * self.written_region(job, 0).size


DECLARATIONS = {"RotaryEmbedding": rotary_embedding}
MICROSOFT = {"RotaryEmbedding": rotary_embedding_microsoft}
