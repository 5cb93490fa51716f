"""Output shapes of ai.onnx.ml operators for which ONNX's own inference gives only a type. Pure rules.

These operators read a table with one row per sample, or a single sample, and write a table with the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import NodeProto, TypeProto, helper

Shape = tuple[int, ...]

DOMAIN = "ai.onnx.ml"

_LIKE_FIRST_INPUT = frozenset({"Imputer", "LabelEncoder", "Normalizer", "Scaler"})
_CLASSIFIERS = frozenset({"SVMClassifier", "TreeEnsembleClassifier"})


def add_table_shapes(
    node: NodeProto, found: Mapping[str, TypeProto], first: Shape | None
) -> dict[str, TypeProto]:
    """`found` (the type of each output) with the shapes that follow from `first` (the shape of the node's
    first input)."""
    shapes = infer_table_shapes(node, first) if first is not None else ()
    result = dict(found)
    for name, shape in zip(node.output, shapes, strict=False):  # A node may omit its last outputs.
        of = found.get(name)
        if of is not None and of.HasField("tensor_type") and not of.tensor_type.HasField("shape"):
            result[name] = helper.make_tensor_type_proto(of.tensor_type.elem_type, shape)
    return result


def infer_table_shapes(node: NodeProto, first: Shape) -> tuple[Shape, ...]:
    """The shape of each output; () if there is no rule for the operator."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type in _LIKE_FIRST_INPUT:
        return (first,)
    if len(first) not in (1, 2):
        return ()
    rows = first[0] if len(first) == 2 else 1
    if node.op_type in _CLASSIFIERS:
        return ((rows,), (rows, _scores(attributes)))
    columns = _columns(node.op_type, attributes)
    return ((rows, columns),) if columns else ()


def _columns(op_type: str, attributes: Mapping[str, Any]) -> int:
    """The number of columns of a table that is the only output; 0 if it is not known."""
    match op_type:
        case "FeatureVectorizer":
            return sum(attributes.get("inputdimensions", ()))
        case "LinearRegressor":
            return int(attributes.get("targets", 1))
        case "SVMRegressor":
            return 1
        case "TreeEnsembleRegressor":
            return int(attributes.get("n_targets", 0))
    return 0


def _scores(attributes: Mapping[str, Any]) -> int:
    """The number of scores per sample: one per label, or for support vectors without probabilities and more than two
    labels, one per pair of labels."""
    named = ("classlabels_ints", "classlabels_int64s", "classlabels_strings")
    labels = max(len(attributes.get(name, ())) for name in named)
    pairs = bool(attributes.get("vectors_per_class")) and not attributes.get("prob_a")
    return labels * (labels - 1) // 2 if pairs and labels > 2 else labels
