"""Estimators of ai.onnx.ml: linear models and support vector machines, and what gives a label beside its scores. Each
row of their results is made of the same row of their input. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgepart.planner.access.declare.aligned import Aligned
from edgepart.planner.access.declare.bound import Bound
from edgepart.planner.access.declare.derived import Derived, Whole
from edgepart.planner.access.declare.shared_axes import Runs, Together, Tracks
from edgepart.planner.access.operators.ml_trees import NO_TABLE, ROWS, path_work, rows
from edgepart.planner.region import Region


def linear_regressor(bound: Bound) -> Derived:
    """Each target has coefficients and an intercept of its own."""
    if len(bound.output) != 2:
        return Whole(bound, NO_TABLE)
    targets = int(bound.attribute("targets", 1))
    coefficients = np.asarray(bound.attribute("coefficients", ()), np.float32)
    work = 2.0 * max(coefficients.size // max(targets, 1), 1)
    intercepts = np.asarray(bound.attribute("intercepts", ()), np.float32)
    apart = (
        targets == bound.output[-1] and not coefficients.size % targets and intercepts.size in (0, targets)
    )
    # A softmax is over all targets; and of one target alone, ONNX Runtime changes nothing afterwards.
    if not apart or bound.text("post_transform", "NONE") != "NONE":
        return Aligned(bound, [rows(bound)], whole=(1,), family="gemm", work=work, names=ROWS)
    table = coefficients.reshape(targets, -1)

    def chosen(region: Region) -> dict[str, Any]:
        wanted = Region(region.spans[1:])
        kept = {"targets": wanted.size, "coefficients": wanted.crop(table).reshape(-1).tolist()}
        return {**kept, "intercepts": wanted.crop(intercepts).tolist()} if intercepts.size else kept

    return Aligned(bound, [rows(bound)], family="gemm", work=work, names=ROWS, attributes=chosen)


def svm_regressor(bound: Bound) -> Derived:
    if len(bound.output) != 2:
        return Whole(bound, NO_TABLE)
    work = 2.0 * len(bound.attribute("support_vectors", ())) + 1.0
    return Aligned(bound, [rows(bound)], whole=(1,), family="gemm", work=work, names=ROWS)


def classifier(bound: Bound) -> Derived:
    """LinearClassifier, SVMClassifier, TreeEnsembleClassifier: the label of each row, and its scores."""
    if len(bound.shape(0)) != 2 or [shape and len(shape) for shape in bound.outputs] not in (
        [1],
        [1, 2],
        [1, None],
    ):
        return Whole(bound, NO_TABLE)
    count = bound.shape(0)[0]
    numbers = len(bound.attribute("support_vectors", ())) + len(bound.attribute("coefficients", ()))
    work = 2.0 * numbers or path_work(bound, len(set(bound.attribute("nodes_treeids", ()))))
    tracks: list[Tracks] = [[Runs("batch")], [Runs("batch"), None]]
    return Together(bound, {"batch": count}, [[Runs("batch"), None]], tracks, work=count * work)


ML: dict[str, Callable[[Bound], Derived]] = {
    "LinearClassifier": classifier,
    "LinearRegressor": linear_regressor,
    "SVMClassifier": classifier,
    "SVMRegressor": svm_regressor,
    "TreeEnsembleClassifier": classifier,
}
