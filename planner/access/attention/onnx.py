"""Attention and FlexAttention of ONNX. Batches, heads, rows (queries) and columns of values are divided among devices;
keys are read whole, or reduced in parts. Rules only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgepart.planner.access.attention.heads import (
    BATCH,
    FEATURE,
    HEAD,
    KEY,
    ROW,
    Heads,
    follow_past,
    follow_scores,
    loops_of,
)
from edgepart.planner.access.attention.mask import Frontier, input_dtype, make_mask
from edgepart.planner.access.attention.partial import MOST, OUTPUT, SUM, Blended, addends, maximum_and_sum
from edgepart.planner.access.declare.aligned import Along
from edgepart.planner.access.declare.bound import BoundOperator, Shape, is_floating
from edgepart.planner.access.declare.cut_nodes import integers
from edgepart.planner.access.declare.derived import Derived, Reads, WholeOperator, local_node
from edgepart.planner.access.declare.loops import (
    MISFIT,
    Followed,
    Job,
    LoopOutput,
    LoopPiece,
    Loops,
    of_ranks,
    require_fit,
)
from edgepart.planner.access.declare.protocol import Addend, Axis, Local, LocalNode, Reduction
from edgepart.planner.region import Interval, Region, span, span_size

Q, K, V, MASK, PAST_K, PAST_V, VALID = range(7)
Y, PRESENT_K, PRESENT_V, SCORES = range(4)


def heads_of(bound: BoundOperator) -> Heads | str:
    """Returns the extents of an attention operator, or the reason why they cannot be known."""
    q, k, v = (bound.shape(index) for index in (Q, K, V))
    if len(q) not in (3, 4) or not len(q) == len(k) == len(v) or not of_ranks(bound, {PAST_K: (4,)}):
        return MISFIT
    past = bound.shape(PAST_K)[2] if bound.has(PAST_K) else 0
    flat = len(q) == 3
    if flat:
        queries, keys = int(bound.attribute("q_num_heads", 0)), int(bound.attribute("kv_num_heads", 0))
        if queries < 1 or keys < 1 or q[2] % queries or k[2] % keys or v[2] % keys:
            return "its hidden size is not that of whole heads"
        found = Heads(flat, q[0], queries, keys, q[2] // queries, v[2] // keys, q[1], past, past + k[1])
    else:
        found = Heads(flat, q[0], q[1], k[1], q[3], v[3], q[2], past, past + k[2])
    if found.queries % found.keys:
        return "its heads of queries are not a multiple of those of keys"
    return found


def attention(bound: BoundOperator) -> Derived:
    """Declares Attention of opsets 23 and later."""
    heads = heads_of(bound)
    if isinstance(heads, str):
        return WholeOperator(bound, heads)
    full = (heads.batch, heads.queries, heads.rows, heads.total)
    mask = bound.inputs[MASK] if bound.has(MASK) else None
    if mask is not None and not _fits(mask, full):
        return WholeOperator(bound, "its mask does not fit its scores")
    return require_fit(Attended(bound, heads))


def _fits(mask: Shape, full: Shape) -> bool:
    """Whether a mask can be broadcast to the scores. The mask may end before the last key."""
    extents = zip(mask[:-1][::-1], full[:-1][::-1], strict=False)
    return 0 < len(mask) <= 4 and all(e in (1, f) for e, f in extents) and mask[-1] <= full[-1]


class Attended(Loops):
    """Attention: see the module's docstring. The local node is the operator itself. If the rows do not start at the
    first one, the causal mask is written out."""

    def __init__(
        self, bound: BoundOperator, heads: Heads, outputs: Mapping[int, LoopOutput] | None = None
    ) -> None:
        """`outputs`: how the outputs follow the loops, if these are not the operator's own outputs."""
        self.heads = heads
        valid = VALID if bound.has(VALID) else None
        before = heads.past if valid is None else -heads.rows
        self.frontier = Frontier(bool(bound.attribute("is_causal", 0)), before, valid)
        self.windowed = any(
            int(bound.attribute(f"{side}_window_size", -1)) >= 0 for side in ("left", "right")
        )
        self.writable = not self.windowed and _writable(bound, heads)
        in_parts = self.writable or not (self.frontier.causal or self.windowed)
        mask = bound.shape(MASK) if bound.has(MASK) else None
        given = [*_follow_inputs(heads), follow_scores(mask, heads), *follow_past(heads), [Along(BATCH)]]
        super().__init__(
            bound,
            loops_of(heads),
            given[: len(bound.inputs)],
            outputs or _follow_outputs(bound, heads, in_parts),
            reduced=() if outputs else self._keys(bound),
        )

    def _keys(self, bound: BoundOperator) -> tuple[Axis, ...]:
        """Returns the axis of keys, which can be reduced in parts if the model wants no output but Y."""
        others = any(bound.wants(index) for index in (PRESENT_K, PRESENT_V, SCORES))
        if others or not self.writable or self.heads.total < 2:
            return ()
        return (Axis("key", KEY, self.heads.total, reducer="log-sum-exp"),)

    def narrow(self, job: Job) -> Job:
        """Returns the job without the keys after the last causal row."""
        causal_part = (
            self.frontier.causal and self.frontier.valid is None and self.writable and self.heads.rows > 1
        )
        if not causal_part or job.outputs != (Y,):
            return job
        last = job.space.spans[ROW][-1].stop + self.frontier.before
        return replace(job, space=job.space.replace(KEY, span((0, min(last, self.heads.total)))))

    def job_nodes(self, job: Job) -> Local:
        read = self.job_reads(job)
        inputs: list[int | str | None] = [None if region is None else n for n, region in enumerate(read)]
        nodes: Local = ()
        changed: dict[str, Any] = {}
        if self.heads.flat:
            keys = span_size(job.space.spans[HEAD])
            changed |= {"q_num_heads": keys * self.heads.group, "kv_num_heads": keys}
        if self.frontier.causal and not self._finds_positions(job):
            nodes = self.write_out_mask(job)
            inputs = [*inputs[:MASK], "mask", *inputs[MASK + 1 :]]
            changed["is_causal"] = None
        attributes = self.bound.with_attributes(**changed)
        return (*nodes, LocalNode("Attention", tuple(inputs), self._name_outputs(job), attributes))

    def _finds_positions(self, job: Job) -> bool:
        """Whether the operator itself knows the positions of the job's rows. (For a single row after a past,
        the runtime's kernel masks no keys, as it assumes that all other keys are before that row.)"""
        rows, size = job.space.spans[ROW], span_size(job.space.spans[ROW])
        if size == self.heads.rows:
            return True
        alone = size == 1 and self.heads.past > 0
        return self.frontier.valid is None and len(rows) == 1 and rows[0].start == 0 and not alone

    def write_out_mask(self, job: Job) -> Local:
        """Returns nodes that make "mask" from the positions and from the mask that is given."""
        allowed = self.frontier.allow(job.space.spans[ROW], job.space.spans[KEY], "allowed")
        return (*allowed, make_mask(self.bound, MASK, "allowed", "mask"))

    def _name_outputs(self, job: Job) -> tuple[int | str | None, ...]:
        """Returns the node's outputs. The runtime always makes the output Y, and present keys and values if there is a
        past."""
        kept = (Y, PRESENT_K, PRESENT_V) if self.bound.has(PAST_K) else (Y,)
        return tuple(
            index if index in job.outputs else f"unwanted_{index}" if index in kept else None
            for index in range(len(self.bound.outputs))
        )

    def job_work(self, job: Job) -> float:
        return self.heads.work(job.space)

    def reduction(self, axis: Axis) -> Reduction:
        heads = self.heads
        made = addends(heads.batch, heads.queries, heads.rows, heads.value_size, self.bound.dtype(0))
        return Reduction(
            made,
            lambda part: AttendedPart(self.bound, heads, made, part),
            lambda parts: Blended(self.bound, heads.flat, made, len(parts)),
        )


class AttendedPart(Attended):
    """Attention over a part of the keys, which makes the addends of partial.py."""

    def __init__(self, bound: BoundOperator, heads: Heads, made: Sequence[Addend], part: Interval) -> None:
        self.part = part
        row: list[Along | None] = [Along(BATCH), Along(HEAD, heads.group), Along(ROW)]
        value = None if heads.flat else Along(FEATURE)
        outputs = {
            MOST: LoopOutput([*row, None]),
            SUM: LoopOutput([*row, None]),
            OUTPUT: LoopOutput([*row, value]),
        }
        super().__init__(replace(bound, outputs=tuple(one.shape for one in made)), heads, outputs)

    def narrow(self, job: Job) -> Job:
        return replace(job, space=job.space.replace(KEY, (self.part,)))

    def job_nodes(self, job: Job) -> Local:
        """Returns nodes that run the operator on this part of the keys, with its scores as an output. Heads
        become an axis, and the past is put before the new keys."""
        keys = span_size(job.space.spans[HEAD])
        read = self.job_reads(job)
        nodes = [*self._split_heads(Q, read[Q], keys * self.heads.group, "heads_0")]
        for new, past in ((K, PAST_K), (V, PAST_V)):
            nodes += self._join(past, new, read, keys)
        mask = MASK if self.bound.has(MASK) else None
        inputs: tuple[int | str | None, ...] = ("heads_0", "heads_1", "heads_2", mask)
        if self.frontier.causal or self.frontier.valid is not None:
            nodes += self.write_out_mask(job)
            inputs = (*inputs[:MASK], "mask")
        most, total, output = (n if n in job.outputs else f"unwanted_{n}" for n in (MOST, SUM, OUTPUT))
        unset = dict.fromkeys(("is_causal", "q_num_heads", "kv_num_heads"))
        attributes = self.bound.with_attributes(qk_matmul_output_mode=2, **unset)
        nodes.append(LocalNode("Attention", inputs, (output, None, None, "scores"), attributes))
        if MOST not in job.outputs and SUM not in job.outputs:
            return tuple(nodes)
        return (*nodes, *maximum_and_sum("scores", self.bound.dtype(0), self.bound.opset, (most, total)))

    def _join(self, past: int, new: int, read: Reads, heads: int) -> Iterator[LocalNode]:
        """Yields nodes that join this part of the past and of the new keys (or values) into heads_1 (or heads_2)."""
        sources: list[int | str] = []
        if past < len(read) and read[past] is not None:
            sources.append(past)
        if read[new] is not None:
            yield from self._split_heads(new, read[new], heads, f"new_{new}")
            sources.append(f"new_{new}")
        yield LocalNode("Concat", tuple(sources), (f"heads_{new}",), {"axis": 2})

    def _split_heads(self, index: int, region: Region | None, heads: int, target: str) -> Iterator[LocalNode]:
        """Yields nodes that give an input its heads as the second axis."""
        if not self.heads.flat or region is None:
            yield LocalNode("Identity", (index,), (target,))
            return
        batch, length, hidden = region.shape
        shape = integers([batch, length, heads, hidden // heads])
        yield LocalNode("Reshape", (index, shape), (f"{target}.split",))
        yield LocalNode("Transpose", (f"{target}.split",), (target,), {"perm": [0, 2, 1, 3]})


def _writable(bound: BoundOperator, heads: Heads) -> bool:
    """Whether positions can be written into the mask: it must be boolean or floating-point, and reach to the last key
    (or be broadcast along the keys)."""
    if not bound.has(MASK):
        return True
    dtype, last = input_dtype(bound, MASK), bound.shape(MASK)[-1]
    return (dtype == "bool" or is_floating(dtype)) and last in (1, heads.total)


def _follow_inputs(heads: Heads) -> list[Followed | None]:
    """Returns how queries, keys and values follow the loops."""
    past, size, value = heads.past, heads.size, heads.value_size
    if heads.flat:
        query: Followed = [Along(BATCH), Along(ROW), Along(HEAD, heads.group * size)]
        key: Followed = [Along(BATCH), LoopPiece(KEY, past), Along(HEAD, size)]
        return [query, key, [*key[:-1], Along(HEAD, value)]]
    query = [Along(BATCH), Along(HEAD, heads.group), Along(ROW), None]
    key = [Along(BATCH), Along(HEAD), LoopPiece(KEY, past), None]
    return [query, key, [*key[:-1], Along(FEATURE)]]


def _follow_outputs(bound: BoundOperator, heads: Heads, rows: bool) -> Mapping[int, LoopOutput]:
    """Returns how the outputs follow the loops. `rows`: whether a part of the rows can be made."""
    row = Along(ROW) if rows else None
    whole = (KEY,) if rows else (ROW, KEY)
    batch, value = Along(BATCH), None if heads.flat else Along(FEATURE)
    query = Along(HEAD, heads.group)
    made = {
        Y: LoopOutput([batch, row, Along(HEAD, heads.group * heads.value_size)], whole)
        if heads.flat
        else LoopOutput([batch, query, row, value], whole),
        PRESENT_K: LoopOutput([batch, Along(HEAD), None, None], (KEY,)),
        PRESENT_V: LoopOutput([batch, Along(HEAD), None, value], (KEY,)),
        SCORES: LoopOutput([batch, query, row, None], whole),
    }
    return {index: one for index, one in made.items() if bound.wants(index)}


class Flexible(Attended):
    """FlexAttention without sub-graphs, which is Attention without masks."""

    def _keys(self, bound: BoundOperator) -> tuple[Axis, ...]:
        return ()

    def job_nodes(self, job: Job) -> Local:
        return (local_node(self.bound),)


def flex_attention(bound: BoundOperator) -> Derived:
    if any(bound.attribute(name) is not None for name in ("score_mod", "prob_mod")):
        return WholeOperator(bound, "its sub-graphs may change any score by any other")
    heads = heads_of(bound)
    return WholeOperator(bound, heads) if isinstance(heads, str) else require_fit(Flexible(bound, heads))


DECLARATIONS = {"Attention": attention}
PREVIEW = {"FlexAttention": flex_attention}
