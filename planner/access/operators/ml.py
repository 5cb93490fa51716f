"""Machine learning: the operators of ai.onnx.ml on tables, which are linear models, support vector machines, trees, and
operators that prepare columns. Rules only.

Rows can always be cut. An attribute with a value for each column is cut together with the columns. Every tree adds a score
of its own, so trees are a reduced axis, along which even a single row can be divided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log2
from typing import Any

import numpy as np

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads, broadcast
from edgepart.planner.access.declare.bound import BoundOperator
from edgepart.planner.access.declare.derived import Derived, WholeOperator
from edgepart.planner.access.declare.protocol import Axis
from edgepart.planner.access.declare.shared_axes import Runs, SharedAxes, Tracks
from edgepart.planner.region import Array, Interval, Region


def linear_regressor(bound: BoundOperator) -> Derived:
    """Declares LinearRegressor: each target has coefficients and an intercept of its own."""
    if len(bound.output) != 2:
        return WholeOperator(bound, NO_TABLE)
    targets = int(bound.attribute("targets", 1))
    coefficients = np.asarray(bound.attribute("coefficients", ()), np.float32)
    work = 2.0 * max(coefficients.size // max(targets, 1), 1)
    intercepts = np.asarray(bound.attribute("intercepts", ()), np.float32)
    apart = (
        targets == bound.output[-1] and not coefficients.size % targets and intercepts.size in (0, targets)
    )
    # A softmax needs all targets, and ONNX Runtime applies no post_transform to a single target.
    if not apart or bound.text("post_transform", "NONE") != "NONE":
        return Aligned(bound, [rows(bound)], whole=(1,), family="gemm", work=work, names=ROWS)
    table = coefficients.reshape(targets, -1)

    def choose_attributes(region: Region) -> dict[str, Any]:
        wanted = Region(region.spans[1:])
        kept = {"targets": wanted.size, "coefficients": wanted.crop(table).reshape(-1).tolist()}
        return {**kept, "intercepts": wanted.crop(intercepts).tolist()} if intercepts.size else kept

    return Aligned(bound, [rows(bound)], family="gemm", work=work, names=ROWS, attributes=choose_attributes)


def svm_regressor(bound: BoundOperator) -> Derived:
    if len(bound.output) != 2:
        return WholeOperator(bound, NO_TABLE)
    work = 2.0 * len(bound.attribute("support_vectors", ())) + 1.0
    return Aligned(bound, [rows(bound)], whole=(1,), family="gemm", work=work, names=ROWS)


def classifier(bound: BoundOperator) -> Derived:
    """Declares LinearClassifier, SVMClassifier and TreeEnsembleClassifier, which give the label and the scores of each
    row."""
    if len(bound.shape(0)) != 2 or [shape and len(shape) for shape in bound.outputs] not in (
        [1],
        [1, 2],
        [1, None],
    ):
        return WholeOperator(bound, NO_TABLE)
    count = bound.shape(0)[0]
    numbers = len(bound.attribute("support_vectors", ())) + len(bound.attribute("coefficients", ()))
    work = 2.0 * numbers or path_work(bound, len(set(bound.attribute("nodes_treeids", ()))))
    tracks: list[Tracks] = [[Runs("batch")], [Runs("batch"), None]]
    return SharedAxes(bound, {"batch": count}, [[Runs("batch"), None]], tracks, work=count * work)


def elementwise(bound: BoundOperator) -> Derived:
    """Declares Binarizer, CategoryMapper and LabelEncoder."""
    return Aligned(bound, [broadcast(bound.inputs[0], bound.output)], names=_names(bound))


def _names(bound: BoundOperator) -> Sequence[str] | None:
    return ROWS if len(bound.output) == 2 else None


def by_column(*listed: str) -> Callable[[BoundOperator], Derived]:
    """Returns the declaration of an element-wise operator whose attributes `listed` hold one value, or one for each
    column."""

    def declare(bound: BoundOperator) -> Derived:
        rank = len(bound.output)
        each = {name: values for name in listed if len(values := tuple(bound.attribute(name, ()))) > 1}
        reads = [broadcast(bound.inputs[0], bound.output)]
        if not each or rank not in (1, 2) or any(len(one) != bound.output[-1] for one in each.values()):
            # With more than two axes, ONNX Runtime counts columns through all axes but the first.
            return Aligned(bound, reads, whole=range(1, rank) if each else (), work=2.0, names=_names(bound))
        return Aligned(bound, reads, work=2.0, names=_names(bound), attributes=_columns(each))

    return declare


def _columns(each: Mapping[str, Sequence[Any]]) -> Callable[[Region], Mapping[str, Any]]:
    """Returns a function that crops attributes, which have one value for each index of the last axis, to a region."""

    def crop(region: Region) -> dict[str, Any]:
        last = Region(region.spans[-1:])
        return {name: last.crop(np.asarray(values)).tolist() for name, values in each.items()}

    return crop


def one_hot(bound: BoundOperator) -> Derived:
    """Declares OneHotEncoder, which adds a last axis of categories. A value of no category becomes all zeros,
    unless the model asks for an error; in that case, each device needs all categories."""
    last = len(bound.output) - 1
    name = "cats_strings" if bound.attribute("cats_strings") else "cats_int64s"
    reads = [[Along(axis) for axis in range(last)]]
    if not bound.attribute("zeros", 1):
        return Aligned(bound, reads, whole=(last,), work=1.0)
    return Aligned(bound, reads, work=1.0, attributes=_columns({name: tuple(bound.attribute(name, ()))}))


def feature_vectorizer(bound: BoundOperator) -> Derived:
    """Declares FeatureVectorizer, which joins the columns of all inputs."""
    reads: list[AxisReads | None] = []
    for shape in bound.inputs:
        rows = shape is not None and len(shape) > 1
        reads.append([Along(0) if rows and axis == 0 else None for axis in range(len(shape or ()))])
    return Aligned(bound, reads, whole=range(1, len(bound.output)), family="move", names=_names(bound))


def normalizer(bound: BoundOperator) -> Derived:
    """Declares Normalizer, which divides each row by its own norm."""
    reads = [broadcast(bound.inputs[0], bound.output)]
    last = len(bound.output) - 1
    return Aligned(bound, reads, whole=(last,), family="reduce", work=3.0, names=_names(bound))


def array_feature_extractor(bound: BoundOperator) -> Derived:
    """Declares ArrayFeatureExtractor, which takes the elements of X's last axis at the indices Y."""
    last = len(bound.output) - 1
    x, y = bound.shape(0), bound.shape(1)
    data: AxisReads = [*map(Along, range(len(x) - 1)), None]
    places: AxisReads = [Along(last)] if len(y) == 1 else [None] * len(y)
    whole = () if len(y) == 1 else (last,)
    return Aligned(bound, [data, places], whole=whole, family="move", work=0.0, names=_names(bound))


OPAQUE = {
    ("ai.onnx.ml", "CastMap"): "it reads a map, which is no tensor and cannot be cut",
    ("ai.onnx.ml", "DictVectorizer"): "it reads a map, which is no tensor and cannot be cut",
    ("ai.onnx.ml", "ZipMap"): "it makes a sequence of maps, which is no tensor and cannot be cut",
}


ROWS = ("batch", "feature")
"""The names of the axes of a table."""

NO_TABLE = "its results are not a table with a row for each of its input"


def rows(bound: BoundOperator) -> AxisReads:
    """Returns how the table is read: its rows run along the output's. A tensor with one axis is a single row."""
    rank = len(bound.shape(0))
    return [Along(0), *[None] * (rank - 1)] if rank > 1 else [None] * rank


def path_work(bound: BoundOperator, trees: int) -> float:
    """Returns the FLOPs of one row, which follows a path from the root to a leaf in each tree."""
    nodes = len(bound.attribute("nodes_featureids", ()))
    return 2.0 * trees * log2(2 + nodes / max(trees, 1))


def regressor(bound: BoundOperator) -> Derived:
    """Declares TreeEnsembleRegressor, whose attributes list nodes and scores of leaves with the tree they belong to."""
    nodes = np.asarray(bound.attribute("nodes_treeids", ()))
    leaves = np.asarray(bound.attribute("target_treeids", ()))
    trees = np.unique(nodes)
    how = _REDUCERS.get(bound.text("aggregate_function", "SUM"))
    plain = bound.text("post_transform", "NONE") == "NONE" and _have_equal_lengths(bound)
    if not plain or not _adds_base_values(bound, np.isin(trees, leaves)):
        how = None

    def some(part: Interval) -> dict[str, Any]:
        chosen = trees[part.start : part.stop]
        # A sum must add the base values once, in the first part; in a mean, every part adds them.
        base = 0 if how == "sum" and part.start else 1
        return {
            **_change_attributes(bound, "nodes_", lambda of: of[np.isin(nodes, chosen)]),
            **_change_attributes(bound, "target_", lambda of: of[np.isin(leaves, chosen)]),
            **_change_attributes(bound, "base_values", lambda of: of * base),
        }

    return _forest(bound, len(trees), how, some)


def _have_equal_lengths(bound: BoundOperator) -> bool:
    """Whether all non-empty attributes about nodes have the same length, and likewise those about leaves."""
    given = [
        (name, len(value)) for name, value in bound.operator.attributes.items() if name.startswith(_LISTS)
    ]
    return all(len({count for name, count in given if count and name.startswith(of)}) == 1 for of in _LISTS)


_LISTS = ("nodes_", "target_")


def _adds_base_values(bound: BoundOperator, with_scores: Array) -> bool:
    """Whether the parts add base values as the whole operator does. In each row, ONNX Runtime adds no base
    value to a target that no leaf scores."""
    based = any(np.any(bound.attribute(name, 0)) for name in ("base_values", "base_values_as_tensor"))
    leaves = sum(mode in ("LEAF", b"LEAF") for mode in bound.attribute("nodes_modes", ()))
    every = bound.attribute("n_targets", 1) == 1 and leaves == len(bound.attribute("target_treeids", ()))
    return bool(with_scores.all()) and (every or not based)


_REDUCERS = {"SUM": "sum", "AVERAGE": "mean"}
"""The reducer, by aggregate_function. MIN and MAX have no reducer, because they count a target without a
score as zero."""


def _change_attributes(bound: BoundOperator, start: str, change: Callable[[Array], Array]) -> dict[str, Any]:
    """Returns the attributes whose names begin with `start`, changed by `change`; a tensor stays a tensor."""
    found: dict[str, Any] = {}
    for name, value in bound.operator.attributes.items():
        if name.startswith(start) and len(value):
            changed = change(np.asarray(value))
            found[name] = changed if isinstance(value, np.ndarray) else changed.tolist()
    return found


def ensemble(bound: BoundOperator) -> Derived:
    """Declares TreeEnsemble. A part of the trees is chosen by their roots: nodes that no root leads to are not
    visited."""
    roots = bound.integers("tree_roots") or ()
    how = {0: "mean", 1: "sum"}.get(int(bound.attribute("aggregate_function", 1)))
    if bound.attribute("post_transform", 0):
        how = None
    return _forest(bound, len(roots), how, lambda part: {"tree_roots": roots[part.start : part.stop]})


def _forest(
    bound: BoundOperator, trees: int, how: str | None, some: Callable[[Interval], Mapping[str, Any]]
) -> Derived:
    if len(bound.output) != 2:
        return WholeOperator(bound, NO_TABLE)
    work = path_work(bound, trees) / bound.output[1]
    ways = (Axis("tree", 0, trees, reducer=how),) if how and trees > 1 else ()
    return Aligned(
        bound,
        [rows(bound)],
        whole=(1,),
        family="other",
        work=work,
        names=ROWS,
        reduced=ways,
        part_attributes=some,
    )


ML: dict[str, Callable[[BoundOperator], Derived]] = {
    "LinearClassifier": classifier,
    "LinearRegressor": linear_regressor,
    "SVMClassifier": classifier,
    "SVMRegressor": svm_regressor,
    "TreeEnsembleClassifier": classifier,
    "ArrayFeatureExtractor": array_feature_extractor,
    "Binarizer": elementwise,
    "CategoryMapper": elementwise,
    "FeatureVectorizer": feature_vectorizer,
    "Imputer": by_column("imputed_value_floats", "imputed_value_int64s"),
    "LabelEncoder": elementwise,
    "Normalizer": normalizer,
    "OneHotEncoder": one_hot,
    "Scaler": by_column("offset", "scale"),
    "TreeEnsemble": ensemble,
    "TreeEnsembleRegressor": regressor,
}
