"""Attention and QAttention of ONNX Runtime's own domain. One weight holds the projections to queries, keys and values as
three blocks of columns, and a head reads its columns of each block. Rules only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edgepart.planner.access.attention.contrib import (
    SHARED,
    Headed,
    follow_padding,
    given_shape,
    hidden_outputs,
)
from edgepart.planner.access.attention.heads import BATCH, HEAD, KEY, ROW, Heads, follow_scores
from edgepart.planner.access.declare.aligned import Along
from edgepart.planner.access.declare.bound import BoundOperator
from edgepart.planner.access.declare.cut_nodes import cut
from edgepart.planner.access.declare.derived import Derived, WholeOperator
from edgepart.planner.access.declare.loops import (
    MISFIT,
    Followed,
    Job,
    LoopOutput,
    LoopPiece,
    Packed,
    of_ranks,
    require_fit,
)
from edgepart.planner.access.declare.protocol import Local, LocalNode
from edgepart.planner.region import Region, span, span_size


def projected_attention(bound: BoundOperator) -> Derived:
    """Declares Attention with the inputs input, weights, bias, mask_index, past, attention_bias, and, if buffers are
    shared, the length of the past."""
    heads = _projected_heads(bound, past=4)
    if bound.has(6) or bound.attribute("past_present_share_buffer", 0):
        return WholeOperator(bound, SHARED)
    if isinstance(heads, str):
        return WholeOperator(bound, heads)
    if heads.value_size != heads.size and bound.wants(1):
        return WholeOperator(bound, "its present values are not of the size of its keys")
    if bound.attribute("do_rotary", 0):
        return WholeOperator(bound, "it turns its queries and keys by their positions")
    padding = follow_padding(given_shape(bound, 3), heads)
    if isinstance(padding, str):
        return WholeOperator(bound, padding)
    return require_fit(Projected(bound, heads, padding))


def _projected_heads(bound: BoundOperator, past: int) -> Heads | str:
    if not of_ranks(bound, {0: (3,), 1: (2,), past: (5,)}):
        return MISFIT
    x, weights, count = bound.shape(0), bound.shape(1), int(bound.attribute("num_heads", 0))
    sizes = bound.integers("qkv_hidden_sizes") or (weights[1] // 3,) * 3
    if count < 1 or sum(sizes) != weights[1] or sizes[0] != sizes[1] or any(size % count for size in sizes):
        return "its hidden sizes are not those of whole heads"
    before = bound.shape(past)[3] if bound.has(past) else 0
    return Heads(True, x[0], count, count, sizes[0] // count, sizes[2] // count, x[1], before, before + x[1])


def _columns(heads: Heads) -> Packed:
    """Returns how the columns of queries, keys and values, side by side, follow the heads."""
    size, hidden = heads.size, heads.queries * heads.size
    return Packed(HEAD, ((0, size), (hidden, size), (2 * hidden, heads.value_size)))


def _together(rows: bool) -> LoopOutput:
    """Returns how present keys and values in one tensor, [2, batch, heads, keys, size], follow the loops. `rows`:
    whether a part of the rows can be made."""
    return LoopOutput([None, Along(BATCH), Along(HEAD), None, None], (KEY,) if rows else (ROW, KEY))


class Projected(Headed):
    """Attention. For all rows, the local node is the operator itself. For a part of the rows, nodes make the
    projections (queries of these rows, keys and values of all rows), and MultiHeadAttention does the rest."""

    added = 5

    def __init__(self, bound: BoundOperator, heads: Heads, padding: Followed | None) -> None:
        ends = padding is not None and isinstance(padding[0], Packed)
        rows = heads.past == 0 and not ends and bound.has(2) and not bound.wants(1)
        past: Followed = [None, Along(BATCH), Along(HEAD), LoopPiece(KEY), None]
        inputs: list[Followed | None] = [
            [Along(BATCH), LoopPiece(KEY, heads.past), None],
            [None, _columns(heads)],
            [_columns(heads)],
            padding,
            past,
            follow_scores(given_shape(bound, 5), heads),
        ]
        super().__init__(bound, heads, inputs, {0: hidden_outputs(heads, rows)[0], 1: _together(rows)})
        self.narrows = rows and (padding is None or len(padding) > 1)

    def attributes(self, job: Job) -> dict[str, Any]:
        changed = super().attributes(job)
        if "qkv_hidden_sizes" in changed:
            heads, size = changed["num_heads"], self.heads.size
            changed["qkv_hidden_sizes"] = [heads * size, heads * size, heads * self.heads.value_size]
        return changed

    def job_work(self, job: Job) -> float:
        batch, heads, rows, keys, _ = job.space.shape
        size, value, read = self.heads.size, self.heads.value_size, self.bound.shape(1)[0]
        columns = rows * size + min(keys, self.heads.rows) * (size + value)
        return super().job_work(job) + 2.0 * batch * heads * read * columns

    def job_nodes(self, job: Job) -> Local:
        if span_size(job.space.spans[ROW]) == self.heads.rows:
            return super().job_nodes(job)
        return tuple(self._write_out(job))

    def _write_out(self, job: Job) -> Iterator[LocalNode]:
        yield from self._projections(job)
        given = [*self.local_inputs(job), None, None, None, None]
        if written := self.frontier.causal:
            yield from self.write_out_mask(job)
        kept = {name: self.bound.attribute(name) for name in ("scale", "mask_filter_value")}
        yield LocalNode(
            "MultiHeadAttention",
            ("query", "key", "value", 2, given[3], "added" if written else given[self.added]),
            (0,),
            {"num_heads": span_size(job.space.spans[HEAD])}
            | {n: v for n, v in kept.items() if v is not None},
            "com.microsoft",
        )

    def _projections(self, job: Job) -> Iterator[LocalNode]:
        """Yields nodes that make "query" from the job's rows, and "key" and "value" from all rows that the
        job reads."""
        read = self.job_reads(job)
        x, weights = read[0], read[1]
        assert x is not None and weights is not None
        rows = x.replace(1, job.space.spans[ROW]).within(x)
        yield from cut(0, "rows", rows, x.shape, self.bound.opset)
        count, before = span_size(job.space.spans[HEAD]), 0
        for name, source, size in (
            ("query", "rows", self.heads.size),
            ("key", 0, self.heads.size),
            ("value", 0, self.heads.value_size),
        ):
            columns = Region.full(weights.shape).replace(1, span((before, before + count * size)))
            yield from cut(1, f"{name}.weights", columns, weights.shape, self.bound.opset)
            yield LocalNode("MatMul", (source, f"{name}.weights"), (name,))
            before += count * size


def quantised_attention(bound: BoundOperator) -> Derived:
    """Declares QAttention with the inputs input, weight, bias, input_scale, weight_scale, mask_index, input_zero_point,
    weight_zero_point, past."""
    heads = _projected_heads(bound, past=8)
    if bound.attribute("past_present_share_buffer", 0):
        return WholeOperator(bound, SHARED)
    if isinstance(heads, str):
        return WholeOperator(bound, heads)
    padding = follow_padding(given_shape(bound, 5), heads)
    if isinstance(padding, str):
        return WholeOperator(bound, padding)
    return require_fit(Quantised(bound, heads, padding))


class Quantised(Headed):
    """QAttention, divided by batch and by head. Rows are not divided, because the quantised projections are
    not written out."""

    def __init__(self, bound: BoundOperator, heads: Heads, padding: Followed | None) -> None:
        def each_column(index: int) -> Followed | None:
            shape = given_shape(bound, index)
            return None if shape is None else [None if e == 1 else _columns(heads) for e in shape]

        def one(index: int) -> Followed | None:
            shape = given_shape(bound, index)
            return None if shape is None else [None] * len(shape)

        inputs: list[Followed | None] = [
            [Along(BATCH), None, None],
            [None, _columns(heads)],
            [_columns(heads)],
            one(3),
            each_column(4),
            padding,
            one(6),
            each_column(7),
            [None, Along(BATCH), Along(HEAD), LoopPiece(KEY), None],
        ]
        super().__init__(bound, heads, inputs, {0: hidden_outputs(heads, False)[0], 1: _together(False)})

    def job_work(self, job: Job) -> float:
        batch, heads, rows, *_ = job.space.shape
        columns = 2 * self.heads.size + self.heads.value_size
        return super().job_work(job) + 2.0 * batch * heads * rows * self.bound.shape(1)[0] * columns


MICROSOFT = {"Attention": projected_attention, "QAttention": quantised_attention}
