"""Constant folding: computes values that are the same for every request, which are results of operators on
constants, and shapes. Pure rules.

Small values are computed at once, so that shapes further down become known. Big values are computed only when
they are read. Operators that quantise are never folded, because the runtime needs its quantise/dequantise
groups whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import NodeProto, TypeProto, ValueInfoProto, helper
from onnx.helper import tensor_dtype_to_np_dtype

from edgepart.planner.errors import ModelError
from edgepart.planner.model.faults import COMPUTING_FAULTS
from edgepart.planner.model.graph import Constant
from edgepart.planner.model.shapes.shape_inference import SHAPED_BY_DATA, Types, known_shape, tensor_of
from edgepart.planner.model.subgraphs import describe_node, nested_graphs
from edgepart.planner.model.weights import SMALL_BYTES, eager_constant, lazy_constant
from edgepart.planner.region import Array

_NEVER = frozenset(
    [
        "RandomNormal",
        "RandomUniform",
        "RandomNormalLike",
        "RandomUniformLike",
        "Bernoulli",
        "Multinomial",
        "Dropout",
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
    ]
)
"""Operators that are never folded: operators of random numbers, training and quantisation."""

_LAZY = frozenset(
    [
        "Identity",
        "Transpose",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Cast",
        "Concat",
        "Split",
        "Slice",
        "Gather",
        "Expand",
        "ConstantOfShape",
        "Tile",
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Neg",
        "Sqrt",
        "Reciprocal",
        "Where",
        "Trilu",
        "EyeLike",
    ]
)
"""Operators that are folded however big their values are, because computing them costs little more than
reading a file."""

_SOURCE_BYTES = 1 << 20
"""1 MiB: operators that read more bytes of constants than this are not computed at once."""


_GROWN_BYTES = 1 << 26
_GROWN = 4
"""A value of over 64 MiB that is also over 4 times as big as its sources is left to the runtime, because a
constant has to be read and sent, and a file of a few bytes can ask for terabytes. A ConstantOfShape is
exempt, because its value takes no memory."""


def fold_node(
    node: NodeProto, found: Types, types: Types, constants: Mapping[str, Constant], version: int
) -> dict[str, Constant] | None:
    """The node's outputs as constants; None if they depend on the request, or if folding would not be safe.

    `found`: the types of its outputs. `types`: the types of its inputs. `version`: the opset version of its
    domain."""
    if node.domain or node.op_type in _NEVER or next(nested_graphs(node), None) is not None:
        return None
    outputs = [name for name in node.output if name]
    if node.op_type in ("Shape", "Size") and node.input:
        shape = known_shape(types.get(node.input[0]))
        stand_in = None if shape is None else np.broadcast_to(np.int8(0), shape)
        return None if stand_in is None else _fold_now(node, found, [stand_in], version)
    if not all(name in constants for name in node.input if name):
        return None
    sources = [constants[name] if name else None for name in node.input]
    shapes = [known_shape(found.get(name)) for name in outputs]
    small_sources = sum(source.nbytes for source in sources if source) <= _SOURCE_BYTES
    if None in shapes:
        if node.op_type in SHAPED_BY_DATA and small_sources:
            return _fold_now(node, found, _load(sources), version)
        return None
    tensors = [tensor_of(name, found[name]) for name in outputs]
    if small_sources and sum(tensor.nbytes for tensor in tensors) <= SMALL_BYTES:
        return _fold_now(node, found, _load(sources), version)
    if node.op_type not in _LAZY or "string" in {tensor.dtype for tensor in tensors}:
        return None
    sizes = sum(tensor.nbytes for tensor in tensors), sum(source.nbytes for source in sources if source)
    if node.op_type != "ConstantOfShape" and sizes[0] > max(_GROWN_BYTES, _GROWN * sizes[1]):
        return None
    return {
        tensor.name: lazy_constant(
            tensor.name, tensor.region.shape, tensor.dtype, _fold_later(node, sources, version, index)
        )
        for index, tensor in enumerate(tensors)
    }


def _load(sources: list[Constant | None]) -> list[Array | None]:
    return [None if source is None else source.load() for source in sources]


def _fold_now(
    node: NodeProto, found: Types, inputs: list[Array | None], version: int
) -> dict[str, Constant] | None:
    """The outputs, computed now; None if ONNX's reference cannot compute them, or if their types are not as
    inferred."""
    try:
        arrays = _evaluate(node, inputs, version)
    except COMPUTING_FAULTS:
        return None  # The runtime then computes the node, or says what is wrong with it.
    result = {}
    for name, array in zip(filter(None, node.output), arrays, strict=True):
        if not _is_as_inferred(array, found.get(name)):
            return None
        result[name] = eager_constant(name, array, tensor_of(name, found[name]).dtype)
    return result


def _is_as_inferred(array: object, promised: TypeProto | None) -> bool:
    if promised is None or not isinstance(array, np.ndarray):
        return False
    tensor = tensor_of("", promised)
    shape = known_shape(promised)
    fits = shape is None or array.shape == shape
    if tensor.dtype == "string":
        return fits and array.dtype.kind in "OUST"
    return fits and bool(array.dtype == tensor_dtype_to_np_dtype(promised.tensor_type.elem_type))


def _fold_later(
    node: NodeProto, sources: list[Constant | None], version: int, index: int
) -> Callable[[], Array]:
    def load() -> Array:
        try:
            if node.op_type == "ConstantOfShape":
                return _fill(node, sources, version)
            return _evaluate(node, _load(sources), version)[index]
        except COMPUTING_FAULTS as error:
            raise ModelError(
                f"{describe_node(node)}: its constant value cannot be computed: {error}"
            ) from error

    return load


def _fill(node: NodeProto, sources: list[Constant | None], version: int) -> Array:
    """The value of a ConstantOfShape: one element, broadcast, so that a weight of any size takes no memory."""
    shape, one = _load(sources)[0], _evaluate(node, [np.ones(1, np.int64)], version)[0]
    return np.broadcast_to(one.reshape(()), () if shape is None else tuple(shape))


def _evaluate(node: NodeProto, inputs: Sequence[Array | None], version: int) -> list[Array]:
    """The named outputs, computed by ONNX's reference."""
    # Imported here because the import takes 10 MB of memory, which an agent that loads no model can save.
    from onnx.reference import ReferenceEvaluator

    names, results = list(dict.fromkeys(filter(None, node.input))), [name for name in node.output if name]
    values = [[ValueInfoProto(name=name) for name in group] for group in (names, results)]
    alone = helper.make_graph([node], "fold", values[0], values[1])
    feeds = {name: array for name, array in zip(node.input, inputs, strict=True) if name}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        arrays = ReferenceEvaluator(alone, opsets={"": version}).run(None, feeds)
    return [np.asarray(array) for array in arrays]
