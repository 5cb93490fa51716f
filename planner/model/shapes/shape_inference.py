"""Infers types and shapes of one operator's outputs, by ONNX's own inference and by rules for contrib operators. Pure
rules; graph_builder.py walks over the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from onnx import (
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    TypeProto,
    checker,
    defs,
    helper,
    numpy_helper,
    shape_inference,
)

from edgepart.planner.errors import ModelError
from edgepart.planner.model.graph import Constant, Tensor
from edgepart.planner.model.shapes import (
    contrib_attention_shapes,
    contrib_packed_shapes,
    contrib_table_shapes,
)
from edgepart.planner.model.subgraphs import describe_node, nested_graphs
from edgepart.planner.model.validate import schema_of
from edgepart.planner.model.weights import SMALL_BYTES, check_size, dtype_name, item_bytes

Types = Mapping[str, TypeProto]

_DATA_BYTES = SMALL_BYTES // 2
"""Shape inference sees the values of constants up to this size: shapes, scales, axes, pads."""

SHAPED_BY_DATA = frozenset(["NonZero", "Unique", "Compress", "NonMaxSuppression", "StringSplit"])
"""Operators whose output has no known shape before it is computed, but is no bigger than the inputs times their rank."""


def tensor_type(dtype: str, shape: tuple[int, ...] | None) -> TypeProto:
    return helper.make_tensor_type_proto(TensorProto.DataType.Value(dtype.upper()), shape)


def type_of(constant: Constant) -> TypeProto:
    return tensor_type(constant.dtype, constant.shape)


def known_shape(of: TypeProto | None) -> tuple[int, ...] | None:
    """The extents of a tensor; None unless all of them are known."""
    if of is None or not of.HasField("tensor_type") or not of.tensor_type.HasField("shape"):
        return None
    dims = of.tensor_type.shape.dim
    if not all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims):
        return None
    return tuple(dim.dim_value for dim in dims)


def tensor_of(name: str, of: TypeProto | None) -> Tensor:
    """The graph's record of a value of this type. Raises ModelError for an impossible type or size."""
    kind = None if of is None else of.WhichOneof("value")
    if of is None or kind is None:
        return Tensor(name, None, "unknown", 0)
    if kind != "tensor_type":
        word = kind.removesuffix("_type").replace("sparse_tensor", "unknown")
        return Tensor(name, None, word, 0, of.SerializeToString(deterministic=True))
    if of.tensor_type.elem_type == TensorProto.UNDEFINED:
        return Tensor(name, None, "unknown", 0)
    dtype, shape = dtype_name(of.tensor_type.elem_type, f"tensor {name!r}"), known_shape(of)
    if shape is not None:
        check_size(shape, dtype, f"tensor {name!r}")
    return Tensor(name, shape, dtype, item_bytes(dtype))


def infer_types(
    node: NodeProto,
    types: Types,
    constants: Mapping[str, Constant],
    imports: Mapping[str, int],
    ir_version: int,
) -> dict[str, TypeProto]:
    """The types of the node's outputs by name, as far as they are known. `types`: the types of its inputs and
    captured values.

    Raises ModelError if the shapes of its inputs do not fit each other."""
    schema = schema_of(node.op_type, imports.get(node.domain, 1), node.domain)
    if schema is None or node.op_type in _WITHOUT_INFERENCE:
        return _infer_contrib(node, types, constants, imports, ir_version)
    data = {
        name: numpy_helper.from_array(constants[name].load(), name)
        for name in filter(None, node.input)
        if name in constants and constants[name].nbytes <= _DATA_BYTES
    }
    if any(name and name not in types for name in node.input):
        types = {**types, **{name: TypeProto() for name in node.input if name and name not in types}}
    opsets = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
    try:
        found = _infer_standard(schema, node, types, data, opsets, ir_version)
    except (shape_inference.InferenceError, checker.ValidationError) as error:
        message = str(error).strip().splitlines()[0]
        raise ModelError(f"{describe_node(node)}: the shapes of its inputs do not fit: {message}") from error
    _check_elements(node, types, found)
    if node.domain == contrib_table_shapes.DOMAIN:
        return contrib_table_shapes.add_table_shapes(
            node, found, known_shape(types.get(next(iter(node.input), "")))
        )
    return found


def _infer_standard(
    schema: defs.OpSchema,
    node: NodeProto,
    types: Types,
    data: Mapping[str, TensorProto],
    opsets: Sequence[OperatorSetIdProto],
    ir_version: int,
) -> dict[str, TypeProto]:
    def ask(of: Types, values: Mapping[str, TensorProto]) -> dict[str, TypeProto]:
        found: dict[str, TypeProto] = shape_inference.infer_node_outputs(
            schema, node, dict(of), dict(values), None, list(opsets), ir_version
        )
        return found

    if next(nested_graphs(node), None) is None:
        return ask(types, data)
    try:
        return ask(types, data)
    except shape_inference.InferenceError:
        # A branch that is never taken may not fit the known shapes; segments with sub-graphs do not declare shapes.
        return ask({name: _without_shape(of) for name, of in types.items()}, {})


def _without_shape(of: TypeProto) -> TypeProto:
    result = TypeProto()
    result.CopyFrom(of)
    if result.HasField("tensor_type"):
        result.tensor_type.ClearField("shape")
    return result


def _check_elements(node: NodeProto, types: Types, found: Types) -> None:
    """Raises ModelError for a Reshape to a shape with another number of elements, which inference accepts."""
    if node.op_type != "Reshape":
        return
    before, after = known_shape(types.get(node.input[0])), known_shape(found.get(node.output[0]))
    if before is not None and after is not None and prod(before) != prod(after):
        raise ModelError(
            f"{describe_node(node)}: the shapes of its inputs do not fit: {list(before)} has {prod(before)} elements, "
            f"and {list(after)} has {prod(after)}"
        )


_WITHOUT_INFERENCE = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
"""Standard operators for which ONNX infers nothing."""

_LIKE_FIRST_INPUT = _WITHOUT_INFERENCE | frozenset(
    [
        "BiasGelu",
        "FastGelu",
        "Gelu",
        "QuickGelu",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "LayerNormalization",
        "SimplifiedLayerNormalization",
        "QLinearSigmoid",
        "QLinearLeakyRelu",
        "QLinearSoftmax",
        "RotaryEmbedding",
        "BiasSplitGelu",
        "GroupNorm",
        "SkipGroupNorm",
        "BiasAdd",
        "BiasDropout",
        "BiasSoftmax",
    ]
)
"""Operators, most of com.microsoft, whose output 0 has the type of input 0."""

_LIKE_STANDARD: Mapping[str, tuple[str, tuple[int, ...], frozenset[str]]] = {
    "FusedConv": ("Conv", (0, 1), frozenset({"activation", "activation_params"})),
    "FusedGemm": (
        "Gemm",
        (0, 1),
        frozenset({"activation", "activation_alpha", "activation_beta", "activation_gamma"}),
    ),
    "FusedMatMul": ("MatMul", (0, 1), frozenset({"alpha", "transA", "transB", "transBatchA", "transBatchB"})),
    "TransposeMatMul": (
        "MatMul",
        (0, 1),
        frozenset({"alpha", "transA", "transB", "transBatchA", "transBatchB"}),
    ),
    "MatMulInteger16": ("MatMul", (0, 1), frozenset()),
    "NhwcFusedConv": ("Conv", (0, 1), frozenset({"activation", "activation_params"})),
    "NhwcMaxPool": ("MaxPool", (0,), frozenset()),
    "QLinearAdd": ("Add", (0, 3), frozenset()),
    "QLinearAveragePool": ("AveragePool", (0,), frozenset({"channels_last"})),
    "QLinearConv": ("Conv", (0, 3), frozenset({"channels_last"})),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,), frozenset({"channels_last"})),
    "QLinearMul": ("Mul", (0, 3), frozenset()),
    "QGemm": ("Gemm", (0, 3), frozenset()),
    "MatMulIntegerToFloat": ("MatMul", (0, 1), frozenset()),
    "DynamicQuantizeMatMul": ("MatMul", (0, 1), frozenset()),
    "Inverse": ("Identity", (0,), frozenset()),
}
"""Maps each operator of com.microsoft to the standard operator with the same shapes, the inputs that the
standard operator gets, and the attributes that it does not have."""

_AS_STANDARD = {
    "CausalConvWithState": "CausalConvWithState",
    "DynamicQuantizeLSTM": "LSTM",
    "LinearAttention": "LinearAttention",
}
"""Maps each operator of com.microsoft to the standard operator that has its first inputs and all its outputs."""

_EIGHT_BITS = (TensorProto.INT8, TensorProto.UINT8)

_PLAIN = {"channels_last": 0, "dilation": 1, "ndim": 1, "state_window": 0}
"""Attributes that the operators of _AS_STANDARD have in addition, with the values for which the outputs are
like those of the standard operator."""

_TO_FLOAT = frozenset({"MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QGemm"})


def _infer_contrib(
    node: NodeProto,
    types: Types,
    constants: Mapping[str, Constant],
    imports: Mapping[str, int],
    ir_version: int,
) -> dict[str, TypeProto]:
    """The output types of an operator of ONNX Runtime's own domain (some are listed under "") that has a
    rule; {} for other operators."""
    if node.op_type in _AS_STANDARD:
        return _infer_as_standard(node, types, ir_version)
    first = types.get(next(iter(node.input), ""))
    outputs = [name for name in node.output if name]
    if first is None or not outputs or outputs[0] != node.output[0]:
        return {}
    made = contrib_attention_shapes.infer_attention_outputs(
        node, *_input_shapes_and_types(node, types), _total_keys(node, constants)
    )
    if made:
        return {name: _type_with_shape(*one) for name, one in zip(node.output, made, strict=False) if name}
    if node.op_type in _LIKE_FIRST_INPUT:
        return {outputs[0]: first}
    shape = known_shape(first)
    if node.op_type in ("QuantizeLinear", "DequantizeLinear") and shape is not None and len(node.input) > 1:
        kind = types.get(node.input[2 if node.op_type == "QuantizeLinear" and len(node.input) > 2 else 1])
        return {} if kind is None else {outputs[0]: _type_with_shape(kind.tensor_type.elem_type, shape)}
    if node.op_type not in _LIKE_STANDARD:
        found = contrib_packed_shapes.infer_packed_output(node, *_input_shapes_and_types(node, types))
        return {} if found is None else {outputs[0]: _type_with_shape(*found)}
    op_type, inputs, dropped = _LIKE_STANDARD[node.op_type]
    if len(node.input) <= max(inputs):
        return {}
    twin = helper.make_node(op_type, [node.input[i] for i in inputs], outputs[:1])
    twin.attribute.extend(a for a in node.attribute if a.name not in dropped)
    twin.input[:] = ["first", "second"][: len(twin.input)]
    stand_ins = {
        called: _type_with_shape(TensorProto.FLOAT, _standard_input_shape(node, index, shape))
        for called, index in zip(twin.input, inputs, strict=True)
        if (shape := known_shape(types.get(node.input[index]))) is not None
    }
    if len(stand_ins) < len(inputs):
        return {}
    shape = known_shape(
        infer_types(twin, stand_ins, constants={}, imports=imports, ir_version=ir_version).get(outputs[0])
    )
    if shape is None:
        return {}
    if _channels_last(node):
        shape = (shape[0], *shape[2:], shape[1])
    return {outputs[0]: _type_with_shape(_output_element_type(node, first.tensor_type.elem_type), shape)}


def _total_keys(node: NodeProto, constants: Mapping[str, Constant]) -> int | None:
    """The total number of keys that a GroupQueryAttention takes as an input; None unless that input is a
    constant."""
    name = node.input[6] if node.op_type == "GroupQueryAttention" and len(node.input) > 6 else ""
    return int(constants[name].load().reshape(-1)[0]) if name in constants else None


def _input_shapes_and_types(node: NodeProto, types: Types) -> tuple[list[tuple[int, ...] | None], list[int]]:
    """Shapes and element types of a node's inputs; None and 0 if not known."""
    found = [types.get(name) for name in node.input]
    return [known_shape(of) for of in found], [0 if of is None else of.tensor_type.elem_type for of in found]


def _output_element_type(node: NodeProto, first: int) -> int:
    if node.op_type == "MatMulInteger16":
        return TensorProto.INT32
    rounded = node.op_type == "QGemm" and len(node.input) > 7 and bool(node.input[7])
    to_float = node.op_type in _TO_FLOAT and not rounded
    return TensorProto.FLOAT if to_float else first


def _channels_last(node: NodeProto) -> bool:
    return node.op_type.startswith("Nhwc") or any(a.name == "channels_last" and a.i for a in node.attribute)


def _infer_as_standard(node: NodeProto, types: Types, ir_version: int) -> dict[str, TypeProto]:
    """The types of all outputs, inferred for the standard operator. Quantised weights are taken as weights of input 0's
    type."""
    schema = defs.get_schema(_AS_STANDARD[node.op_type])
    if any(a.i != _PLAIN.get(a.name) for a in node.attribute if a.name not in schema.attributes):
        return {}
    twin = helper.make_node(schema.name, node.input[: len(schema.inputs)], node.output)
    twin.attribute.extend(a for a in node.attribute if a.name in schema.attributes)
    stand_ins = {
        name: types[name] for name in filter(None, twin.input) if known_shape(types.get(name)) is not None
    }
    if len(stand_ins) < len(set(filter(None, twin.input))):
        return {}
    elem_type = types[node.input[0]].tensor_type.elem_type
    for name, of in stand_ins.items():
        if of.tensor_type.elem_type in _EIGHT_BITS:
            stand_ins[name] = _type_with_shape(elem_type, known_shape(of) or ())
    opset = [helper.make_opsetid("", schema.since_version)]
    try:
        return dict(
            shape_inference.infer_node_outputs(schema, twin, stand_ins, None, None, opset, ir_version)
        )
    except (shape_inference.InferenceError, checker.ValidationError):
        return {}  # The runtime says what is wrong with the node.


def _standard_input_shape(node: NodeProto, index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an input as the standard operator would read it: transposed if a FusedMatMul reads it
    transposed, and with the channels before the spatial axes."""
    if index == 0 and len(shape) > 2 and _channels_last(node):
        return (shape[0], shape[-1], *shape[1:-1])
    if node.op_type not in ("FusedMatMul", "TransposeMatMul") or len(shape) < 2:
        return shape
    side = "AB"[index]
    given = {one.name for one in node.attribute if one.i}
    if f"transBatch{side}" in given:  # The first axis moves to before the last axis.
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if f"trans{side}" in given else shape


def _type_with_shape(elem_type: int, shape: tuple[int, ...]) -> TypeProto:
    return helper.make_tensor_type_proto(elem_type, shape)
