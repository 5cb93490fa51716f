"""Provider sessions: makes sessions of ONNX Runtime on an engine, and notices what the engine leaves to the CPU. A door:
ONNX Runtime, and the environment that its providers read.

ONNX Runtime gives operators that a provider does not take to its CPU provider, and the whole model if the provider cannot
be loaded at all. Both are silent, so both are forbidden here: a session on an engine has every operator on it or is not
made, and the error names the operators.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_types

from edgepart.agent.engines.catalogue import EngineKind, kind_of, provider_options
from edgepart.planner.errors import EdgepartError

log = logging.getLogger(__name__)

ORT_ERRORS: tuple[type[Exception], ...] = (
    ort_types.Fail,
    ort_types.InvalidArgument,
    ort_types.InvalidGraph,
    ort_types.InvalidProtobuf,
    ort_types.NoModel,
    ort_types.NoSuchFile,
    ort_types.NotImplemented,
    ort_types.EPFail,
    ort_types.EngineError,
    ort_types.RuntimeException,
    RuntimeError,
    TypeError,
    ValueError,
    MemoryError,
)
"""The errors that ONNX Runtime's Python interface raises; they have no common ancestor but Exception."""

LOG_FATAL_ONLY = 4
"""ONNX Runtime's log level: only fatal errors, as its log bypasses ours. Requests cause the other messages, and the
errors that are raised contain them."""
_NO_CPU = "session.disable_cpu_ep_fallback"
_RECORD = "session.record_ep_graph_assignment_info"
MOST_NAMED = 5
"""The most types of operators that an error names."""


class EngineRefuses(EdgepartError):
    """An engine cannot run a model, or cannot run all of it. The CPU can still."""

    def __init__(self, text: str, operators: Sequence[str] = ()) -> None:
        """`operators` are the names of those that the engine does not take, as far as they are known."""
        super().__init__(text)
        self.operators = tuple(operators)


ENGINE_ERRORS: tuple[type[Exception], ...] = (*ORT_ERRORS, EngineRefuses)
"""The errors with which an engine refuses a model or a run."""


def available_providers() -> tuple[str, ...]:
    """The providers of the ONNX Runtime that is installed here."""
    return tuple(ort.get_available_providers())


def prepare_environment(kind: EngineKind) -> None:
    """Set the variables that the engine's provider reads when it is loaded, unless the user has set them, and keep ONNX
    Runtime's own log quiet, which bypasses ours."""
    ort.set_default_logger_severity(LOG_FATAL_ONLY)
    for name, value in kind.environment.items():
        os.environ.setdefault(name, value)


def make_engine_session(engine: str, model: str | bytes, options: Any, threads: int) -> Any:
    """A session over the file or the bytes with every operator on the engine; it computes with `threads` threads if the
    engine uses the CPU. `options` are ort.SessionOptions that nothing else uses. Raises EngineRefuses if the engine leaves
    operators to the CPU or cannot be loaded, and what ONNX Runtime raises if it fails in another way."""
    kind = kind_of(engine)
    prepare_environment(kind)
    if kind.provider not in available_providers():
        raise EngineRefuses(f"the onnxruntime that is installed here has no {kind.provider}")
    if kind.own_threads:
        options.intra_op_num_threads = 1
    options.add_session_config_entry(_NO_CPU, "1")
    options.add_session_config_entry(_RECORD, "1")
    try:
        session = _session(kind, model, options, threads)
    except ORT_ERRORS as error:
        if "assigned to the default CPU EP" not in str(error):
            raise
        raise _explain_partial(kind, model, options, threads) from error
    if session.get_providers()[0] != kind.provider:
        raise EngineRefuses(
            f"{kind.provider} could not be loaded, and ONNX Runtime took the CPU in its place"
        )
    return session


def _session(kind: EngineKind, model: str | bytes, options: Any, threads: int) -> Any:
    # enable_fallback=0: the Python front would otherwise make the session on the CPU if the provider fails.
    return ort.InferenceSession(
        model, options, providers=[(kind.provider, provider_options(kind, threads))], enable_fallback=0
    )


def _explain_partial(kind: EngineKind, model: str | bytes, options: Any, threads: int) -> EngineRefuses:
    """Which operators the engine leaves to the CPU, found by a session that may use both."""
    options.add_session_config_entry(_NO_CPU, "0")
    try:
        session = _session(kind, model, options, threads)
    except ORT_ERRORS as error:  # The first error says enough.
        log.info("what %s leaves to the CPU is not known: %s", kind.name, error)
        return EngineRefuses(f"{kind.provider} does not take all operators")
    if kind.provider not in session.get_providers():
        return EngineRefuses(
            f"{kind.provider} could not be loaded: the device is not here, or lacks its driver"
        )
    left = list(_left_to_cpu(session, kind.provider))
    if not left:
        return EngineRefuses(f"{kind.provider} does not take all operators")
    types = sorted({node.op_type for node in left})
    more = f" and {len(types) - MOST_NAMED} more types" if len(types) > MOST_NAMED else ""
    text = f"{kind.provider} does not take {', '.join(types[:MOST_NAMED])}{more}"
    return EngineRefuses(text, [node.name for node in left])


def _left_to_cpu(session: Any, provider: str) -> Iterator[Any]:
    """The operators that are not on the provider. Nothing if this ONNX Runtime does not tell."""
    tell = getattr(session, "get_provider_graph_assignment_info", None)
    for part in tell() if tell is not None else ():
        if part.ep_name != provider:
            yield from part.get_nodes()
