"""Reference: the answer of one session over the whole model, and how far another answer may differ from it. A door: it
makes sessions.

The tolerance follows from the model alone, so that it holds on every processor: the promise in docs/architecture.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from edgepart.agent.execution.runtime.loaded_models import load_model
from edgepart.agent.verify.same_answer import (
    Values,
    differences,
    largest_difference,
    random_outputs,
    tolerance_for,
)
from edgepart.agent.verify.served_model import served_model
from edgepart.agent.verify.unpadded_session import UnpaddedSession, growing_of
from edgepart.agent.wire.dtypes import element_dtype
from edgepart.planner.model.graph import Graph, State, Tensor
from edgepart.planner.plans.plan import KeptState
from edgepart.planner.region import Array


def run_alone(model: Path | bytes, inputs: Values) -> dict[str, Any]:
    """The outputs of one session over the whole model, by name.

    Raises ModelError and RequestError if ONNX Runtime does not take the model or the inputs."""
    return _run(load_model(model), inputs)


class Served(Protocol):
    """A session over a model, as LoadedModel is one."""

    @property
    def input_names(self) -> tuple[str, ...]: ...
    @property
    def output_names(self) -> tuple[str, ...]: ...
    def run(self, inputs: Sequence[Any], /) -> list[Any]: ...


def load_served(model: Path | bytes, shapes: Mapping[str, tuple[int, ...]]) -> Served:
    """One session over the model that is served of a file, whose inputs have these shapes. Raises ModelError."""
    served = served_model(model, shapes)
    beside = model.resolve().parent if isinstance(model, Path) and isinstance(served, bytes) else None
    session = load_model(served, beside=beside)
    growing = growing_of(model, shapes)
    return session if growing is None else UnpaddedSession(session, growing)


def shapes_of(inputs: Values) -> dict[str, tuple[int, ...]]:
    """The shapes of a request's inputs. Those that are no tensors have none."""
    return {name: np.shape(value) if isinstance(value, np.ndarray) else () for name, value in inputs.items()}


def _run(session: Served, inputs: Values) -> dict[str, Any]:
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
    return make_references(model, graph, [inputs])[0]


def make_references(model: Path | bytes, graph: Graph, steps: Sequence[Values]) -> list[Reference]:
    """The references of the steps of one sequence, whose inputs are `steps`: the session gets the graph's states back as it
    left them, and zeros at first. Steps after one that leaves a random state have no reference. Raises ModelError and
    RequestError as `make_reference` does."""
    session, tolerance = load_served(model, _shapes(graph)), tolerance_for(graph)
    states = {one.input: _zeros(graph.tensors[one.input]) for one in graph.states}
    found = []
    for inputs in steps:
        outputs, random = steady_outputs(session, {**inputs, **states})
        left = {one: outputs.pop(one.output) for one in graph.states if one.output in outputs}
        found.append(Reference(outputs, random, tolerance))
        if len(left) < len(graph.states):
            break
        states = {one.input: _next(graph, one, value) for one, value in left.items()}
    return found


def _shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    return {name: graph.shape_of(name) or () for name in graph.inputs}


def _zeros(tensor: Tensor) -> Array:
    return np.zeros(tensor.shape or (), element_dtype(tensor.dtype))


def _next(graph: Graph, state: State, written: Array) -> Array:
    """The state's input in the next step."""
    return graph.written_region(state, graph.region_of(state.input)).crop(written)


def answer_last(session: Served, steps: Sequence[Values], states: Sequence[KeptState]) -> dict[str, Any]:
    """The answer to the last of these steps of one sequence, by name, without random outputs and states. The session gets
    the states back as it left them, and zeros at first. Raises RequestError."""
    zeros = ((one.input.name, one.input.shape or (), element_dtype(one.input.dtype)) for one in states)
    carried = {name: np.zeros(shape, dtype) for name, shape, dtype in zeros}
    *before, last = steps
    for inputs in before:
        outputs = _run(session, {**inputs, **carried})
        carried = {one.input.name: _carry(one, outputs[one.output]) for one in states}
    found, _ = steady_outputs(session, {**last, **carried})
    return {name: value for name, value in found.items() if name not in {one.output for one in states}}


def _carry(state: KeptState, written: Array) -> Array:
    """The state's input in the next step: its newest rows, if the output has more."""
    if state.grows is None:
        return written
    rows = (state.input.shape or ())[state.grows]
    return written.take(range(written.shape[state.grows] - rows, written.shape[state.grows]), state.grows)


def steady_outputs(session: Served, inputs: Values) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The outputs that are the same in two runs of a session, and the names of the random ones. Raises RequestError."""
    first, second = _run(session, inputs), _run(session, inputs)
    random = random_outputs(first, second)
    return {name: value for name, value in first.items() if name not in random}, random
