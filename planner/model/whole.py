"""Makes one segment of a whole model, so that a device that computes everything runs the user's own graph.
Rules over protos; only small weights are read.

Nothing in the segment is folded, bound or renamed: ONNX Runtime gets the same graph as from the file, and
gives the same bits. Only big weights are left out, as in other segments (planner/lowering/segment.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from edgepart.planner.model.blobs import INLINE_BYTES, is_inline
from edgepart.planner.model.graph import Constant, Graph, WholeModel
from edgepart.planner.model.protos import external_proto, tensor_proto
from edgepart.planner.model.subgraphs import captured_names, nested_graphs
from edgepart.planner.model.weights import Origin, constant_of, embed_external, tensors_of

LARGEST_WHOLE_BYTES = 32 << 20
"""The largest model, without its big weights. A larger model is run as an ordinary segment, with only the
operators and constants that its outputs depend on."""


def make_whole_model(model: ModelProto, origin: Origin, graph: Graph) -> WholeModel | None:
    """`model` as one segment; `graph` is the Graph of the same file. Changes `model`. None if the model has
    sparse weights, has external data other than initializers and Constants, or is over LARGEST_WHOLE_BYTES."""
    own, read = model.graph, set(_names_read(model.graph))
    if own.sparse_initializer:
        return None
    for node in own.node:
        for nested in nested_graphs(node):
            embed_external(nested, origin)
    weights: list[Constant] = []
    kept = [tensor for tensor in own.initializer if tensor.name in read]
    nodes = []
    for node in own.node:
        value = _value_of(node)
        if value is not None and _is_big(value) and node.output[0] in read:
            value.name = node.output[0]
            kept.append(value)
        else:
            nodes.append(node)
    for tensor in kept:
        if not _is_big(tensor):
            continue
        # The graph may have folded the constant away. The copy is read after the tensor has become external.
        constant = graph.constants.get(tensor.name) or constant_of(_copy(tensor), origin)
        if not is_inline(constant, constant.region):
            weights.append(constant)
            shape = constant.region.shape
            tensor.CopyFrom(external_proto(constant.name, constant.dtype, shape, constant.nbytes))
        elif tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(tensor_proto(constant.load(), tensor.name, constant.dtype))
    for field, values in (
        (own.initializer, kept),
        (own.node, nodes),
        (own.input, [value for value in own.input if value.name in read]),
    ):
        copies = [type(value).FromString(value.SerializeToString()) for value in values]
        del field[:]
        field.extend(copies)
    names = {constant.name for constant in weights}
    if any(t.data_location == TensorProto.EXTERNAL and t.name not in names for t in tensors_of(model)):
        return None
    data = model.SerializeToString(deterministic=True)
    has_value = {tensor.name for tensor in kept}
    inputs = tuple(value.name for value in own.input if value.name not in has_value)
    return WholeModel(data, inputs, tuple(weights)) if len(data) <= LARGEST_WHOLE_BYTES else None


def file_constants(model: ModelProto, origin: Origin) -> dict[str, Constant]:
    """The big constants of the file itself, by name, folded in a graph or not. Fast, because nothing is
    inferred. Raises ModelError if the size, type or place of a constant is wrong."""
    named = [(tensor.name, tensor) for tensor in model.graph.initializer]
    # Like ONNX Runtime, name the value of a Constant node after its output.
    named += [(node.output[0], value) for node in model.graph.node if (value := _value_of(node)) is not None]
    return {name: constant_of(tensor, origin, name) for name, tensor in named if _is_big(tensor)}


def _value_of(node: NodeProto) -> TensorProto | None:
    """The tensor of a Constant node; None for other nodes, and for a Constant without a tensor."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    return next((a.t for a in node.attribute if a.name == "value" and a.HasField("t")), None)


def _copy(tensor: TensorProto) -> TensorProto:
    made = TensorProto()
    made.CopyFrom(tensor)
    return made


def _names_read(graph: GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from node.input
        yield from captured_names(node)
    yield from (value.name for value in graph.output)


def _is_big(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL or tensor.ByteSize() > INLINE_BYTES
