"""Runs a whole plan in this process, one step after another: the plain twin of the agents' executor.

Real ONNX Runtime sessions, no network, no threads of ours, nothing clever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto

from edgepart.planner.blobs import cut
from edgepart.planner.graph import Graph
from edgepart.planner.plan import GATEWAY, Piece, Plan, Receive, Run, Segment, Send, Step, WeightRef
from edgepart.planner.region import Array, Region

Weights = Callable[[WeightRef], Array]


def weights_of(graph: Graph) -> Weights:
    """The weights of a graph at hand."""
    return lambda ref: cut(graph.constants[ref.source], ref.region)


def session_options() -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return options


def run_model(model: bytes | str, inputs: Mapping[str, Array]) -> dict[str, Any]:
    """One session over a whole model."""
    session = ort.InferenceSession(model, session_options(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def run_segment(segment: Segment, weights: Weights, inputs: Mapping[str, Any]) -> list[Any]:
    """One segment in a session of its own; its outputs in the order of its ports."""
    options = session_options()
    refs = segment.weights
    values = [_value(weights(ref), ref.dtype) for ref in refs]
    if refs:
        options.add_external_initializers([ref.name for ref in refs], values)
    session = ort.InferenceSession(segment.model, options, providers=["CPUExecutionProvider"])
    return list(session.run([port.name for port in segment.outputs], dict(inputs)))


def _value(array: Array, dtype: str) -> Any:
    if array.dtype.isbuiltin == 1:
        return ort.OrtValue.ortvalue_from_numpy(array)
    bits = array.view(f"u{array.itemsize}")
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.DataType.Value(dtype.upper()))


@dataclass
class Held:
    """What one place has of each tensor."""

    pieces: dict[str, list[tuple[Region, Any]]] = field(default_factory=dict)

    def add(self, piece: Piece, value: Any) -> None:
        self.pieces.setdefault(piece.tensor, []).append((piece.region, value))

    def get(self, piece: Piece) -> Any:
        """The packed elements of the piece, out of whatever pieces there are."""
        have = self.pieces[piece.tensor]
        for region, value in have:
            if region == piece.region:
                return value
        whole = np.empty(piece.region.shape, have[0][1].dtype)
        done = np.zeros(piece.region.shape, bool)
        for region, value in have:
            for box in region.intersect(piece.region).boxes():
                at = box.within(piece.region).slices()
                whole[at] = box.within(region).crop(value)
                done[at] = True
        assert done.all(), f"{piece} is not all there: {[str(region) for region, _ in have]}"
        return whole


def run_plan(plan: Plan, weights: Weights, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs that operators write, by name."""
    gateway = Held()
    for name, value in inputs.items():
        info = next(info for info in plan.inputs if info.name == name)
        gateway.add(Piece(name, Region.full(info.shape)), value)
    places = {name: Held() for name in plan.programs} | {GATEWAY: gateway}
    todo = {name: list(program.steps) for name, program in plan.programs.items()}
    mail: dict[int, list[Any]] = {
        transfer.number: [gateway.get(piece) for piece in transfer.pieces]
        for transfer in plan.transfers
        if transfer.source == GATEWAY
    }
    while any(todo.values()):
        ready = [name for name, steps in todo.items() if steps and _is_ready(steps[0], mail)]
        assert ready, f"deadlock: { ({name: steps[:1] for name, steps in todo.items()}) }"
        for name in ready:
            _step(plan, name, todo[name].pop(0), places[name], weights, mail)
    for transfer in plan.transfers:
        if transfer.target == GATEWAY:
            for piece, value in zip(transfer.pieces, mail[transfer.number], strict=True):
                gateway.add(piece, value)
    answers = [info for info in plan.outputs if info.name not in plan.constant_outputs]
    return {info.name: gateway.get(Piece(info.name, Region.full(info.shape))) for info in answers}


def _is_ready(step: Step, mail: Mapping[int, Any]) -> bool:
    return not isinstance(step, Receive) or step.transfer in mail


def _step(
    plan: Plan, device: str, step: Step, held: Held, weights: Weights, mail: dict[int, list[Any]]
) -> None:
    match step:
        case Receive(number):
            for piece, value in zip(plan.transfers[number].pieces, mail[number], strict=True):
                held.add(piece, value)
        case Send(number):
            mail[number] = [held.get(piece) for piece in plan.transfers[number].pieces]
        case Run(number):
            segment = plan.programs[device].segments[number]
            values = run_segment(segment, weights, {p.name: held.get(p.piece) for p in segment.inputs})
            for port, value in zip(segment.outputs, values, strict=True):
                held.add(port.piece, value)
