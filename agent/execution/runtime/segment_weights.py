"""Segment weights: the weights of segments as ONNX Runtime takes them, and those that sessions share. A door: ONNX
Runtime's values, and the sizes of files.

Weights are not in a segment's model. ONNX Runtime gets those that the store has as files by their paths: it maps each
file, packs the weights into memory of its own, and unmaps the file, so that a session holds its weights once. (Given
OrtValues, it would copy them and keep the mapped file beside the copy.)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from edgepart.agent.execution.runtime.cpu_sessions import read_weights_below
from edgepart.agent.execution.runtime.ort_values import as_ort_value
from edgepart.agent.wire.dtypes import element_dtype, is_sub_byte
from edgepart.planner.errors import InternalError
from edgepart.planner.plans.plan import Segment, WeightRef
from edgepart.planner.region import Array

WeightSource = Callable[[WeightRef], Array | Path]
"""Returns a weight's bytes: a file that holds nothing else, or a contiguous array of any type and shape with `nbytes`
bytes."""

Weight = Any
"""An OrtValue, or the Path of a file."""

_Key = tuple[str, str, tuple[int, ...]]
"""Digest, dtype and shape of a weight; segments that agree on all three share its value. The digest alone is not enough,
as the same bytes may be weights of several shapes (zeros, mostly)."""


class HeldWeights:
    """The weights that sessions hold, each once, with the number of segments that it is held for. Not thread-safe."""

    def __init__(self, read: WeightSource) -> None:
        self._read = read
        self._held: dict[_Key, tuple[Weight, int]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, segment: Segment) -> dict[str, Weight]:
        """The segment's weights by initializer name, held until `drop`. Raises InternalError if one is not what the plan
        says; then nothing is held."""
        values: dict[str, Weight] = {}
        fresh = {_key(ref): ref for ref in segment.weights if _key(ref) not in self._held}
        made = {key: _weight_value(ref, self._read(ref)) for key, ref in fresh.items()}
        for ref in segment.weights:
            value, users = self._held.get(_key(ref), (made.get(_key(ref)), 0))
            self._held[_key(ref)] = (value, users + 1)
            values[ref.name] = value
        return values

    def drop(self, segment: Segment) -> None:
        """Undo one `hold` of this segment."""
        for ref in segment.weights:
            value, users = self._held.pop(_key(ref))
            if users > 1:
                self._held[_key(ref)] = (value, users - 1)

    def read(self, segment: Segment) -> dict[str, Weight]:
        """The segment's weights by initializer name, which are not held."""
        return read_weights(segment, self._read)


def read_weights(segment: Segment, read: WeightSource) -> dict[str, Weight]:
    """The segment's weights by initializer name. Raises InternalError if one is not what the plan says."""
    return {ref.name: _weight_value(ref, read(ref)) for ref in segment.weights}


def give_weights(model: bytes | ModelProto, weights: Mapping[str, Weight], options: Any) -> bytes:
    """Prepare `options` for a session of this model that gets these weights, by initializer name. Returns the bytes to make
    the session of. OrtValues must live as long as the session, which keeps only their addresses."""
    values = {name: value for name, value in weights.items() if not isinstance(value, Path)}
    files = {name: value for name, value in weights.items() if isinstance(value, Path)}
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    if files:
        opened = onnx.load_model_from_string(model) if isinstance(model, bytes) else model
        return _with_files(opened, files, options)
    return model if isinstance(model, bytes) else bytes(model.SerializeToString())


def _with_files(model: ModelProto, files: Mapping[str, Path], options: Any) -> bytes:
    """Make the model's external initializers refer to these files, and return the model's bytes. ONNX Runtime reads such
    files only from one folder and the folders below it, after resolving links; that folder is set in `options`."""
    found = {name: path.resolve() for name, path in files.items()}
    folder = os.path.commonpath([path.parent for path in found.values()])
    read_weights_below(folder, options)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data if tensor.name in found else ():
            if entry.key == "location":
                entry.value = os.path.relpath(found[tensor.name], folder)
    return bytes(model.SerializeToString())


def _key(ref: WeightRef) -> _Key:
    return ref.digest, ref.dtype, ref.shape


def _weight_value(ref: WeightRef, blob: Array | Path) -> Weight:
    dtype = element_dtype(ref.dtype)
    if dtype is None or is_sub_byte(dtype):
        raise InternalError(f"weight {ref.name} is of {ref.dtype}, which has to be inside its segment")
    nbytes = blob.stat().st_size if isinstance(blob, Path) else blob.nbytes
    if nbytes != ref.nbytes:
        raise InternalError(
            f"weight {ref.name} ({ref.dtype}, cut from {ref.source}) has {nbytes} bytes in the store "
            f"and {ref.nbytes} in the plan"
        )
    if isinstance(blob, Path):
        return blob
    raw = np.asarray(blob).reshape(-1).view(np.uint8)
    return as_ort_value(raw.view(dtype).reshape(ref.shape))
