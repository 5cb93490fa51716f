"""Documents of the stand-alone form: plan.json, the schedules, and README.txt; and why a plan has no such form. Rules: no
door. Equal plans give equal documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from onnx import ModelProto, TensorProto

from edgepart.agent.standalone.steps import client_groups
from edgepart.agent.wire.dtypes import element_dtype, is_native
from edgepart.planner.errors import ModelError, UsageError
from edgepart.planner.model.graph import Graph
from edgepart.planner.plans.plan import Plan, ValueInfo

FORMAT = "edgepart-standalone/1"
PORT = 7440
"""Where devices listen, unless their addresses say otherwise."""


def check_expressible(plan: Plan, graph: Graph) -> None:
    """Raises ModelError or UsageError, with what to do, if the plan is more than these files can say."""
    deploy = "`edgepart deploy` runs it"
    if plan.states:
        raise ModelError(
            f"{graph.name} keeps states between requests, which stand-alone files cannot; {deploy}"
        )
    if plan.rounded_to:
        raise UsageError(
            f"the plan rounds what travels to {plan.rounded_to}, which stand-alone files cannot; plan it without "
            "rounding (float32)"
        )
    for name, kind in _kinds(plan):
        dtype = element_dtype(kind)
        if dtype is None or not is_native(dtype) or dtype.hasobject:
            raise ModelError(
                f"{graph.name}: {name!r} is of type {kind}, and stand-alone files carry numbers of numpy's types only; "
                f"{deploy}"
            )


def _kinds(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yields all that is sent or that segments are given or give, with its type. (What is sent are inputs, and what
    segments give; parts of sums are among it, which no graph of the model's has.)"""
    yield from ((info.name, info.dtype) for info in (*plan.inputs, *plan.outputs))
    for segment in (one for program in plan.programs.values() for one in program.segments):
        ports = {port.name: port.piece.tensor for port in (*segment.inputs, *segment.outputs)}
        found = ModelProto.FromString(segment.model).graph
        for info in (*found.input, *found.output):
            if info.name in ports:
                kind = info.type.WhichOneof("value") or "unknown"
                if kind == "tensor_type":
                    kind = TensorProto.DataType.Name(info.type.tensor_type.elem_type).lower()
                yield ports[info.name], kind


def folder_names(devices: Iterable[str]) -> dict[str, str]:
    """A folder for each device, called as the device if file systems allow that. Names that differ in case only get
    numbers."""
    found: dict[str, str] = {}
    used = {"plan.json", "run.py", "readme.txt"}
    for device in devices:
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", device).strip(".") or "device"
        name, number = base, 1
        while name.casefold() in used:
            number += 1
            name = f"{base}-{number}"
        used.add(name.casefold())
        found[device] = name
    return found


def addresses_of(devices: Iterable[str], given: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """The address of each of these devices: the one given, else its name as the host's. Raises UsageError for a wrong one,
    or one of a device that is not `known`; the plan need not use all of those."""
    for name, address in given.items():
        if name not in known:
            raise UsageError(f"address of {name!r}: there is no such device among {', '.join(known)}")
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise UsageError(f"address of {name!r}: write {address!r} as HOST:PORT")
    return {name: given.get(name, f"{name}:{PORT}") for name in devices}


def plan_document(
    plan: Plan,
    graph: Graph,
    folders: Mapping[str, str],
    addresses: Mapping[str, str],
    threads: Mapping[str, int],
    constants: Mapping[str, str],
) -> dict[str, Any]:
    """plan.json. `constants` has the files of outputs that are the same for every request."""
    return {
        "format": FORMAT,
        "model": graph.name,
        "strategy": plan.strategy,
        "predicted_latency_s": plan.predicted_latency_s,
        "why": plan.why.partition("\n")[0],  # What would help is told as far as the time of a search allows.
        "devices": {
            name: {"address": addresses[name], "folder": folders[name], "threads": threads[name]}
            for name in folders
        },
        "inputs": [_value_document(info) for info in plan.inputs],
        "outputs": [_value_document(info) for info in plan.outputs],
        "constants": dict(constants),
        "groups": client_groups(plan),
        "transfers": [
            {
                "number": one.number,
                "from": one.source or None,
                "to": one.target or None,
                "bytes": one.nbytes,
                "pieces": [
                    {
                        "tensor": piece.tensor,
                        "region": [[[i.start, i.stop] for i in span] for span in piece.region.spans],
                    }
                    for piece in one.pieces
                ],
            }
            for one in plan.transfers
        ],
    }


def _value_document(info: ValueInfo) -> dict[str, Any]:
    dtype = element_dtype(info.dtype)
    shape = None if info.shape is None else list(info.shape)
    return {"name": info.name, "dtype": info.dtype if dtype is None else dtype.name, "shape": shape}


def readme(plan: Plan, graph: Graph, folders: Mapping[str, str], addresses: Mapping[str, str]) -> str:
    """README.txt: how to run the folder, and what is in it."""
    width = max(map(len, folders))
    devices = "\n".join(f"    {name:{width}}  {addresses[name]:28}  {folders[name]}/" for name in folders)
    first = next(iter(folders))
    inputs = ", ".join(f"{info.name} ({_form(info)})" for info in plan.inputs) or "none"
    outputs = ", ".join(f"{info.name} ({_form(info)})" for info in plan.outputs)
    return f"""{graph.name}, divided by the strategy {plan.strategy} over {len(folders)} device{"s" * (len(folders) != 1)}.

1. On every device, with this folder (it needs run.py, plan.json and its own folder of it):

    pip install onnxruntime numpy

2. On every device, with its own name in place of {first}:

    python run.py {first}

3. On the machine that asks, with the inputs by name in an .npz file; the outputs come in answer.npz:

    python run.py --ask input.npz

The devices, and where they are reached. A change of an address in plan.json has to be the same on all machines.

{devices}

Inputs: {inputs}
Outputs: {outputs}

plan.json says who sends what to whom; DEVICE/schedule.json what a device does, in order; DEVICE/*.onnx are complete models.
A device listens on all of its interfaces, or where --listen says. Nothing is encrypted, and nobody is asked who he is: use
this in a network that you trust.
"""


def _form(info: ValueInfo) -> str:
    document = _value_document(info)
    extents = (
        "of any shape" if document["shape"] is None else "x".join(map(str, document["shape"])) or "scalar"
    )
    return f"{document['dtype']} {extents}"
