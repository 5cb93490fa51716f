"""EmbedLayerNormalization and its quantised form: the normalised sum of the embeddings of a word, a position and a
segment. Rows and batches are divided among devices; the table of words is read whole. Rules only."""

from __future__ import annotations

from edgepart.planner.access.declare.aligned import Along
from edgepart.planner.access.declare.bound import BoundOperator, Shape
from edgepart.planner.access.declare.derived import Derived, WholeOperator, local_node
from edgepart.planner.access.declare.loops import (
    MISFIT,
    Followed,
    Job,
    Loop,
    LoopOutput,
    Loops,
    Packed,
    of_ranks,
    require_fit,
)
from edgepart.planner.access.declare.protocol import Local

BATCH, ROW = range(2)
_IDS, _SEGMENTS, _POSITIONS, _MASK, _PLACES = 0, 1, 3, 7, 8


def embed(bound: BoundOperator) -> Derived:
    """Declares EmbedLayerNormalization with the inputs input_ids, segment_ids, the embeddings of words, positions and
    segments, gamma, beta, mask, position_ids."""
    return _declare_embedding(bound, bound.shape(_PLACES) if bound.has(_PLACES) else None)


def embed_quantised(bound: BoundOperator) -> Derived:
    """Declares QEmbedLayerNormalization: the same inputs up to the mask, then scales and zero points of the tables."""
    return _declare_embedding(bound, None)


def _declare_embedding(bound: BoundOperator, places: Shape | None) -> Derived:
    if len(bound.output) != 3 or not of_ranks(bound, {_PLACES: (2,)} if places else {}):
        return WholeOperator(bound, MISFIT)
    return require_fit(Embedded(bound, places))


class Embedded(Loops):
    """EmbedLayerNormalization or QEmbedLayerNormalization. The local node is the operator itself. Output 1 is
    a count over the mask of each batch; output 2 is the sum before the norm."""

    def __init__(self, bound: BoundOperator, places: Shape | None) -> None:
        """`places`: the shape of position_ids; None if row n has position n."""
        inputs: list[Followed | None] = [None if one is None else [None] * len(one) for one in bound.inputs]
        for index in (_IDS, _SEGMENTS, _MASK):
            if bound.has(index):
                inputs[index] = [Along(BATCH), Along(ROW)]
        if places is None:
            inputs[_POSITIONS] = [
                Packed(ROW, ((0, 1),)),
                None,
            ]  # The first rows of a table that may be longer.
        else:
            inputs[_PLACES] = [None if places[0] == 1 else Along(BATCH), Along(ROW)]
        rows = LoopOutput([Along(BATCH), Along(ROW), None])
        outputs = {0: rows, 1: LoopOutput([Along(BATCH)], (ROW,)), 2: rows}
        batch, length, _ = bound.output
        super().__init__(
            bound,
            (Loop("batch", batch), Loop("sequence", length)),
            inputs,
            {index: one for index, one in outputs.items() if bound.wants(index)},
            family="reduce",
        )

    def job_nodes(self, job: Job) -> Local:
        return (local_node(self.bound, job.outputs),)

    def job_work(self, job: Job) -> float:
        return 10.0 * job.space.size * self.bound.output[2]


MICROSOFT = {"EmbedLayerNormalization": embed, "QEmbedLayerNormalization": embed_quantised}
