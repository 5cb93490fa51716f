"""Reference: the answer of one session over the whole model, and how far another answer may differ from it. A door: it
makes sessions.

The tolerance follows from the model alone, so that it holds on every processor: the promise in docs/architecture.md."""

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
    random_outputs,
    tolerance_for,
)
from edgepart.planner.model.graph import Graph


def run_alone(model: Path | bytes, inputs: Values) -> dict[str, Any]:
    """The outputs of one session over the whole model, by name.

    Raises ModelError and RequestError if ONNX Runtime does not take the model or the inputs."""
    return _run(load_model(model), inputs)


def _run(session: LoadedModel, inputs: Values) -> dict[str, Any]:
    found = session.run([inputs[name] for name in session.input_names])
    return dict(zip(session.output_names, found, strict=True))


@dataclass(frozen=True)
class Reference:
    """The answer of one session over the whole model, with which other answers are compared."""

    outputs: Mapping[str, Any]
    """The outputs by name, without random ones."""
    random: tuple[str, ...]
    """Names of outputs that differ from run to run, so that nothing can be compared with them."""
    tolerance: float | None
    """The tolerance of the model, as from `tolerance_for`."""

    def differences(self, got: Values) -> list[str]:
        """A text for each output of `got` that differs from this answer; empty if the answers are the same."""
        return differences(got, self.outputs, self.tolerance)

    def largest_difference(self, got: Values) -> float:
        """The largest difference of a floating-point output, relative to that output's largest magnitude."""
        return largest_difference(got, self.outputs)


def make_reference(model: Path | bytes, graph: Graph, inputs: Values) -> Reference:
    """The reference of a model, whose graph is `graph`. The session runs twice, to find out which outputs are random.

    Raises ModelError and RequestError if ONNX Runtime does not take the model or the inputs."""
    return Reference(*steady_outputs(load_model(model), inputs), tolerance_for(graph))


def steady_outputs(session: LoadedModel, inputs: Values) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The outputs that are the same in two runs of a session, and the names of the random ones. Raises RequestError."""
    first, second = _run(session, inputs), _run(session, inputs)
    random = random_outputs(first, second)
    return {name: value for name, value in first.items() if name not in random}, random
