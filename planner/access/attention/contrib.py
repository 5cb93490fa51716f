"""Attention of ONNX Runtime's own domain: MultiHeadAttention and GroupQueryAttention. Rules only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgepart.planner.access.attention.heads import BATCH, HEAD, KEY, ROW, Heads, follow_scores, loops_of
from edgepart.planner.access.attention.mask import Frontier, forbidding_score
from edgepart.planner.access.declare.aligned import Along
from edgepart.planner.access.declare.bound import BoundOperator, Shape, numpy_dtype
from edgepart.planner.access.declare.derived import Derived, WholeOperator, local_node
from edgepart.planner.access.declare.loops import (
    MISFIT,
    Followed,
    Job,
    LoopOutput,
    LoopPiece,
    Loops,
    Packed,
    of_ranks,
    require_fit,
)
from edgepart.planner.access.declare.protocol import Local, LocalNode
from edgepart.planner.region import span, span_size

SHARED = "it writes into the buffers of its past"
_PACKED = "its mask is that of tokens packed without padding"
_SCORES = "it gives its scores, of which the runtime infers no type"


class Headed(Loops):
    """The base class of these operators: the number of heads is an attribute, and a mask by position can be
    written into the input that is added to the scores."""

    added: int
    """The input that is added to the scores, [batch or 1, heads or 1, rows, keys]."""

    def __init__(
        self,
        bound: BoundOperator,
        heads: Heads,
        inputs: Sequence[Followed | None],
        outputs: Mapping[int, LoopOutput],
    ) -> None:
        self.heads = heads
        self.frontier = Frontier(bool(bound.attribute("unidirectional", 0)), heads.past)
        named = {index: one for index, one in outputs.items() if bound.wants(index)}
        super().__init__(bound, loops_of(heads), inputs[: len(bound.inputs)], named)

    def job_work(self, job: Job) -> float:
        return self.heads.work(job.space)

    def attributes(self, job: Job) -> dict[str, Any]:
        """Returns the operator's attributes for the job's heads."""
        return self.bound.with_attributes(num_heads=span_size(job.space.spans[HEAD]) * self.heads.group)

    def local_inputs(self, job: Job) -> tuple[int | None, ...]:
        return tuple(None if region is None else n for n, region in enumerate(self.job_reads(job)))

    def job_nodes(self, job: Job) -> Local:
        node = local_node(self.bound, job.outputs, self.local_inputs(job))
        return (replace(node, attributes=self.attributes(job)),)

    def from_first(self, job: Job) -> bool:
        """Whether the operator itself knows the positions of the job's rows. The operator assumes that the
        last row belongs to the last key."""
        rows, keys = job.space.spans[ROW], job.space.spans[KEY]
        if not self.frontier.causal or span_size(rows) == self.heads.rows:
            return True
        return self.heads.past == 0 and rows == keys and len(rows) == 1 and rows[0].start == 0

    def write_out_mask(self, job: Job) -> Local:
        """Returns nodes that make "added", the value that is added to the scores, from the positions and from
        the operator's own input."""
        allowed = self.frontier.allow(job.space.spans[ROW], job.space.spans[KEY], "allowed")
        dtype = self.bound.dtype(0)
        before = self.added if self.bound.has(self.added) else np.zeros((1, 1, 1, 1), numpy_dtype(dtype))
        return (*allowed, LocalNode("Where", ("allowed", before, forbidding_score(dtype)), ("added",)))

    def narrow(self, job: Job) -> Job:
        """Returns the job without the keys after the last causal row."""
        if not self.narrows or not self.frontier.causal or job.outputs != (0,):
            return job
        last = min(job.space.spans[ROW][-1].stop, self.heads.total)
        return replace(job, space=job.space.replace(KEY, span((0, last))))

    narrows = False
    """Whether the last keys may be left out."""


def follow_padding(shape: Shape | None, heads: Heads) -> Followed | str | None:
    """Returns how a mask of keys follows the loops, or the reason why that is not known. The mask holds the
    end (and the start) of each batch's keys, or one value for each key, or one value for each row and key."""
    batch, rows, total = heads.batch, heads.rows, heads.total
    known: dict[Shape, Followed] = {
        (batch, rows, total): [Along(BATCH), Along(ROW), LoopPiece(KEY)],
        (batch, total): [Along(BATCH), LoopPiece(KEY)],
        (2 * batch,): [Packed(BATCH, ((0, 1), (batch, 1)))],
        (batch,): [Along(BATCH)],
    }
    return None if shape is None else known.get(shape, _PACKED)


def given_shape(bound: BoundOperator, index: int) -> Shape | None:
    return bound.inputs[index] if bound.has(index) else None


def multi_head(bound: BoundOperator) -> Derived:
    """Declares MultiHeadAttention with the inputs query, key, value, bias, key_padding_mask, attention_bias, past_key,
    past_value, and, if buffers are shared, the length of the past and the order of beams."""
    if bound.has(8) or bound.has(9):
        return WholeOperator(bound, SHARED)
    if bound.wants(3):
        return WholeOperator(bound, _SCORES)
    count = int(bound.attribute("num_heads", 0))
    if not (bound.has(1) and bound.has(2)) or len(bound.shape(0)) == 5 or count < 1:
        return WholeOperator(bound, "its queries, keys and values are packed into one tensor")
    if not of_ranks(bound, {0: (3,), 1: (3, 4), 2: (len(bound.shape(1)),), 6: (4,)}):
        return WholeOperator(bound, MISFIT)
    q, k, v = (bound.shape(index) for index in range(3))
    apart = len(k) == 4
    hidden, value = (k[1] * k[3], v[1] * v[3]) if apart else (k[2], v[2])
    if q[2] % count or hidden != q[2] or value % count:
        return WholeOperator(bound, "its hidden size is not that of whole heads")
    past = bound.shape(6)[2] if bound.has(6) else 0
    length = k[2] if apart else k[1]
    heads = Heads(True, q[0], count, count, q[2] // count, value // count, q[1], past, past + length)
    padding = follow_padding(given_shape(bound, 4), heads)
    if isinstance(padding, str):
        return WholeOperator(bound, padding)
    return require_fit(MultiHead(bound, heads, apart, padding))


class MultiHead(Headed):
    """MultiHeadAttention. The local node is the operator itself."""

    added = 5

    def __init__(self, bound: BoundOperator, heads: Heads, apart: bool, padding: Followed | None) -> None:
        """`apart`: whether keys and values are [batch, heads, keys, size]."""
        size, value = heads.size, heads.value_size
        blocks = ((0, size), (heads.queries * size, size), (2 * heads.queries * size, value))
        key: Followed = [Along(BATCH), LoopPiece(KEY, heads.past), Along(HEAD, size)]
        inputs: list[Followed | None] = [
            [Along(BATCH), Along(ROW), Along(HEAD, size)],
            [Along(BATCH), Along(HEAD), LoopPiece(KEY, heads.past), None] if apart else key,
            [Along(BATCH), Along(HEAD), LoopPiece(KEY, heads.past), None]
            if apart
            else [*key[:2], Along(HEAD, value)],
            [Packed(HEAD, blocks)],
            padding,
            follow_scores(given_shape(bound, 5), heads),
            [Along(BATCH), Along(HEAD), LoopPiece(KEY), None],
            [Along(BATCH), Along(HEAD), LoopPiece(KEY), None],
        ]
        square = heads.rows == heads.total - heads.past
        causal = bool(bound.attribute("unidirectional", 0))
        super().__init__(bound, heads, inputs, hidden_outputs(heads, rows=square or not causal))
        self.narrows = square and heads.past == 0 and (padding is None or len(padding) > 1)

    def job_nodes(self, job: Job) -> Local:
        if self.from_first(job):
            return super().job_nodes(job)
        inputs = [*self.local_inputs(job), None, None, None][: max(len(self.bound.inputs), self.added + 1)]
        node = local_node(
            self.bound, job.outputs, [*inputs[: self.added], "added", *inputs[self.added + 1 :]]
        )
        attributes = {**self.attributes(job), "unidirectional": 0}
        return (*self.write_out_mask(job), replace(node, attributes=attributes))


def hidden_outputs(heads: Heads, rows: bool = True) -> dict[int, LoopOutput]:
    """Returns how the hidden output, present keys and present values (two tensors) follow the loops. `rows`: whether a
    part of the rows can be made."""
    row, whole = (Along(ROW), (KEY,)) if rows else (None, (ROW, KEY))
    present = LoopOutput([Along(BATCH), Along(HEAD), None, None], (KEY,) if rows else (ROW, KEY))
    hidden = Along(HEAD, heads.group * heads.value_size)
    return {0: LoopOutput([Along(BATCH), row, hidden], whole), 1: present, 2: present}


def group_query(bound: BoundOperator) -> Derived:
    """Declares GroupQueryAttention with the inputs query, key, value, past_key, past_value, seqlens_k,
    total_sequence_length, cos_cache, sin_cache, position_ids, attention_bias, head_sink, two scales of a quantised past,
    and two weights of norms."""
    if bound.wants(3):
        return WholeOperator(bound, _SCORES)
    if bound.has(12) or bound.has(13):
        return WholeOperator(bound, "its past is quantised")
    if not of_ranks(bound, {0: (3,), 3: (4,)}):
        return WholeOperator(bound, MISFIT)
    queries, keys = int(bound.attribute("num_heads", 0)), int(bound.attribute("kv_num_heads", 0))
    packed = not bound.has(1)
    hidden = bound.shape(0)[2]
    parts = queries + 2 * keys if packed else queries
    if queries < 1 or keys < 1 or queries % keys or hidden % parts:
        return WholeOperator(bound, "its hidden size is not that of whole heads")
    return require_fit(GroupQuery(bound, _group_heads(bound, queries, keys, hidden // parts), packed))


def _group_heads(bound: BoundOperator, queries: int, keys: int, size: int) -> Heads:
    """Returns the extents. The past may lie in a buffer that is longer than its keys, so the total is taken
    from the present keys if the model wants them."""
    batch, rows, _ = bound.shape(0)
    present = bound.outputs[1] if bound.wants(1) else None
    past = bound.shape(3)[2] if bound.has(3) else 0
    total = present[2] if present and len(present) == 4 else past + rows
    return Heads(True, batch, queries, keys, size, size, rows, past, total)


class GroupQuery(Headed):
    """GroupQueryAttention, divided by batch and by groups of heads. Rows are not divided, because their
    positions depend on the lengths of the past, which are known only at run time. One node makes all outputs,
    because the runtime writes present keys over the past, and has no room there if a node gets only a cut of
    the past."""

    apart = False

    def __init__(self, bound: BoundOperator, heads: Heads, packed: bool) -> None:
        size, group = heads.size, heads.group
        start = heads.queries * size
        blocks = ((0, group * size), (start, size), (start + heads.keys * size, size))
        query: Followed = [Along(BATCH), None, Packed(HEAD, blocks) if packed else Along(HEAD, group * size)]
        key: Followed = [Along(BATCH), None, Along(HEAD, size)]
        past: Followed = [Along(BATCH), Along(HEAD), None, None]
        table: Followed = [None, None]
        bias = follow_scores(given_shape(bound, 10), heads)
        bias = None if bias is None else [*bias[:2], None, None]
        scalar: Followed = [None] * len(bound.shape(6))
        inputs: list[Followed | None] = [query, key, key, past, past, [Along(BATCH)], scalar, table, table]
        inputs += [[Along(BATCH), None], bias, [Along(HEAD, group)], None, None, [None], [None]]
        outputs = hidden_outputs(heads, False)
        if bound.has(9) and heads.rows > 1:  # A prompt takes the positions of the first batch.
            outputs = {
                n: LoopOutput([None, *one.axes[1:]], (BATCH, *one.whole)) for n, one in outputs.items()
            }
        super().__init__(bound, heads, inputs, outputs)

    def attributes(self, job: Job) -> dict[str, Any]:
        return {**super().attributes(job), "kv_num_heads": span_size(job.space.spans[HEAD])}


MICROSOFT = {
    "GroupQueryAttention": group_query,
    "MultiHeadAttention": multi_head,
}
_AGAIN = "it runs the models in its sub-graphs again and again"
_EXPERTS = "it chooses experts for each row at run time"
OPAQUE = {
    ("com.microsoft", "BeamSearch"): _AGAIN,
    ("com.microsoft", "DecoderMaskedMultiHeadAttention"): SHARED,
    ("com.microsoft", "GreedySearch"): _AGAIN,
    ("com.microsoft", "MoE"): _EXPERTS,
    ("com.microsoft", "QMoE"): _EXPERTS,
    ("com.microsoft", "Sampling"): _AGAIN,
    ("com.microsoft", "SparseAttention"): SHARED,
    ("com.microsoft", "WhisperBeamSearch"): _AGAIN,
}
