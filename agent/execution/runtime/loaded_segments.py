"""Loaded segments: the sessions of segments, how they are made of what is in the plan, and how they are warmed up. A door:
ONNX Runtime."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from edgepart.agent.engines.provider_sessions import ENGINE_ERRORS, make_engine_session
from edgepart.agent.execution.prepared import describe_segment
from edgepart.agent.execution.runtime.cpu_sessions import make_session, session_options
from edgepart.agent.execution.runtime.loaded_models import LoadedModel, types_of
from edgepart.agent.execution.runtime.segment_weights import Weight, give_weights
from edgepart.agent.wire.dtypes import is_native
from edgepart.planner.errors import InternalError, RequestError
from edgepart.planner.plans.plan import Segment
from edgepart.planner.region import Array

log = logging.getLogger(__name__)

AS_PLANNED = "as planned"
"""The form of a session that was made of the segment as it is in the plan."""


@dataclass(eq=False)
class LoadedSegment(LoadedModel):
    """The session of a segment, shared by all programs that hold an equal one."""

    segment: Segment
    form: str = AS_PLANNED
    """The way in which the session was made, in words for the log."""
    ports: frozenset[str] = frozenset()
    """Names of the ports that read or write blocked arrays."""
    holds_weights: bool = False
    """Whether the segment's weights are held for this session (segment_weights.py)."""
    programs: int = 0
    """Number of prepared programs that use the session."""


def load_segment(
    segment: Segment, weights: Mapping[str, Weight], threads: int, level: Any = None
) -> LoadedSegment:
    """A session of the segment as it is, on its engine; `weights` are by initializer name. Raises InternalError if ONNX
    Runtime or the engine refuses it."""
    options = session_options(threads, level)
    model = give_weights(segment.model, weights, options)
    try:
        session = (
            make_engine_session(segment.engine, model, options, threads)
            if segment.engine
            else make_session(model, options)
        )
    except ENGINE_ERRORS as error:
        where = f" on {segment.engine}" if segment.engine else ""
        raise InternalError(
            f"ONNX Runtime {ort.__version__} cannot load {describe_segment(segment)}{where}: {error}"
        ) from error
    values = tuple(value for value in weights.values() if not isinstance(value, Path))
    return wrap_session(segment, session, values, segment.engine or AS_PLANNED)


def wrap_session(
    segment: Segment, session: Any, weights: tuple[Any, ...], form: str = AS_PLANNED
) -> LoadedSegment:
    """The segment with its session. Raises InternalError if the session lacks one of the segment's ports."""
    types, plain = types_of(session)
    names = tuple(p.name for p in segment.inputs), tuple(p.name for p in segment.outputs)
    if absent := {*names[0], *names[1]} - set(types):
        raise InternalError(
            f"{describe_segment(segment)} has no input or output {sorted(absent)}, which its ports name"
        )
    return LoadedSegment(
        describe_segment(segment), session, *names, types, weights, plain, segment=segment, form=form
    )


def make_up_inputs(loaded: LoadedSegment) -> list[Array] | None:
    """Inputs with which a segment can run before requests come.

    None if they could do harm: integers may be indices, lengths or divisors (a division by zero kills the process), and a
    loop might not end. Also None if shapes or values cannot be made up."""
    inputs: list[Array] = []
    for port in loaded.segment.inputs:
        dtype = loaded.dtypes[port.name]
        if dtype is None or not (dtype.kind == "f" or not is_native(dtype)) or port.piece.region.rank == 0:
            return None
        inputs.append(np.ones(port.piece.region.shape, dtype))
    looping = any(node.op_type == "Loop" for node in onnx.load_from_string(loaded.segment.model).graph.node)
    return None if looping else inputs


def warm_up(loaded: LoadedSegment) -> None:
    """Run once on made-up inputs, so that the first request does not pay for first-time allocations."""
    inputs = make_up_inputs(loaded)
    if inputs is None:
        return
    try:
        loaded.run(inputs)
    except RequestError as error:
        log.info("no warm-up of %s: %s", describe_segment(loaded.segment), error)
