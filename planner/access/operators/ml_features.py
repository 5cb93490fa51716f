"""Features: the ai.onnx.ml operators that prepare columns of numbers or names for an estimator. Most are element-wise;
some have an attribute with a value for each column, which is cut as columns are. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads, broadcast
from edgepart.planner.access.declare.bound import Bound
from edgepart.planner.access.declare.derived import Derived
from edgepart.planner.access.operators.ml_trees import ROWS
from edgepart.planner.region import Region


def elementwise(bound: Bound) -> Derived:
    """Binarizer, CategoryMapper, LabelEncoder."""
    return Aligned(bound, [broadcast(bound.inputs[0], bound.output)], names=_names(bound))


def _names(bound: Bound) -> Sequence[str] | None:
    return ROWS if len(bound.output) == 2 else None


def by_column(*listed: str) -> Callable[[Bound], Derived]:
    """An element-wise operator with attributes `listed` that hold one value, or one for each column."""

    def declared(bound: Bound) -> Derived:
        rank = len(bound.output)
        each = {name: values for name in listed if len(values := tuple(bound.attribute(name, ()))) > 1}
        reads = [broadcast(bound.inputs[0], bound.output)]
        if not each or rank not in (1, 2) or any(len(one) != bound.output[-1] for one in each.values()):
            # Of more axes than two, ONNX Runtime counts columns through all but the first.
            return Aligned(bound, reads, whole=range(1, rank) if each else (), work=2.0, names=_names(bound))
        return Aligned(bound, reads, work=2.0, names=_names(bound), attributes=_columns(each))

    return declared


def _columns(each: Mapping[str, Sequence[Any]]) -> Callable[[Region], Mapping[str, Any]]:
    """Of attributes with one value for each index of the last axis, the values in a region."""

    def cropped(region: Region) -> dict[str, Any]:
        last = Region(region.spans[-1:])
        return {name: last.crop(np.asarray(values)).tolist() for name, values in each.items()}

    return cropped


def one_hot(bound: Bound) -> Derived:
    """A new last axis of categories. What is none of them is all zeros, unless that is to be an error."""
    last = len(bound.output) - 1
    name = "cats_strings" if bound.attribute("cats_strings") else "cats_int64s"
    reads = [[Along(axis) for axis in range(last)]]
    if not bound.attribute("zeros", 1):
        return Aligned(bound, reads, whole=(last,), work=1.0)
    return Aligned(bound, reads, work=1.0, attributes=_columns({name: tuple(bound.attribute(name, ()))}))


def feature_vectorizer(bound: Bound) -> Derived:
    """The columns of every input, one after the other."""
    reads: list[AxisReads | None] = []
    for shape in bound.inputs:
        rows = shape is not None and len(shape) > 1
        reads.append([Along(0) if rows and axis == 0 else None for axis in range(len(shape or ()))])
    return Aligned(bound, reads, whole=range(1, len(bound.output)), family="move", names=_names(bound))


def normalizer(bound: Bound) -> Derived:
    """Each row is divided by its own norm."""
    reads = [broadcast(bound.inputs[0], bound.output)]
    last = len(bound.output) - 1
    return Aligned(bound, reads, whole=(last,), family="reduce", work=3.0, names=_names(bound))


def array_feature_extractor(bound: Bound) -> Derived:
    """Elements of the last axis of X, by their places Y."""
    last = len(bound.output) - 1
    x, y = bound.shape(0), bound.shape(1)
    data: AxisReads = [*map(Along, range(len(x) - 1)), None]
    places: AxisReads = [Along(last)] if len(y) == 1 else [None] * len(y)
    whole = () if len(y) == 1 else (last,)
    return Aligned(bound, [data, places], whole=whole, family="move", work=0.0, names=_names(bound))


ML: dict[str, Callable[[Bound], Derived]] = {
    "ArrayFeatureExtractor": array_feature_extractor,
    "Binarizer": elementwise,
    "CategoryMapper": elementwise,
    "FeatureVectorizer": feature_vectorizer,
    "Imputer": by_column("imputed_value_floats", "imputed_value_int64s"),
    "LabelEncoder": elementwise,
    "Normalizer": normalizer,
    "OneHotEncoder": one_hot,
    "Scaler": by_column("offset", "scale"),
}
OPAQUE = {
    ("ai.onnx.ml", "CastMap"): "it reads a map, which is no tensor and cannot be cut",
    ("ai.onnx.ml", "DictVectorizer"): "it reads a map, which is no tensor and cannot be cut",
    ("ai.onnx.ml", "ZipMap"): "it makes a sequence of maps, which is no tensor and cannot be cut",
}
