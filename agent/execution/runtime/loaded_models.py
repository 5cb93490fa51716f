"""Loaded models: sessions with the facts that are needed to run them, and their runs. A door: ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from edgepart.agent.engines.provider_sessions import ORT_ERRORS
from edgepart.agent.execution.runtime.cpu_sessions import make_session, read_weights_below, session_options
from edgepart.agent.execution.runtime.ort_values import (
    CPU,
    as_array,
    as_ort_value,
    as_ort_values,
    pack,
    port_dtype,
)
from edgepart.agent.wire.dtypes import is_native, is_sub_byte, onnx_number
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import ModelError, RequestError
from edgepart.planner.region import Array


@dataclass(eq=False)
class LoadedModel:
    """A session, and the facts that are needed to run it."""

    called: str
    """The model's name in errors."""
    session: Any
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dtypes: Mapping[str, np.dtype[Any] | None]
    """The dtypes of inputs and outputs, by their names in the segment's model; None for a value that is no tensor."""
    weights: tuple[Any, ...]
    """OrtValues, which must live as long as the session: it keeps only their addresses."""
    plain: bool
    """Whether numpy knows the types of all inputs and outputs."""

    def run(self, inputs: Sequence[Value], options: Any = None) -> list[Value]:
        """Run the model and return its outputs in their order. `options` are ort.RunOptions, by which another thread can
        end the run. Raises RequestError, which says why ONNX Runtime could not run with these inputs."""
        try:
            if self.plain:
                feed = dict(zip(self.input_names, inputs, strict=True))
                return list(self.session.run(self.output_names, feed, options))
            return self._run_bound(inputs, options)
        except ORT_ERRORS as error:
            raise self.to_request_error(error) from error

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> BoundRun:
        """A run that reads and writes these arrays and can be repeated. numpy must know all their types."""
        return BoundRun(self, as_ort_values(inputs), as_ort_values(outputs), [CPU] * len(outputs))

    def to_request_error(self, error: Exception) -> RequestError:
        """The error for the client, made from what ONNX Runtime raised."""
        if "bad_alloc" in str(error) or isinstance(error, MemoryError):
            return RequestError(
                f"this device has not the memory for this request: {self.called} was refused more"
            )
        return RequestError(f"ONNX Runtime could not run {self.called} on this request's inputs: {error}")

    def _run_bound(self, inputs: Sequence[Value], options: Any) -> list[Value]:
        binding = self.session.io_binding()
        memory = []  # The binding does not keep the values alive.
        for name, value in zip(self.input_names, inputs, strict=True):
            if isinstance(value, np.ndarray) and is_native(value.dtype):
                binding.bind_cpu_input(name, value)
            elif isinstance(value, np.ndarray) and is_sub_byte(value.dtype):
                memory.append(packed := pack(value))
                kind = onnx_number(value.dtype)
                binding.bind_input(name, "cpu", 0, kind, value.shape, packed.ctypes.data)
            else:
                binding.bind_ortvalue_input(name, as_ort_value(value))
        for name in self.output_names:
            binding.bind_output(name)
        self.session.run_with_iobinding(binding, options)
        return [
            as_array(value, self.dtypes[name])
            for name, value in zip(self.output_names, binding.get_outputs(), strict=True)
        ]


@dataclass(eq=False)
class BoundRun:
    """A run that writes its outputs into the caller's arrays, so that nothing is copied."""

    loaded: LoadedModel
    feeds: Any
    fetches: Any
    devices: Sequence[Any]

    def run(self, options: Any = None) -> None:
        """Compute the outputs. Raises RequestError as LoadedModel.run does, also if an output has another shape than its
        array."""
        loaded = self.loaded
        try:
            loaded.session.run_with_ortvaluevector(
                options, loaded.input_names, self.feeds, loaded.output_names, self.fetches, self.devices
            )
        except ORT_ERRORS as error:
            raise loaded.to_request_error(error) from error


def load_model(
    model: Path | bytes, *, level: Any = None, threads: int = 0, beside: Path | None = None
) -> LoadedModel:
    """One session over a whole model. Its answers are those that every plan's answers are compared with. `beside` is the
    folder of the external data of a model that is given as bytes. Raises ModelError if ONNX Runtime refuses the model."""
    source, called = (model, "the model") if isinstance(model, bytes) else (str(model), model.name)
    options = session_options(threads, level)
    if beside is not None:
        read_weights_below(beside, options)
    try:
        session = make_session(source, options)
    except ORT_ERRORS as error:
        raise ModelError(f"ONNX Runtime {ort.__version__} cannot load {called}: {error}") from error
    names = [arg.name for arg in session.get_inputs()], [arg.name for arg in session.get_outputs()]
    types, plain = types_of(session)
    return LoadedModel(called, session, tuple(names[0]), tuple(names[1]), types, (), plain)


def types_of(session: Any) -> tuple[dict[str, np.dtype[Any] | None], bool]:
    """The type of each input and output by its name, and whether numpy knows them all."""
    types = {arg.name: port_dtype(arg.type) for arg in (*session.get_inputs(), *session.get_outputs())}
    return types, all(dtype is None or is_native(dtype) for dtype in types.values())
