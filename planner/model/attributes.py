"""Attributes of nodes, as plain Python values. Rules over protos; tensors are read from the model's files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onnx import AttributeProto, NodeProto, helper

from edgepart.planner.errors import ModelError
from edgepart.planner.model.subgraphs import describe_node
from edgepart.planner.model.weights import Origin, constant_of


def find_attribute(node: NodeProto, name: str) -> AttributeProto | None:
    return next((attribute for attribute in node.attribute if attribute.name == name), None)


def plain_attributes(node: NodeProto, origin: Origin) -> dict[str, Any]:
    """The values of all attributes, by name. Raises ModelError for one that has no value of its own, or
    cannot be read."""
    return {attribute.name: _plain_value(attribute, node, origin) for attribute in node.attribute}


def _plain_value(attribute: AttributeProto, node: NodeProto, origin: Origin) -> Any:
    """The value of an attribute as a plain Python value; text is a str if it is UTF-8."""
    if attribute.ref_attr_name:
        raise ModelError(
            f"{origin.name}: {describe_node(node)} refers to an attribute of a function, outside one"
        )
    value = helper.get_attribute_value(attribute)
    match attribute.type:
        case AttributeProto.TENSOR:
            return constant_of(value, origin).load()
        case AttributeProto.TENSORS:
            return [constant_of(proto, origin).load() for proto in value]
        case AttributeProto.STRING:
            return _text(value)
        case AttributeProto.STRINGS:
            return [_text(one) for one in value]
    return list(value) if isinstance(value, Iterable) and not isinstance(value, bytes | str) else value


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
