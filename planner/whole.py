"""Whole: the model of a file as one segment, so that one device that computes everything runs what the user gave.

Nothing is folded, bound or renamed in it: ONNX Runtime gets the same graph as from the file, and gives the same bits. Only
big weights are left out, as in other segments (segment.py). Rules over protos; constants are read where they are small.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import GraphProto, ModelProto, TensorProto

from edgepart.planner.blobs import INLINE_BYTES, is_inline
from edgepart.planner.graph import Graph, Whole
from edgepart.planner.plan import WeightRef
from edgepart.planner.segment import outside, tensor_of, whole_ref
from edgepart.planner.subgraphs import captured_names, nested_graphs
from edgepart.planner.weights import SMALL_BYTES, Origin, constant_of, embed_external, tensors_of

LARGEST_BYTES = 32 << 20
"""Without its big weights. A model that is bigger travels in segments made of what is read of it."""


def whole_of(model: ModelProto, origin: Origin, graph: Graph) -> Whole | None:
    """`model`, which is changed, as one segment; `graph` is what was made of it. None where a weight is not among the
    constants of `graph`, from which members cut weights, or where the rest is too big to travel."""
    own, read = model.graph, set(_names_read(model.graph))
    if own.sparse_initializer:
        return None
    for node in own.node:
        for nested in nested_graphs(node):
            embed_external(nested, origin)
    refs: list[WeightRef] = []
    kept = [tensor for tensor in own.initializer if tensor.name in read]
    nodes = []
    for node in own.node:
        value = next((a.t for a in node.attribute if a.name == "value" and a.HasField("t")), None)
        apart = node.op_type == "Constant" and node.domain in ("", "ai.onnx") and value is not None
        if apart and value is not None and _is_big(value) and node.output[0] in read:
            value.name = node.output[0]  # As ONNX Runtime does when it reads the model.
            kept.append(value)
        else:
            nodes.append(node)
    for tensor in kept:
        if not _is_big(tensor):
            continue
        constant = graph.constants.get(tensor.name)
        if constant is not None and not is_inline(constant, constant.region):
            refs.append(whole_ref(constant))
            tensor.CopyFrom(outside(refs[-1]))
        elif tensor.data_location == TensorProto.EXTERNAL:
            found = constant or constant_of(tensor, origin)
            if found.nbytes > SMALL_BYTES:
                return None
            tensor.CopyFrom(tensor_of(found.load(), tensor.name, found.dtype))
    for field, values in (
        (own.initializer, kept),
        (own.node, nodes),
        (own.input, [value for value in own.input if value.name in read]),
    ):
        copies = [type(value).FromString(value.SerializeToString()) for value in values]
        del field[:]
        field.extend(copies)
    names = tuple(ref.name for ref in refs)
    if any(t.data_location == TensorProto.EXTERNAL and t.name not in names for t in tensors_of(model)):
        return None
    data = model.SerializeToString(deterministic=True)
    has_value = {tensor.name for tensor in kept}
    inputs = tuple(value.name for value in own.input if value.name not in has_value)
    return Whole(data, inputs, names) if len(data) <= LARGEST_BYTES else None


def _names_read(graph: GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from node.input
        yield from captured_names(node)
    yield from (value.name for value in graph.output)


def _is_big(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL or tensor.ByteSize() > INLINE_BYTES
