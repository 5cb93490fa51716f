"""Reference: what one session over the whole model answers, and how far from it another answer may be. A door: it makes
sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort

from edgepart.agent.sameness import TOLERANCE, Values, differences, largest_difference
from edgepart.agent.sessions import LoadedModel, load_model
from edgepart.planner.graph import Graph

QUANTISED = (
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "QLinear",
    "Integer",
    "NBits",
    "QAttention",
)
"""Parts of the names of operators that round to integers."""


def alone(model: Path | bytes, inputs: Values, *, level: Any = None) -> dict[str, Any]:
    """One session's outputs by name; `level` is another of ONNX Runtime's optimisation levels than the default.

    ModelError, RequestError where ONNX Runtime does not take the model or the inputs."""
    return _run(load_model(model, level=level), inputs)


def _run(session: LoadedModel, inputs: Values) -> dict[str, Any]:
    found = session.run([inputs[name] for name in session.input_names])
    return dict(zip(session.output_names, found, strict=True))


def is_quantised(graph: Graph) -> bool:
    """Whether anything in it rounds to integers."""
    return any(part in op.op_type for op in graph.operators for part in QUANTISED)


def noise_floor(model: Path | bytes, inputs: Values, expected: Values) -> float:
    """What ONNX Runtime's own optimisation levels differ by on this machine: what a quantised model may differ by, as
    fusing changes how such models round."""
    levels = (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC)
    found = [largest_difference(alone(model, inputs, level=level), expected) for level in levels]
    return max(TOLERANCE, *found)


@dataclass(frozen=True)
class Reference:
    """One session's answer."""

    outputs: Mapping[str, Any]
    """Without those that are random."""
    tolerance: float | None
    """Of a quantised model, its noise floor; None where the outputs' types say it (sameness.tolerance_of)."""
    random: tuple[str, ...] = ()
    """Outputs that differ from one run to the next: nothing can be compared with them."""

    def differences(self, got: Values) -> list[str]:
        """What is not the same answer; nothing where all is."""
        return differences(got, self.outputs, self.tolerance)

    def largest_difference(self, got: Values) -> float:
        """Over the outputs of floating point, relative to each one's largest magnitude."""
        return largest_difference(got, self.outputs)


def reference_of(model: Path | bytes, graph: Graph, inputs: Values) -> Reference:
    """`graph` is the model's. One session runs twice, to find out what is random; three of a quantised model.

    ModelError, RequestError where ONNX Runtime does not take the model or the inputs."""
    session = load_model(model)
    first, second = _run(session, inputs), _run(session, inputs)
    random = tuple(name for name in first if differences({name: second[name]}, {name: first[name]}))
    outputs = {name: value for name, value in first.items() if name not in random}
    tolerance = noise_floor(model, inputs, outputs) if is_quantised(graph) else None
    return Reference(outputs, tolerance, random)
