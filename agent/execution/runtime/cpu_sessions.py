"""CPU sessions: how sessions of ONNX Runtime are made on the CPU, and with which options. A door: ONNX Runtime.

Sessions on engines are made with the same options (agent/engines/provider_sessions.py).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_types

from edgepart.agent.engines.provider_sessions import LOG_FATAL_ONLY

log = logging.getLogger(__name__)

_EXACT_PRODUCTS = "session.x64quantprecision"
_NAMES_TWICE, _NAMED_TWICE = "QDQS8ToU8Transformer", "Attempt to replace the existing tensor"
"""An optimiser of ONNX Runtime 1.32, and the error where it gives two weights one name."""


def session_options(threads: int, level: Any = None) -> Any:
    """Options of a session with `threads` threads of its own (0: one for each core). They do not spin while they wait,
    because the device has other work to do. `level` is an ort.GraphOptimizationLevel; None is ONNX Runtime's default."""
    options = ort.SessionOptions()
    if level is not None:
        options.graph_optimization_level = level
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # Sessions run one at a time, and an arena for each would keep the most memory that its session ever took. Without
    # arenas, the next session reuses the memory that was freed to the C library's heap, and is as fast.
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.log_severity_level = LOG_FATAL_ONLY  # The errors that are raised say what is wrong.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    force_exact_int8_products(options)
    return options


def force_exact_int8_products(options: Any) -> None:
    """Make 8-bit products give the same integers on every processor.

    With AVX2 or AVX-512 and without VNNI, ONNX Runtime adds two products of a uint8 and an int8 in 16 bits, which are too
    few. With this option its optimiser turns constant int8 weights into uint8 there, from the extended level on, and the
    products are exact. On other processors nothing changes, and nothing is slower."""
    options.add_session_config_entry(_EXACT_PRODUCTS, "1")


def read_weights_below(folder: Path | str, options: Any) -> None:
    """Have the session of a model that is given as bytes read its external data from this folder and those below it."""
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))


def make_session(model: str | bytes, options: Any) -> Any:
    """A session over the file or the bytes.

    With `force_exact_int8_products`, ONNX Runtime also turns weights into uint8 that quantised operators multiply with
    int8, for which it has no kernel. Products of two int8 are exact as they are, so such a model is loaded without the
    option. A weight that an operator multiplies with and that is an output as well gets one name twice, which ends the
    loading. Such a model is loaded without the optimiser that does so; products stay exact, because a later optimiser
    (Avx2WeightS8ToU8Transformer) turns the weights of fused products into uint8."""
    try:
        return _session(model, options)
    except ort_types.NotImplemented as error:
        log.info("loading again with int8 weights as they are, as ONNX Runtime says: %s", error)
        options.add_session_config_entry(_EXACT_PRODUCTS, "0")
        return _session(model, options)
    except ort_types.Fail as error:
        if _NAMED_TWICE not in str(error):
            raise
        log.info("loading again without %s, as ONNX Runtime says: %s", _NAMES_TWICE, error)
        return _session(model, options, disabled_optimizers=[_NAMES_TWICE])


def _session(model: str | bytes, options: Any, **more: Any) -> Any:
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], **more)
