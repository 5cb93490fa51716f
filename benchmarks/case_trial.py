"""The trial of one of the ONNX project's node cases: in one session, then divided along each of its axes.

Both sides run without ONNX Runtime's graph optimisations, because the trial is of edgepart's declarations,
operator by operator, and not of what the runtime makes of neighbouring operators.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.runner import Runner

from edgepart.agent.engines.provider_sessions import ORT_ERRORS
from edgepart.agent.execution.runtime.loaded_models import load_model
from edgepart.agent.verify.backend import to_value
from edgepart.agent.verify.rehearsal import Rehearsal
from edgepart.planner.errors import EdgepartError
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph

LEVEL = ort.GraphOptimizationLevel.ORT_DISABLE_ALL

SHARES: Mapping[int, tuple[float, ...]] = {
    2: (0.65, 0.35),
    3: (0.5, 0.3, 0.2),
    5: (0.3, 0.25, 0.2, 0.15, 0.1),
}
"""Shares of the devices, by number of devices. They are never equal."""

FAULTS: tuple[type[Exception], ...] = (
    EdgepartError,
    *ORT_ERRORS,
    LookupError,
    AttributeError,
    AssertionError,
    ArithmeticError,
)
"""Errors that a wrong declaration can cause. They count as a fault of the case and do not end the run."""

NEWEST_IR, NEWEST_OPSET = 13, 26
"""The newest IR version and opset that ONNX Runtime 1.31 accepts. The runtime refuses a file only because its
stamp is later, even if its operators are older, so cases with later stamps are given these."""

TWO_STEPS_FLOAT16 = 2.0**-9
"""Two steps of float16, relative: it has 10 fraction bits."""

AS_GIVEN, CONSTANT = "as given", "constants"
"""Forms of a case. AS_GIVEN has every input as an input. CONSTANT has all inputs but the first as constants
of the model, as exporters write axes, shapes and weights."""


@dataclass(frozen=True)
class Try:
    """One division of a case."""

    form: str
    devices: int
    axis: str | None
    fault: str = ""
    """Why the answer is wrong or missing; "" if it is right."""
    split: bool = False
    """Whether more than one device computed a part along `axis`."""
    rough: bool = False
    """Whether a float16 output exceeds the case's tolerance but is within two steps of the expected value."""
    note: str = ""
    """Why it was not split, if that is known beforehand."""


@dataclass(frozen=True)
class Trial:
    """The result of one case."""

    name: str
    operators: tuple[str, ...]
    """Operator types."""
    alone: str = ""
    """Why one session does not give the right answer; "" if it does."""
    restamped: bool = False
    wanted: tuple[tuple[str, str], ...] = ()
    """Form and name of each axis that can be cut in two according to the operators' declarations."""
    opaque: Mapping[str, str] = field(default_factory=dict)
    """Maps an operator type to the reason why it cannot be split in any form."""
    tries: tuple[Try, ...] = ()

    @property
    def faults(self) -> tuple[Try, ...]:
        return tuple(one for one in self.tries if one.fault)

    @property
    def unsplit(self) -> tuple[Try, ...]:
        """Divisions with a right answer in which only one device computed anything along the axis."""
        return tuple(one for one in self.tries if one.axis is not None and not one.split and not one.fault)

    def right_on(self, devices: int) -> bool:
        mine = [one for one in self.tries if one.devices == devices]
        return bool(mine) and not any(one.fault for one in mine)


@cache
def all_cases() -> Mapping[str, Any]:
    """Return all node cases that have a model, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None) if case.model is not None}


def trial(name: str, devices: Sequence[int] = (2, 3)) -> Trial:
    """Run one case in one session, then divided over each number of `devices`, and return its trial."""
    case = all_cases()[name]
    model, restamped = stamped(case.model)
    operators = tuple(dict.fromkeys(node.op_type for node in model.graph.node))
    values = [to_value(value) for value in case.data_sets[0][0]]
    expected = [to_value(value) for value in case.data_sets[0][1]]
    inputs = dict(zip((value.name for value in model.graph.input), values, strict=False))
    fault = _alone(model, inputs, case, expected)
    if fault:
        return Trial(name, operators, fault, restamped)
    wanted: list[tuple[str, str]] = []
    tries: list[Try] = []
    opaque: dict[str, str] = {}
    for form, source in forms(model, inputs):
        fed = {value.name: inputs[value.name] for value in source.graph.input if value.name in inputs}
        if form != AS_GIVEN and _alone(source, fed, case, expected):
            continue
        try:
            graph = load_graph(source.SerializeToString(), shapes=_shapes(source, fed))
            found = [axis for axis in declared_axes(graph) if axis not in {seen for _, seen in wanted}]
        except FAULTS as error:
            tries += [Try(form, count, None, f"{type(error).__name__}: {error}") for count in devices]
            continue
        opaque = {graph.by_name[n].op_type: why for n, why in Rehearsal(graph).opaque.items()}
        if form != AS_GIVEN and not found:
            continue
        wanted += [(form, axis) for axis in found]
        tries += _tries(form, graph, found, fed, (case, expected), devices)
    return Trial(name, operators, "", restamped, tuple(wanted), opaque, tuple(tries))


def stamped(model: ModelProto) -> tuple[ModelProto, bool]:
    """Return the model with versions that the runtime accepts, and whether its own versions were later."""
    made = ModelProto()
    made.CopyFrom(model)
    made.ir_version = min(model.ir_version, NEWEST_IR)
    for one in made.opset_import:
        if one.domain in ("", "ai.onnx"):
            one.version = min(one.version, NEWEST_OPSET)
    return made, made != model


def forms(model: ModelProto, inputs: Mapping[str, Any]) -> Iterator[tuple[str, ModelProto]]:
    """Yield the case as given, then with all inputs but the first as constants."""
    yield AS_GIVEN, model
    later = [value.name for value in model.graph.input][1:]
    fixed = {name: inputs[name] for name in later if isinstance(inputs.get(name), np.ndarray)}
    if fixed:
        made = ModelProto()
        made.CopyFrom(model)
        kept = [value for value in model.graph.input if value.name not in fixed]
        del made.graph.input[:]
        made.graph.input.extend(kept)
        made.graph.initializer.extend(_constant(name, array) for name, array in fixed.items())
        yield CONSTANT, made


def _why_not(rehearsal: Rehearsal, axis: str) -> str:
    """Return why the model cannot be divided along an axis that some of its operators declare."""
    coarse = rehearsal.study.memo.coarse
    having = [
        op for op in rehearsal.graph.operators if axis in {a.name for a in coarse.accesses[op.name].axes()}
    ]
    types = ", ".join(dict.fromkeys(op.op_type for op in having))
    if all(coarse.is_pulled(op) for op in having):
        return f"only {types} has it, which moves no data of its own: its readers' devices make it"
    return f"the layers of {types} have other axes only"


def _shapes(model: ModelProto, inputs: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs that are tensors. Cases with free dimensions bind them to these."""
    tensors = (value.name for value in model.graph.input if value.type.HasField("tensor_type"))
    return {name: inputs[name].shape for name in tensors if name in inputs}


def declared_axes(graph: Graph) -> tuple[str, ...]:
    """Return the names of the axes along which an operator of the graph can be cut in two."""
    accesses = Rehearsal(graph).study.memo.coarse.accesses
    axes = (axis for op in graph.operators for axis in accesses[op.name].axes())
    return tuple(dict.fromkeys(axis.name for axis in axes if axis.extent > axis.quantum))


def _constant(name: str, array: Any) -> TensorProto:
    return numpy_helper.from_array(array.astype(object) if array.dtype.kind == "U" else array, name)


def _alone(model: ModelProto, inputs: Mapping[str, Any], case: Any, expected: Sequence[Any]) -> str:
    """Return why one session does not give the case's answer; "" if it does."""
    try:
        session = load_model(model.SerializeToString(), level=LEVEL, threads=1)
        found = session.run([inputs[name] for name in session.input_names])
    except FAULTS as error:
        return f"{type(error).__name__}: {error}"
    return compared(case, expected, found)


def compared(case: Any, expected: Sequence[Any], found: Sequence[Any], *, rough: bool = False) -> str:
    """Return what is wrong with an answer; "" if nothing.

    The onnx package compares, with the case's own tolerances. `rough` lets float16 differ by two steps, as
    that comparison allows bfloat16: a sum of parts rounds differently from the sum of the whole, and the
    cases' tolerance is less than one step.
    """
    halves = any(isinstance(array, np.ndarray) and array.dtype == np.float16 for array in expected)
    rtol = max(case.rtol, TWO_STEPS_FLOAT16) if rough and halves else case.rtol
    try:
        Runner.assert_similar_outputs(expected, found, rtol, case.atol, case.name)
    except (AssertionError, TypeError, AttributeError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"differs: {'; '.join(lines[:4])}"
    return ""


def _tries(
    form: str,
    graph: Graph,
    axes: Sequence[str],
    inputs: Mapping[str, Any],
    answer: tuple[Any, Sequence[Any]],
    devices: Sequence[int],
) -> Iterator[Try]:
    for count in devices:
        rehearsal = Rehearsal(graph, SHARES[count], level=LEVEL)
        there = [axis for axis in axes if axis in rehearsal.axes]
        yield from (
            Try(form, count, axis, note=_why_not(rehearsal, axis)) for axis in axes if axis not in there
        )
        for axis in there or (None,):
            try:
                divided = rehearsal.divide(axis)
                found = divided.run(inputs)
            except FAULTS as error:
                yield Try(form, count, axis, f"{type(error).__name__}: {error}")
                continue
            outputs = [found[name] for name in graph.outputs]
            fault = compared(*answer, outputs)
            rough = bool(fault) and not compared(*answer, outputs, rough=True)
            yield Try(form, count, axis, "" if rough else fault, axis in divided.split.values(), rough)
