"""The onnx project's own cases of one operator, as cases for the law."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

from tests.planner.access.law import Case

LATEST = 26
"""Opset of ai.onnx up to which the installed ONNX Runtime takes models; cases of later ones are tried as of it."""


@cache
def _all() -> tuple[Any, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # They are made by casts that overflow on purpose.
        return tuple(collect_testcases(None))


def _value(attribute: onnx.AttributeProto) -> Any:
    found = onnx.helper.get_attribute_value(attribute)
    return onnx.numpy_helper.to_array(found) if isinstance(found, onnx.TensorProto) else found


def node_cases(op_type: str, domain: str = "") -> dict[str, Case]:
    """By name, the cases whose model is one node of that operator. Shapes, axes and the like are constants, as
    declarations want them; the input 0 never is."""
    found = {}
    for one in _all():
        nodes = one.model.graph.node
        if len(nodes) != 1 or (nodes[0].op_type, nodes[0].domain) != (op_type, domain):
            continue
        inputs = dict(zip([value.name for value in one.model.graph.input], one.data_sets[0][0], strict=True))
        arrays = [np.asarray(inputs[name]) if name else None for name in nodes[0].input]
        integers = {n for n, a in enumerate(arrays) if n and a is not None and a.dtype == np.int64}
        found[one.name] = Case(
            op_type,
            arrays,
            {a.name: _value(a) for a in nodes[0].attribute},
            version=min(next(o.version for o in one.model.opset_import if o.domain == domain), LATEST),
            domain=domain,
            constants=frozenset(integers),
            outputs=len(nodes[0].output),
        )
    return found
