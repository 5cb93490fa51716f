"""Turns activations that a model quantises to int8 into uint8: the same numbers plus 128, with a zero point plus 128. A
pure rule.

On x86-64, ONNX Runtime computes quantised operators in integers only if their activations are uint8. It
converts int8 itself where it sees both the operator that quantises and the operator that dequantises. In a
plan, these may be on different devices, and the operators between them would be computed in floating point,
which is slower and rounds differently. The conversion is therefore done before a model is planned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from edgepart.planner.model.subgraphs import captured_names

_DOMAINS = frozenset(["", "ai.onnx", "com.microsoft"])
_ZERO_POINT = 2
"""The index of the zero point among the inputs of both operators."""


def make_activations_unsigned(model: ModelProto) -> ModelProto:
    """The model with uint8 for each int8 tensor that a QuantizeLinear writes and only DequantizeLinears read, if the zero
    points are constants. Changes `model`."""
    graph = model.graph
    given = {value.name for value in graph.input}
    zeros = {
        tensor.name: tensor for tensor in graph.initializer if _is_zero(tensor) and tensor.name not in given
    }
    if not zeros:
        return model
    told = {value.name for value in graph.output}
    readers: dict[str, list[NodeProto]] = defaultdict(list)
    for node in graph.node:
        told.update(captured_names(node))
        for name in node.input:
            readers[name].append(node)
    taken = {
        *given,
        *readers,
        *(t.name for t in graph.initializer),
        *(o for n in graph.node for o in n.output),
    }
    made: dict[str, TensorProto] = {}
    changed: set[str] = set()
    for node in graph.node:
        if _has_zero(node, "QuantizeLinear", zeros) and node.output[0] not in told:
            behind = readers[node.output[0]]
            if _only_dequantise(behind, node.output[0], zeros):
                changed.add(node.output[0])
                for one in (node, *behind):
                    name = one.input[_ZERO_POINT]
                    if name not in made:
                        made[name] = _unsigned_zero_point(zeros[name], _unused_name(f"{name} (uint8)", taken))
                    one.input[_ZERO_POINT] = made[name].name
    graph.initializer.extend(made.values())
    for value in graph.value_info:
        if value.name in changed:
            value.type.tensor_type.elem_type = TensorProto.UINT8
    return model


def _is_zero(tensor: TensorProto) -> bool:
    return tensor.data_type == TensorProto.INT8 and tensor.data_location != TensorProto.EXTERNAL


def _has_zero(node: NodeProto, op_type: str, zeros: Collection[str]) -> bool:
    """Whether the node is this operator with one of these zero points, and its output type follows from the zero point."""
    return (
        node.op_type == op_type
        and node.domain in _DOMAINS
        and len(node.input) > _ZERO_POINT
        and node.input[_ZERO_POINT] in zeros
        and all(attribute.name != "output_dtype" or not attribute.i for attribute in node.attribute)
    )


def _only_dequantise(behind: Sequence[NodeProto], name: str, zeros: Collection[str]) -> bool:
    """Whether there are any readers, and all of them only dequantise the tensor `name`."""
    return bool(behind) and all(
        _has_zero(one, "DequantizeLinear", zeros)
        and list(one.input).count(name) == 1
        and one.input[0] == name
        for one in behind
    )


def _unused_name(name: str, taken: set[str]) -> str:
    """The name, or a longer one that is not taken."""
    while name in taken:
        name += "'"
    taken.add(name)
    return name


def _unsigned_zero_point(zero: TensorProto, name: str) -> TensorProto:
    raised = numpy_helper.to_array(zero).astype(np.int16) + 128
    return numpy_helper.from_array(raised.astype(np.uint8), name)
