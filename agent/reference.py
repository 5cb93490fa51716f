"""Reference: what one session over the whole model answers, and how far from it another answer may be. A door: it makes
sessions.

How far is a matter of the model alone, so that it holds on every processor: the promise in docs/architecture.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepart.agent.elements import element_dtype
from edgepart.agent.sameness import (
    TOLERANCE,
    TOLERANCE_QUANTISED,
    Values,
    differences,
    is_float,
    largest_difference,
    tolerance_of,
)
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


def alone(model: Path | bytes, inputs: Values) -> dict[str, Any]:
    """One session's outputs by name.

    ModelError, RequestError where ONNX Runtime does not take the model or the inputs."""
    return _run(load_model(model), inputs)


def _run(session: LoadedModel, inputs: Values) -> dict[str, Any]:
    found = session.run([inputs[name] for name in session.input_names])
    return dict(zip(session.output_names, found, strict=True))


def is_quantised(graph: Graph) -> bool:
    """Whether anything in it rounds to integers."""
    return any(part in op.op_type for op in graph.operators for part in QUANTISED)


def tolerance_for(graph: Graph) -> float | None:
    """What the model's outputs of floating point may differ by, relative to each one's largest magnitude; None where each
    output's own type says it (sameness.tolerance_of).

    What counts is what operators write, not what the outputs are: an output in float32 that was computed in float16 is
    no better than float16. Weights in float16 that are cast to float32 before they are used make no difference."""
    written = {graph.tensors[name].dtype for op in graph.operators for name in op.outputs if name}
    types = (element_dtype(one) for one in written)
    allowed = [tolerance_of(one) for one in types if one is not None and is_float(one)]
    widest = max(allowed + [TOLERANCE_QUANTISED] * is_quantised(graph), default=TOLERANCE)
    return widest if widest > TOLERANCE else None


@dataclass(frozen=True)
class Reference:
    """One session's answer."""

    outputs: Mapping[str, Any]
    """Without those that are random."""
    tolerance: float | None
    """As `tolerance_for` says."""
    random: tuple[str, ...] = ()
    """Outputs that differ from one run to the next: nothing can be compared with them."""

    def differences(self, got: Values) -> list[str]:
        """What is not the same answer; nothing where all is."""
        return differences(got, self.outputs, self.tolerance)

    def largest_difference(self, got: Values) -> float:
        """Over the outputs of floating point, relative to each one's largest magnitude."""
        return largest_difference(got, self.outputs)


def reference_of(model: Path | bytes, graph: Graph, inputs: Values) -> Reference:
    """`graph` is the model's. The session runs twice, to find out what is random.

    ModelError, RequestError where ONNX Runtime does not take the model or the inputs."""
    session = load_model(model)
    first, second = _run(session, inputs), _run(session, inputs)
    random = tuple(name for name in first if differences({name: second[name]}, {name: first[name]}))
    outputs = {name: value for name, value in first.items() if name not in random}
    return Reference(outputs, tolerance_for(graph), random)
