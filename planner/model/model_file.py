"""Reads a model's file: the model without its weights, and the names of all files that it lies in. A door: it opens these
files.

external.py leaves out the weights, and weights.py reads them when they are needed.
"""

from __future__ import annotations

import errno
import mmap
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from edgepart.planner.errors import ModelError
from edgepart.planner.model.external import skim_weights
from edgepart.planner.model.faults import FAULTS
from edgepart.planner.model.flat_scales import give_scales_rows
from edgepart.planner.model.foreign_formats import BEGIN_BYTES, explain_foreign
from edgepart.planner.model.precompiled import explain_precompiled
from edgepart.planner.model.rewrites.masked_positions import count_positions_in_mask
from edgepart.planner.model.weights import SMALL_BYTES, Origin, external_path, read_begin, tensors_of

LARGEST_FILE = (1 << 31) - 1
"""The largest model file in bytes: protobuf reads no more in one message."""


def read_model(path: Path | bytes) -> ModelProto:
    """The model in the file without its weights, and with scales and positions as most exporters write them
    (flat_scales.py, masked_positions.py). Raises ModelError if it cannot be read."""
    return parse_model(path)[0]


def parse_model(path: Path | bytes) -> tuple[ModelProto, Origin]:
    """The model as `read_model` gives it, and the files that its weights are in. Raises ModelError if it cannot be read."""
    origin = (
        Origin("model", None) if isinstance(path, bytes) else Origin(path.name, path.absolute().parent, path)
    )
    try:
        size = len(path) if isinstance(path, bytes) else path.stat().st_size
        if foreign := explain_foreign(path[:BEGIN_BYTES] if isinstance(path, bytes) else read_begin(path)):
            raise ModelError(f"{origin.name}: is not an ONNX file: {foreign}")
        if size > LARGEST_FILE:
            raise ModelError(
                f"{origin.name}: has {size} bytes, and an ONNX file cannot have more than {LARGEST_FILE}; save it with "
                "its weights as external data"
            )
        data = path if isinstance(path, bytes) else _read_skimmed(path)
    except (OSError, MemoryError) as error:
        if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
            raise ModelError(f"{origin.name}: has more bytes than there is memory for") from error
        raise ModelError(f"{path!s}: cannot be read ({error.strerror}); is the path right?") from error
    try:
        model = onnx.load_model_from_string(data)
    except (DecodeError, *FAULTS) as error:
        raise ModelError(
            f"{origin.name}: is not an ONNX file, is cut short, or nests its graphs too deep ({error})"
        ) from error
    if not model.HasField("graph") or not model.graph.output:
        raise ModelError(
            f"{origin.name}: holds no graph with outputs ({len(data)} bytes); is it an ONNX model?"
        )
    if why := explain_precompiled(model):
        raise ModelError(f"{origin.name}: {why}")
    return count_positions_in_mask(give_scales_rows(model)), origin


def _read_skimmed(path: Path) -> bytes:
    """The bytes of a model file without its weights, which are mapped into memory but not copied."""
    with path.open("rb") as file:
        if path.stat().st_size <= SMALL_BYTES:
            return file.read()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
            return skim_weights(data)


def model_files(path: Path) -> tuple[Path, ...]:
    """The model file, then the files of its external data, each once, in the order of first mention.

    Raises ModelError if a file is missing or not inside the model's folder (after following links)."""
    model, origin = parse_model(path)
    files = [path]
    for proto in tensors_of(model):
        if proto.data_location == TensorProto.EXTERNAL:
            files.append(external_path(proto, origin, f"{origin.name}: constant {proto.name!r}"))
    return tuple(dict.fromkeys(files))
