"""Models with weights of few bits, for commands: the user's inputs are read, progress is shown, and a note says how far
answers are off. Door: files, and what client/weights.py opens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.output import note, progress
from edgepart.cli.sources.model import LocalModel
from edgepart.planner.errors import UsageError

if TYPE_CHECKING:
    from edgepart.cli.tensors import Array


def quantised(
    found: LocalModel, options: DeployOptions, given: Sequence[str] = (), picture: str = ""
) -> tuple[LocalModel, DeployOptions]:
    """The model to send and its options: those that came if no weights are to be quantised. `given` are the texts of
    --input, and `picture` the one of --picture. Raises UsageError, and ModelError if answers are too far off."""
    if options.weights is None:
        if given or options.max_error is not None:
            wrong = "--input" if given else "--max-error"
            raise UsageError(f"{wrong} goes with --weights, which is missing. Nothing was deployed")
        return found, options
    from edgepart.client.weights import with_weights

    inputs = _read(found.graph, given, picture) if given else None
    with progress({}) as bar:
        made = with_weights(found.graph, found.files, options, inputs, bar)
    note(made.note)
    return replace(found, graph=made.graph, files=made.files), made.options


def quantised_graph(model: Path, kind: str | None) -> Path:
    """The .onnx file of the model with weights of that type, of which nothing but a plan is made; the model for None."""
    if kind is None:
        return model
    from edgepart.client.weights import model_with_weights

    with progress({}) as bar:
        return model_with_weights(model, kind, bar)


def _read(model: Path, given: Sequence[str], picture: str) -> dict[str, Array]:
    """The arrays by input. Raises UsageError."""
    from edgepart.agent.gateway.oip_elements import datatype_of_element
    from edgepart.cli.tensors import read_inputs
    from edgepart.planner.model.model_file import read_model
    from edgepart.planner.model.shapes.free_dimensions import inputs_of
    from edgepart.planner.model.weights import dtype_name

    entries = []
    for value in inputs_of(read_model(model)):
        tensor = value.type.tensor_type
        shape = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
        datatype = datatype_of_element(dtype_name(tensor.elem_type) if tensor.elem_type else "")
        entries.append({"name": value.name, "datatype": datatype, "shape": shape})
    return read_inputs(given, {"inputs": entries}, picture, note)
