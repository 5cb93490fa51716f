"""Writes a model with weights of few bits. Door: files. One weight at a time is in memory, so that the model may be larger
than that."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from edgepart.agent.quantise.blocks import quantise_matrix, quantise_rows
from edgepart.agent.quantise.choice import choose_weights, quantised_before
from edgepart.agent.quantise.rewriting import rewrite
from edgepart.agent.quantise.work import DATA, MODEL
from edgepart.planner.errors import ModelError, UsageError
from edgepart.planner.figures import format_bytes
from edgepart.planner.model.load import load_constants
from edgepart.planner.model.model_file import parse_model
from edgepart.planner.model.weights import (
    Origin,
    constant_of,
    external_path,
    stored_bytes,
    tensors_of,
)
from edgepart.planner.region import Array

CHUNK_BYTES = 1 << 20
ALIGNED_BYTES = 64
"""Weights begin at multiples of this, as ONNX Runtime reads them best."""
LEAST_SHARE = 0.05
"""The least part of the weights' bytes that is worth a model of its own."""


def write_quantised(model: Path, kind: str, folder: Path) -> None:
    """Write the model with weights of that type as MODEL and DATA into a folder that is there. Raises UsageError if the
    model has hardly any weights that can be quantised, or has quantised ones already, and ModelError if it cannot be
    read."""
    found, origin = parse_model(model)
    if before := quantised_before(found):
        raise UsageError(
            f"--weights {kind}: {model.name} has weights of few bits already ({', '.join(before)}); leave the option out. "
            "Nothing was deployed"
        )
    constants = load_constants(model)
    choice = choose_weights(found, constants)
    if choice.chosen_bytes < LEAST_SHARE * choice.all_bytes or not choice.chosen_bytes:
        raise UsageError(
            f"--weights {kind}: {model.name} has {format_bytes(choice.all_bytes)} of weights, of which "
            f"{format_bytes(choice.chosen_bytes)} are matrices that products multiply with or tables that rows are taken "
            "from; no others can be quantised, such as those of convolutions. Leave the option out. Nothing was deployed"
        )
    made = rewrite(found, choice, constants, kind)
    with (folder / DATA).open("xb") as data:
        for proto in tensors_of(found):
            _copy(proto, origin, data)
        for matrix, names in made.matrices.items():
            array = constants[matrix.weight].load()
            blocks = quantise_matrix(array.T if matrix.turned else array, kind)
            _add(found, data, names.packed, blocks.packed)
            _add(found, data, names.scales, blocks.scales)
            if blocks.middles is not None:
                _add(found, data, names.middles, blocks.middles)
        for table, rows in made.tables.items():
            numbers, scales = quantise_rows(constants[table].load())
            _add(found, data, rows.numbers, numbers)
            _add(found, data, rows.scales, scales)
    onnx.save_model(found, folder / MODEL)


def _copy(proto: TensorProto, origin: Origin, data: BinaryIO) -> None:
    """Takes the bytes of a weight that stays as it is along, if they are not in the graph."""
    if proto.data_location != TensorProto.EXTERNAL:
        return
    constant_of(proto, origin)  # Checks that the bytes are there.
    entries = {one.key: one.value for one in proto.external_data}
    nbytes = stored_bytes(proto.dims, proto.data_type)
    with external_path(proto, origin, proto.name).open("rb") as file:
        file.seek(int(entries.get("offset") or 0))
        _place(proto, _align(data), nbytes)
        while nbytes:
            chunk = file.read(min(nbytes, CHUNK_BYTES))
            if not chunk:
                raise ModelError(f"{origin.name}: {proto.name!r} was cut short while it was read")
            data.write(chunk)
            nbytes -= len(chunk)


def _add(model: ModelProto, data: BinaryIO, name: str, array: Array) -> None:
    """Writes a new weight."""
    proto = model.graph.initializer.add(
        name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape
    )
    _place(proto, _align(data), array.nbytes)
    data.write(np.ascontiguousarray(array).data)


def _align(data: BinaryIO) -> int:
    """The offset at which the next weight begins."""
    data.write(bytes(-data.tell() % ALIGNED_BYTES))
    return data.tell()


def _place(proto: TensorProto, offset: int, nbytes: int) -> None:
    """Says where the weight's bytes are."""
    proto.ClearField("raw_data")
    del proto.external_data[:]
    proto.data_location = TensorProto.EXTERNAL
    for key, value in (("location", DATA), ("offset", offset), ("length", nbytes)):
        proto.external_data.add(key=key, value=str(value))
