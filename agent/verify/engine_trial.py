"""Engine trial: runs one segment on the CPU and on its engine, with made-up inputs, and compares the answers. A door: it
makes sessions. engine_trials.py runs it in a process of its own, because an engine may crash or hang.

The rule is the product's first promise (same_answer.py), for each segment: within 1e-4 of each output's largest magnitude
where nothing rounds. An engine of another precision than float32 is compared with the tolerance of float16, and says how
far off it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx
from onnx import ModelProto, TensorProto

from edgepart.agent.engines.catalogue import FLOAT32, kind_of
from edgepart.agent.engines.provider_sessions import EngineRefuses
from edgepart.agent.engines.verdicts import ADMITTED, FAILS, LIES, EngineVerdict
from edgepart.agent.execution.prepared import describe_segment
from edgepart.agent.execution.runtime.loaded_segments import LoadedSegment, load_segment
from edgepart.agent.execution.runtime.segment_weights import Weight
from edgepart.agent.verify import input_rounding
from edgepart.agent.verify.same_answer import (
    QUANTISED_OPERATORS,
    TOLERANCE_FLOAT16,
    TOLERANCE_QUANTISED,
    largest_difference,
    random_outputs,
)
from edgepart.agent.verify.sample_inputs import sample_value
from edgepart.agent.wire.dtypes import element_name
from edgepart.planner.errors import InternalError, RequestError, UsageError
from edgepart.planner.figures import format_figure
from edgepart.planner.plans.plan import Segment

SEEDS = (1, 0)
"""Draws of made-up inputs, as in sample_inputs.py: normally distributed numbers first, then such as pixels."""

LEAST_RUNS, MOST_RUNS, BUDGET_S = 3, 15, 0.5
"""Timed runs on the CPU and on the engine, and seconds for them. The best counts: disturbances make runs longer."""

Weights = Callable[[Segment], Mapping[str, Weight]]
Stage = Callable[[str], None]
"""Is told which session runs from now on, "" for the CPU's or the engine's name: whoever watches knows what to blame."""


class NoTrial(Exception):
    """The CPU itself cannot run a segment on inputs that are made up, so an engine cannot be compared with it."""


def try_engine(
    segment: Segment, weights: Weights, threads: int, stage: Stage = lambda name: None
) -> EngineVerdict:
    """The verdict about the segment on its engine. Whatever the engine raises is a verdict; it may also crash or hang."""
    engine, held = segment.engine, weights(segment)
    model = onnx.load_model_from_string(segment.model)
    stage("")
    try:
        cases, cpu_s = _cases(replace(segment, engine=""), held, threads)
    except NoTrial as error:
        return EngineVerdict(engine, segment.digest, FAILS, f"it cannot be compared with the CPU: {error}")
    stage(engine)
    tolerance = tolerance_of_segment(model, kind_of(engine).precision)
    worst, compared = 0.0, 0
    try:
        loaded = load_segment(segment, held, threads)
        for inputs, expected, swayed in cases:
            got = _answer(loaded, inputs)
            try:
                found = input_rounding.find_unexplained(got, expected, swayed, tolerance)
            except RequestError:
                continue  # These inputs make an output as good as random, so they show nothing.
            if found:
                return EngineVerdict(engine, segment.digest, LIES, "; ".join(found))
            worst = max(worst, largest_difference({n: got[n] for n in expected}, expected))
            compared += 1
        engine_s = _best_s(loaded, cases[0][0]) if compared else 0.0
    except (InternalError, RequestError) as error:
        cause = error.__cause__
        left = cause.operators if isinstance(cause, EngineRefuses) else ()
        lacks = tuple(name for name in segment.operators if name in left)
        return EngineVerdict(engine, segment.digest, FAILS, str(error), lacks=lacks)
    if not compared:
        why = "it cannot be compared with the CPU, whose answers to made-up inputs change with every rounding"
        return EngineVerdict(engine, segment.digest, FAILS, why)
    why = f"off by {format_figure(worst)} of the largest magnitude"
    return EngineVerdict(
        engine,
        segment.digest,
        ADMITTED,
        why,
        cpu_s=cpu_s,
        engine_s=engine_s,
        times_cpu=segment.times_cpu,
    )


def tolerance_of_segment(model: ModelProto, precision: str) -> float | None:
    """The allowed difference of the segment's outputs, relative to each one's largest magnitude; None if each output's own
    type decides. What rounds inside of the segment counts, as in `same_answer.tolerance_for`."""
    types = [node.op_type for node in model.graph.node]
    casts = {a.i for node in model.graph.node for a in node.attribute if a.name in ("to", "dtype")}
    if any(part in op_type for op_type in types for part in QUANTISED_OPERATORS):
        return TOLERANCE_QUANTISED
    held = {tensor.data_type for tensor in model.graph.initializer}
    given = {value.type.tensor_type.elem_type for value in model.graph.input}
    if precision != FLOAT32 or TensorProto.FLOAT16 in casts | held | given:
        return TOLERANCE_FLOAT16
    return None


_Case = tuple[Sequence[Any], Mapping[str, Any], Mapping[str, Any]]
"""Inputs, the CPU's answer without random outputs, and its answer where the inputs differ by one rounding."""


def _cases(segment: Segment, weights: Mapping[str, Weight], threads: int) -> tuple[list[_Case], float]:
    """What the CPU answers to made-up inputs, and the seconds that it takes. Raises NoTrial if it answers to none."""
    try:
        loaded = load_segment(segment, weights, threads)
    except InternalError as error:
        raise NoTrial(str(error)) from error
    cases: list[_Case] = []
    why = "its inputs cannot be made up"
    for seed in SEEDS:
        try:
            inputs = made_up(loaded, seed)
            first, second = _answer(loaded, inputs), _answer(loaded, inputs)
            names = [port.name for port in segment.inputs]
            nudged = input_rounding.nudge_inputs(dict(zip(names, inputs, strict=True)))
            swayed = _answer(loaded, [nudged[name] for name in names])
        except (UsageError, RequestError) as error:
            why = str(error)
            continue
        random = random_outputs(first, second)
        expected = {name: value for name, value in first.items() if name not in random}
        if expected:
            cases.append((inputs, expected, swayed))
    if not cases:
        raise NoTrial(f"{describe_segment(segment)}: {why}")
    return cases, _best_s(loaded, cases[0][0])


def _best_s(loaded: LoadedSegment, inputs: Sequence[Any]) -> float:
    """The shortest time of a run, in seconds, of one that has run before."""
    best, end = float("inf"), time.perf_counter() + BUDGET_S
    for number in range(MOST_RUNS):
        began = time.perf_counter()
        loaded.run(inputs)
        best = min(best, time.perf_counter() - began)
        if number + 1 >= LEAST_RUNS and time.perf_counter() > end:
            break
    return best


def made_up(loaded: LoadedSegment, seed: int) -> list[Any]:
    """A value for each input of the segment. Raises UsageError if one cannot be made up."""
    found = []
    for number, port in enumerate(loaded.segment.inputs):
        dtype = loaded.dtypes[port.name]
        if dtype is None:
            raise UsageError(f"{port.name} is no tensor")
        found.append(
            sample_value(element_name(dtype), port.piece.region.shape, port.name, seed + len(SEEDS) * number)
        )
    return found


def _answer(loaded: LoadedSegment, inputs: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(loaded.output_names, loaded.run(inputs), strict=True))
