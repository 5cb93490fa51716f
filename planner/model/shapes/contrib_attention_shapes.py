"""Output shapes of the attention, embedding and normalisation operators of ONNX Runtime's own domain. Pure rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnx import NodeProto, TensorProto, helper

Shape = tuple[int, ...]
OutputType = tuple[int, Shape]
"""Element type and shape of one output."""


class _Node:
    """A node's attributes, and the known shapes and types of its inputs."""

    def __init__(
        self, node: NodeProto, shapes: Sequence[Shape | None], kinds: Sequence[int], total: int | None
    ) -> None:
        self.given: Mapping[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self.names, self.shapes, self.kinds, self.total = node.input, shapes, kinds, total

    def has(self, index: int) -> bool:
        return index < len(self.names) and bool(self.names[index])

    def shape(self, index: int) -> Shape:
        """The shape of an input. Raises KeyError if it is not known."""
        found = self.shapes[index] if self.has(index) else None
        if found is None:
            raise KeyError(index)
        return found


def infer_attention_outputs(
    node: NodeProto, shapes: Sequence[Shape | None], kinds: Sequence[int], total: int | None
) -> tuple[OutputType, ...]:
    """The element type and shape of each output (the last outputs may be missing), from the inputs' shapes
    and element types (0 if not known); () if there is no rule for the operator, or not enough is known.
    `total` is the total number of keys that a GroupQueryAttention takes as an input, if it is a constant."""
    if node.op_type not in _RULES:
        return ()
    try:
        return _RULES[node.op_type](_Node(node, shapes, kinds, total))
    except (
        IndexError,
        KeyError,
        TypeError,
        ValueError,
        ZeroDivisionError,
    ):  # The node lacks something; the runtime says what.
        return ()


def _attention(node: _Node) -> tuple[OutputType, ...]:
    return _with_past(node, node.kinds[0], past=4)


def _quantised_attention(node: _Node) -> tuple[OutputType, ...]:
    return _with_past(node, node.kinds[3], past=8)


def _with_past(node: _Node, kind: int, past: int) -> tuple[OutputType, ...]:
    """The output, and one tensor of the present keys and values, which are those of the past and one more per
    row."""
    (batch, rows, _), columns = node.shape(0), node.shape(1)[1]
    sizes, heads = node.given.get("qkv_hidden_sizes") or [columns // 3] * 3, int(node.given["num_heads"])
    output = (kind, (batch, rows, sizes[2]))
    if node.given.get("past_present_share_buffer"):
        return (output, (kind, node.shape(past)))
    before = node.shape(past)[3] if node.has(past) else 0
    return output, (kind, (2, batch, heads, before + rows, sizes[0] // heads))


def _multi_head(node: _Node) -> tuple[OutputType, ...]:
    query, heads, kind = node.shape(0), int(node.given["num_heads"]), node.kinds[0]
    if not (node.has(1) and node.has(2)) or len(query) != 3 or node.has(8):
        raise KeyError("packed, or in buffers")
    key, value = node.shape(1), node.shape(2)
    length, hidden = (value[2], value[1] * value[3]) if len(value) == 4 else (value[1], value[2])
    total = length + (node.shape(6)[2] if node.has(6) else 0)
    size = key[3] if len(key) == 4 else key[2] // heads
    batch, rows, _ = query
    return (
        (kind, (batch, rows, hidden)),
        (kind, (batch, heads, total, size)),
        (kind, (batch, heads, total, hidden // heads)),
        (kind, (batch, heads, rows, total)),
    )


def _group_query(node: _Node) -> tuple[OutputType, ...]:
    """The output, and the present keys and values, whose length is that of the past's buffer or the total
    number of keys, whichever is larger."""
    (batch, rows, hidden), kind = node.shape(0), node.kinds[0]
    queries, keys = int(node.given["num_heads"]), int(node.given["kv_num_heads"])
    size = hidden // (queries if node.has(1) else queries + 2 * keys)
    output = (kind, (batch, rows, queries * size))
    if node.has(3) and node.total is None:
        return (output,)
    total = max(node.total or rows, node.shape(3)[2] if node.has(3) else 0)
    present = (kind, (batch, keys, total, size))
    return output, present, present


def _embedding(node: _Node) -> tuple[OutputType, ...]:
    batch, rows = node.shape(0)
    rows_of = (node.kinds[2], (batch, rows, node.shape(2)[1]))
    return rows_of, (TensorProto.INT32, (batch,)), rows_of


def _quantised_embedding(node: _Node) -> tuple[OutputType, ...]:
    batch, rows = node.shape(0)
    return (node.kinds[8], (batch, rows, node.shape(2)[1])), (TensorProto.INT32, (batch,))


def _skip_normalisation(node: _Node) -> tuple[OutputType, ...]:
    """The normalised rows, the mean and the deviation of each row (kept for training), and the sum."""
    like, each = (node.kinds[0], node.shape(0)), (TensorProto.FLOAT, (*node.shape(0)[:-1], 1))
    return like, each, each, like


_RULES: Mapping[str, Callable[[_Node], tuple[OutputType, ...]]] = {
    "Attention": _attention,
    "EmbedLayerNormalization": _embedding,
    "GroupQueryAttention": _group_query,
    "MultiHeadAttention": _multi_head,
    "QAttention": _quantised_attention,
    "QEmbedLayerNormalization": _quantised_embedding,
    "SkipLayerNormalization": _skip_normalisation,
    "SkipSimplifiedLayerNormalization": _skip_normalisation,
}
