"""Trees: TreeEnsemble and TreeEnsembleRegressor. Rows are free; and as every tree adds a score of its own, trees are
an axis that is reduced, which is what a single row can be divided along. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log2
from typing import Any

import numpy as np

from edgepart.planner.access.declare.aligned import Aligned, Along, AxisReads
from edgepart.planner.access.declare.bound import Bound
from edgepart.planner.access.declare.derived import Derived, Whole
from edgepart.planner.access.declare.protocol import Axis
from edgepart.planner.region import Array, Interval

ROWS = ("batch", "feature")
"""Names of the axes of a table."""

NO_TABLE = "its results are not a table with a row for each of its input"


def rows(bound: Bound) -> AxisReads:
    """A table's rows run along the output's; one axis alone is a single row."""
    rank = len(bound.shape(0))
    return [Along(0), *[None] * (rank - 1)] if rank > 1 else [None] * rank


def path_work(bound: Bound, trees: int) -> float:
    """FLOPs of a row: in each tree a path from the root to a leaf."""
    nodes = len(bound.attribute("nodes_featureids", ()))
    return 2.0 * trees * log2(2 + nodes / max(trees, 1))


def regressor(bound: Bound) -> Derived:
    """TreeEnsembleRegressor: nodes and the scores of leaves are listed with the tree that they are of."""
    nodes = np.asarray(bound.attribute("nodes_treeids", ()))
    leaves = np.asarray(bound.attribute("target_treeids", ()))
    trees = np.unique(nodes)
    how = _REDUCERS.get(bound.text("aggregate_function", "SUM"))
    plain = bound.text("post_transform", "NONE") == "NONE" and _listed_alike(bound)
    if not plain or not _scored(bound, np.isin(trees, leaves)):
        how = None

    def some(part: Interval) -> dict[str, Any]:
        chosen = trees[part.start : part.stop]
        # A sum adds the base values once; a mean of parts that all add them has them once as well.
        base = 0 if how == "sum" and part.start else 1
        return {
            **_listed(bound, "nodes_", lambda of: of[np.isin(nodes, chosen)]),
            **_listed(bound, "target_", lambda of: of[np.isin(leaves, chosen)]),
            **_listed(bound, "base_values", lambda of: of * base),
        }

    return _forest(bound, len(trees), how, some)


def _listed_alike(bound: Bound) -> bool:
    """Whether all that is said of nodes, and of leaves, is said of each."""
    given = [
        (name, len(value)) for name, value in bound.operator.attributes.items() if name.startswith(_LISTS)
    ]
    return all(len({count for name, count in given if count and name.startswith(of)}) == 1 for of in _LISTS)


_LISTS = ("nodes_", "target_")


def _scored(bound: Bound, with_scores: Array) -> bool:
    """Whether parts add base values as all trees do: ONNX Runtime gives a target that no leaf scores in a row none."""
    based = any(np.any(bound.attribute(name, 0)) for name in ("base_values", "base_values_as_tensor"))
    leaves = sum(mode in ("LEAF", b"LEAF") for mode in bound.attribute("nodes_modes", ()))
    every = bound.attribute("n_targets", 1) == 1 and leaves == len(bound.attribute("target_treeids", ()))
    return bool(with_scores.all()) and (every or not based)


_REDUCERS = {"SUM": "sum", "AVERAGE": "mean"}
"""By how scores are put together. The least and the greatest are not: a target without a score counts as zero there."""


def _listed(bound: Bound, start: str, change: Callable[[Array], Array]) -> dict[str, Any]:
    """The attributes that `start` so, changed; those that are a tensor stay one."""
    found: dict[str, Any] = {}
    for name, value in bound.operator.attributes.items():
        if name.startswith(start) and len(value):
            changed = change(np.asarray(value))
            found[name] = changed if isinstance(value, np.ndarray) else changed.tolist()
    return found


def ensemble(bound: Bound) -> Derived:
    """TreeEnsemble: a tree is known by its root, and nodes that no root leads to are not visited."""
    roots = bound.integers("tree_roots") or ()
    how = {0: "mean", 1: "sum"}.get(int(bound.attribute("aggregate_function", 1)))
    if bound.attribute("post_transform", 0):
        how = None
    return _forest(bound, len(roots), how, lambda part: {"tree_roots": roots[part.start : part.stop]})


def _forest(
    bound: Bound, trees: int, how: str | None, some: Callable[[Interval], Mapping[str, Any]]
) -> Derived:
    if len(bound.output) != 2:
        return Whole(bound, NO_TABLE)
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


ML: dict[str, Callable[[Bound], Derived]] = {"TreeEnsemble": ensemble, "TreeEnsembleRegressor": regressor}
