"""Reference: what one session over the whole model answers, and how far from it another answer may be. A door: it makes
sessions.

How far is a matter of the model alone, so that it holds on every processor: the promise in docs/architecture.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepart.agent.execution.sessions import LoadedModel, load_model
from edgepart.agent.verify.same_answer import (
    Values,
    differences,
    largest_difference,
    random_of,
    tolerance_for,
)
from edgepart.planner.model.graph import Graph


def alone(model: Path | bytes, inputs: Values) -> dict[str, Any]:
    """One session's outputs by name.

    ModelError, RequestError where ONNX Runtime does not take the model or the inputs."""
    return _run(load_model(model), inputs)


def _run(session: LoadedModel, inputs: Values) -> dict[str, Any]:
    found = session.run([inputs[name] for name in session.input_names])
    return dict(zip(session.output_names, found, strict=True))


@dataclass(frozen=True)
class Reference:
    """One session's answer."""

    outputs: Mapping[str, Any]
    """Without those that are random."""
    random: tuple[str, ...]
    """Outputs that differ from one run to the next: nothing can be compared with them."""
    tolerance: float | None
    """As `tolerance_for` says."""

    def differences(self, got: Values) -> list[str]:
        """What is not the same answer; nothing where all is."""
        return differences(got, self.outputs, self.tolerance)

    def largest_difference(self, got: Values) -> float:
        """Over the outputs of floating point, relative to each one's largest magnitude."""
        return largest_difference(got, self.outputs)


def reference_of(model: Path | bytes, graph: Graph, inputs: Values) -> Reference:
    """`graph` is the model's. The session runs twice, to find out what is random.

    ModelError, RequestError where ONNX Runtime does not take the model or the inputs."""
    return Reference(*steady(load_model(model), inputs), tolerance_for(graph))


def steady(session: LoadedModel, inputs: Values) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What a session answers twice, and the names of the outputs that are random. RequestError."""
    first, second = _run(session, inputs), _run(session, inputs)
    random = random_of(first, second)
    return {name: value for name, value in first.items() if name not in random}, random
