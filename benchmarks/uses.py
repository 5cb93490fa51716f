"""Uses of operators: an operator with shapes, attributes and constant inputs, and the axes that its declaration gives it.

The axes along which an operator can be split depend on how it is used, so the table in docs/operators.md is
made from uses: the onnx project's node cases, and uses of this project's law tests that show more
(benchmarks/uses.json, written by `python -m benchmarks.uses`, which runs them).
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from onnx import ModelProto, numpy_helper

from edgepart.planner import access
from edgepart.planner.access.declare.bound import numpy_dtype
from edgepart.planner.access.declare.protocol import Access
from edgepart.planner.errors import EdgepartError
from edgepart.planner.model.graph import Constant, Graph, Operator, Tensor
from edgepart.planner.model.load import load_graph
from edgepart.planner.region import Array

KEPT = Path(__file__).with_name("uses.json")
LAWS = Path(__file__).parents[1] / "tests" / "planner" / "access"
SMALL = 64
"""Maximum number of elements of a constant that are written into uses.json; a bigger constant counts as zeros."""
MOST = 8
"""Maximum number of uses kept of one operator."""

GENERAL = ("the shape of ", "without elements")
"""Parts of reasons that apply to any operator."""

Key = tuple[str, str]
"""Domain ("" is ai.onnx) and operator type."""


@dataclass(frozen=True)
class Found:
    """The result of declaring one use."""

    key: Key
    axes: tuple[tuple[str, str | None], ...]
    """Names of axes, with the reducer of each reduced one."""
    every: bool
    """Whether it can be split along each axis of output 0 that has more than one index."""
    reason: str | None
    """Why it cannot be split; None if it can."""


def found(operator: Operator, graph: Graph) -> Found:
    made = access.access_of(operator, graph)
    axes = made.axes()
    written = {axis.index for axis in axes if axis.reducer is None}
    shape = graph.shape_of(operator.outputs[0]) or ()
    every = bool(written) and written == {index for index, extent in enumerate(shape) if extent > 1}
    domain = "" if operator.domain == "ai.onnx" else operator.domain
    named = tuple((axis.name, axis.reducer) for axis in axes)
    return Found((domain, operator.op_type), named, every, made.opaque)


def shows(one: Found) -> set[Any]:
    """Return what a use adds to the page."""
    along = {"every"} if one.every else {name for name, reducer in one.axes if reducer is None}
    return {*along, *(axis for axis in one.axes if axis[1] is not None), one.reason} - {None}


def all_found() -> list[Found]:
    """Return the results of all uses, without duplicates."""
    return list(dict.fromkeys([*node_cases(), *kept_uses()]))


def node_cases() -> Iterator[Found]:
    """Yield the results of every operator in the onnx project's node cases: as they are, and with small
    inputs as constants, as most models have them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    for case in cases:
        if case.model is None or not case.data_sets or "_expanded" in case.name:
            continue
        for model in (case.model, _with_constants(case.model, case.data_sets[0][0])):
            try:
                graph = load_graph(model.SerializeToString())
            except EdgepartError:  # cannot be planned: the cases' own run reports the reason
                continue
            made = (found(operator, graph) for operator in graph.operators)
            yield from filter(_tells, made)


def _tells(one: Found) -> bool:
    """Whether a use says anything about its operator: no operator without a known shape, or without elements,
    can be split."""
    return one.reason is None or not any(part in one.reason for part in GENERAL)


def _with_constants(model: ModelProto, values: Sequence[Any]) -> ModelProto:
    made = ModelProto()
    made.CopyFrom(model)
    for value, given in list(zip(made.graph.input, values, strict=False))[1:]:
        if (
            isinstance(given, np.ndarray)
            and given.ndim < 2
            and given.size <= SMALL
            and given.dtype.kind in "iub"
        ):
            made.graph.initializer.append(numpy_helper.from_array(given, value.name))
            made.graph.input.remove(value)
    made.ir_version = max(made.ir_version, 4)
    return made


def kept_uses() -> Iterator[Found]:
    """Yield the results of the uses in uses.json."""
    for entry in json.loads(KEPT.read_text()):
        operator, graph = _revived(entry)
        yield found(operator, graph)


def _written(operator: Operator, graph: Graph) -> dict[str, Any] | None:
    """Return a use as JSON; None if it cannot be written as JSON."""
    tensors = {
        name: [graph.tensors[name].shape, graph.tensors[name].dtype]
        for name in (*operator.inputs, *operator.outputs)
        if name in graph.tensors
    }
    constants: dict[str, Any] = {}
    for name in operator.inputs:
        if name in graph.constants:
            one = graph.constants[name]
            plain = one.region.size <= SMALL and np.dtype(numpy_dtype(one.dtype)).kind in "iubf"
            constants[name] = [one.shape, one.dtype, one.load().reshape(-1).tolist() if plain else None]
    entry = {
        "op_type": operator.op_type,
        "domain": operator.domain,
        "version": operator.version,
        "imports": dict(graph.opset_imports),
        "inputs": operator.inputs,
        "outputs": operator.outputs,
        "attributes": {k: v.decode() if isinstance(v, bytes) else v for k, v in operator.attributes.items()},
        "tensors": tensors,
        "constants": constants,
    }
    try:
        written: dict[str, Any] = json.loads(json.dumps(entry, allow_nan=False))
    except (TypeError, ValueError):
        return None
    return written


def _revived(entry: Mapping[str, Any]) -> tuple[Operator, Graph]:
    tensors = {
        name: Tensor(name, None if shape is None else tuple(shape), dtype, 4)
        for name, (shape, dtype) in entry["tensors"].items()
    }
    constants = {name: _constant(name, *value) for name, value in entry["constants"].items()}
    operator = Operator(
        "it",
        entry["op_type"],
        entry["domain"],
        entry["version"],
        tuple(entry["inputs"]),
        tuple(entry["outputs"]),
        entry["attributes"],
    )
    given = tuple(name for name in operator.inputs if name in tensors)
    outputs = tuple(filter(None, operator.outputs))
    graph = Graph("use", given, outputs, tensors, constants, (operator,), entry["imports"], 8)
    return operator, graph


def _constant(name: str, shape: list[int], dtype: str, values: list[Any] | None) -> Constant:
    kind = np.dtype(numpy_dtype(dtype))
    array: Array = np.zeros(shape, kind) if values is None else np.asarray(values, kind).reshape(shape)
    return Constant(name, tuple(shape), dtype, array.nbytes, lambda: array)


@contextmanager
def _recorded(into: dict[Key, list[dict[str, Any]]]) -> Iterator[None]:
    """Record in `into` all uses whose declarations are asked for inside the block."""
    true = access.access_of

    def recording(operator: Operator, graph: Graph) -> Access:
        domain = "" if operator.domain == "ai.onnx" else operator.domain
        if (entry := _written(operator, graph)) is not None:
            into.setdefault((domain, operator.op_type), []).append(entry)
        return true(operator, graph)

    with patch.object(access, "access_of", recording):
        yield


def _telling(seen: Mapping[Key, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield the uses that show more than the node cases and the uses before them."""
    shown: dict[Key, set[Any]] = {}
    for one in node_cases():
        shown.setdefault(one.key, set()).update(shows(one))
    for key in sorted(seen):
        known, count = shown.setdefault(key, set()), 0
        for entry in seen[key]:
            one = found(*_revived(entry))
            if count < MOST and _tells(one) and not shows(one) <= known:
                known |= shows(one)
                count += 1
                yield entry


def main() -> int:
    """Run the law tests, and keep their uses that show more than the node cases."""
    import pytest

    seen: dict[Key, list[dict[str, Any]]] = {}
    with _recorded(seen):
        files = map(str, sorted(LAWS.glob("test_law_*.py")))
        settled = ["-q", "-p", "no:cacheprovider", "--hypothesis-profile=ci"]  # the same examples every time
        status = pytest.main([*settled, *files])
    kept = [json.dumps(entry, sort_keys=True) for entry in _telling(seen)]
    KEPT.write_text("[\n" + ",\n".join(kept) + "\n]\n")
    print(f"{len(kept)} uses in {KEPT}")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
