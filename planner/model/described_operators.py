"""Operators that users describe (planner/tdl): their descriptions in a model's file, and the model's own functions that
stay operators because they are described. Pure rules over protos."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from onnx import FunctionProto, ModelProto, NodeProto, TypeProto, helper, numpy_helper, shape_inference

from edgepart.planner.errors import ModelError
from edgepart.planner.model.graph import Constant
from edgepart.planner.model.subgraphs import check_calls, describe_node, nested_nodes
from edgepart.planner.model.weights import SMALL_BYTES
from edgepart.planner.tdl.description import OperatorDescription
from edgepart.planner.tdl.document import METADATA_KEY, read_descriptions, write_descriptions

Key = tuple[str, str]
"""Domain ("" is ai.onnx) and type of an operator, or name of a function."""

Descriptions = Mapping[Key, tuple[OperatorDescription, ...]]


def metadata_of(descriptions: Iterable[OperatorDescription]) -> bytes:
    """Bytes that give a model these descriptions: they are to be added at the end of its .onnx file, whose format lets
    entries follow in any order."""
    model = ModelProto()
    model.metadata_props.add(key=METADATA_KEY, value=write_descriptions(descriptions))
    return bytes(model.SerializeToString(deterministic=True))


def descriptions_of(model: ModelProto, more: Iterable[OperatorDescription] = ()) -> Descriptions:
    """The descriptions in a model's file, and `more`; of two for the same operator and the same ranks the last counts.
    Raises ModelError if those in the file cannot be used."""
    found: dict[Key, dict[object, OperatorDescription]] = {}
    texts = (entry.value for entry in model.metadata_props if entry.key == METADATA_KEY)
    for one in (*(one for text in texts for one in read_descriptions(text)), *more):
        found.setdefault(one.key, {})[one.form] = one
    return {key: tuple(ways.values()) for key, ways in found.items()}


def take_functions(model: ModelProto, described: Collection[Key], where: str) -> dict[Key, bytes]:
    """The model's functions that are described, and those that they call, serialised. Changes `model`: those that are
    described are no longer its functions, so that they are not written out. Raises ModelError for functions that call
    themselves."""
    functions = {_key(one): one for one in model.functions if not one.overload}
    if not functions.keys() & described:
        return {}
    check_calls(model, where)
    found: dict[Key, bytes] = {}
    wanted = [key for key in functions if key in described]
    while wanted:
        key = wanted.pop()
        if key not in found:
            found[key] = _without_shapes(functions[key])
            called = {(node.domain, node.op_type) for node in nested_nodes(functions[key])}
            wanted += called & functions.keys()
    kept = [one for one in model.functions if one.overload or _key(one) not in described]
    copies = [FunctionProto.FromString(one.SerializeToString()) for one in kept]
    del model.functions[:]
    model.functions.extend(copies)
    return found


def infer_function(
    node: NodeProto,
    types: Mapping[str, TypeProto],
    constants: Mapping[str, Constant],
    functions: Mapping[Key, bytes],
    imports: Mapping[str, int],
    ir_version: int,
) -> dict[str, TypeProto]:
    """The types of the outputs of a node that calls a function, as far as they are known. Raises ModelError if the shapes
    of its inputs do not fit."""
    names = list(dict.fromkeys(filter(None, node.input)))
    data = [
        numpy_helper.from_array(constants[name].load(), name)
        for name in names
        if name in constants and constants[name].nbytes <= SMALL_BYTES // 2
    ]
    held = {one.name for one in data}
    graph = helper.make_graph(
        [node],
        "call",
        [helper.make_value_info(name, types.get(name, TypeProto())) for name in names if name not in held],
        [helper.make_empty_tensor_value_info(name) for name in filter(None, node.output)],
        data,
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    model.functions.extend(FunctionProto.FromString(one) for one in functions.values())
    try:
        inferred = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except shape_inference.InferenceError as error:
        raise ModelError(
            f"{describe_node(node)}: the shapes of its inputs do not fit: {str(error).strip().splitlines()[0]}"
        ) from error
    return {value.name: value.type for value in inferred.graph.output if value.type.WhichOneof("value")}


def _key(function: FunctionProto) -> Key:
    return (function.domain, function.name)


def _without_shapes(function: FunctionProto) -> bytes:
    """The function, without the shapes of its values, which a part of its inputs does not have."""
    made = FunctionProto.FromString(function.SerializeToString())
    del made.value_info[:]
    return bytes(made.SerializeToString(deterministic=True))
