"""Open Inference Protocol: what it tells of the server and of a deployment, whether a request fits one, and what is not
offered. Rules: no door.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from edgepart.agent.api.model_card import ModelCard
from edgepart.agent.gateway.oip import InferRequest
from edgepart.agent.gateway.oip_elements import datatype_of_array, datatype_of_element
from edgepart.planner.errors import RequestError
from edgepart.planner.plans.plan import ValueInfo

EXTENSIONS = ("binary_tensor_data", "model_configuration", "sequence")
PLATFORM = "onnxruntime_onnx"


class NotOffered(RequestError):
    """The protocol has this, and edgepart does not. Nothing was run or changed."""


_MEMORY = "this server shares no memory with its clients; send tensors in requests"
NOT_OFFERED = {
    "RepositoryModelLoad": "models are deployed by `edgepart deploy`; nothing was loaded",
    "RepositoryModelUnload": "models are taken away by `edgepart undeploy`; nothing was unloaded",
    "ModelStatistics": "statistics are at GET /metrics of this agent's HTTP address, for Prometheus",
    **{
        f"{kind}SharedMemory{what}": _MEMORY
        for kind in ("System", "Cuda")
        for what in ("Status", "Register", "Unregister")
    },
    "TraceSetting": "traces are taken by `edgepart trace`; nothing was changed",
    "LogSettings": "what is logged is set when the agent starts, by --log-level; nothing was changed",
}
"""Maps the protocol's operations (by their names in gRPC) that are not offered to what to do instead."""


def refuse_operation(operation: str) -> NoReturn:
    """Raises NotOffered for one of NOT_OFFERED."""
    raise NotOffered(f"{operation} is not offered: {NOT_OFFERED[operation]}")


def metadata(card: ModelCard) -> dict[str, Any]:
    """Return a deployment's inputs and outputs."""
    sides = {"inputs": card.inputs, "outputs": card.outputs}
    return {
        "name": card.name,
        "versions": [card.version, *(() if card.candidate is None else (card.candidate.version,))],
        "platform": PLATFORM,
        **{
            side: [
                {
                    "name": value.name,
                    "datatype": datatype_of_element(value.dtype),
                    "shape": [-1] if value.shape is None else list(value.shape),
                }
                for value in values
            ]
            for side, values in sides.items()
        },
    }


def configuration(card: ModelCard) -> dict[str, Any]:
    """Return Triton's model configuration; fields that have no meaning here are left out."""
    return {
        "name": card.name,
        "platform": PLATFORM,
        "backend": "onnxruntime",
        "max_batch_size": 0,
        "input": [_configure(value) for value in card.inputs],
        "output": [_configure(value) for value in card.outputs],
    }


def _configure(value: ValueInfo) -> dict[str, Any]:
    datatype = datatype_of_element(value.dtype)
    name = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    return {"name": value.name, "data_type": name, "dims": [-1] if value.shape is None else list(value.shape)}


def check_fit(card: ModelCard, request: InferRequest) -> None:
    """Raises RequestError if names, datatypes or shapes are not the deployment's."""
    known = {value.name: value for value in card.inputs}
    if request.sequence is not None and not card.states:
        _refuse(f"{card.name!r} keeps no states between requests; leave `sequence_id` out")
    for name, array in request.inputs.items():
        if name in card.states:
            _refuse(
                f"input {name!r} is a state that the devices keep: leave it out and give `sequence_id`, or deploy with "
                "--no-states"
            )
        if name not in known:
            _refuse(f"{card.name!r} has no input {name!r}; it has {sorted(known)}")
        value = known[name]
        datatype = datatype_of_array(array.dtype)
        if datatype != datatype_of_element(value.dtype):
            _refuse(f"input {name!r} is {datatype}; {card.name!r} takes {datatype_of_element(value.dtype)}")
        if value.shape is not None and not _fits(array.shape, value.shape):
            _refuse(f"input {name!r} has shape {list(array.shape)}; {card.name!r} takes {list(value.shape)}")
    if missing := sorted(set(known) - set(request.inputs)):
        _refuse(f"inputs {missing} of {card.name!r} are missing")
    if unknown := sorted(set(request.outputs or ()) - {value.name for value in card.outputs}):
        _refuse(f"{card.name!r} has no outputs {unknown}; it has {[v.name for v in card.outputs]}")


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(w in (-1, s) for s, w in zip(shape, wanted, strict=True))


def _refuse(message: str) -> NoReturn:
    raise RequestError(message)
