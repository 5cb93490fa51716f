"""Active plans: a plan as its gateway uses it, and the pieces into which it cuts inputs and from which it makes outputs.
Rules: no door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from edgepart.agent.cluster.state.bindings import describe_input
from edgepart.agent.execution.copies import CopyPlan, plan_copy
from edgepart.agent.execution.tasks import START_TRANSFER, StepKind
from edgepart.agent.serving import request_state as rules
from edgepart.agent.serving.likely_outputs import merge_likely
from edgepart.agent.wire.dtypes import element_dtype, element_name
from edgepart.agent.wire.likely_entries import LikelyEntries
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import InternalError, RequestError, StateLost
from edgepart.planner.plans.plan import GATEWAY, Piece, Plan, Receive, Transfer, ValueInfo
from edgepart.planner.region import Array, Region

NEVER = -1
"""The number of a transfer that no plan has."""


@dataclass(frozen=True)
class ActiveSide:
    """The gateway's part of requests that go to one replica."""

    nodes: frozenset[str]
    """Node ids of the replica's devices."""
    outgoing: tuple[Transfer, ...]
    """The transfers that bring inputs to the replica."""
    incoming: Mapping[int, Transfer]
    """The transfers that bring outputs from the replica, by number."""
    slots: Mapping[tuple[int, int], int]
    """The slot of each piece that arrives, by the number of its transfer and its index there."""
    recipes: Mapping[str, CopyPlan]
    """The recipe that makes each output from the slots, by the output's name."""
    tiles: Mapping[str, tuple[tuple[int, Region], ...]]
    """The slots and regions of outputs that consist of pieces that do not overlap, by the output's name. The most likely
    entries of such an output follow from those of its pieces."""
    starts: tuple[str, ...]
    """Devices whose programs receive nothing, which therefore have to be told to start."""


@dataclass(frozen=True)
class ActivePlan:
    """A plan as its gateway uses it; the same for every request."""

    plan: Plan
    nodes: Mapping[str, str]
    constants: Mapping[str, Array]
    sides: tuple[ActiveSide, ...]
    """One for each replica; a single one with all devices if the plan has no replicas."""
    program: str = ""
    """The deployment under which the devices hold the plan; "" if it is the one that requests name."""
    prefill: ActivePlan | None = None
    """The plan of steps that read many rows at once; None if there is none."""
    batch: ActivePlan | None = None
    """The plan of requests that make a step in each of several sequences; None if there is none."""
    number: int = 0
    """The number of the model's version, as in Prepare."""

    @property
    def holders(self) -> frozenset[str]:
        """Node ids of the devices that have states of sequences, their own or copies of others'."""
        return frozenset(self.nodes[name] for name in (*self.plan.programs, *self.plan.mirrors.values()))

    @property
    def rules(self) -> tuple[rules.ReplicaSide, ...]:
        """The sides as request_state.py knows them."""
        # Without a plan for them such requests fail, and are not answered before that.
        wide = [frozenset(side.incoming) for side in self.batch.sides] if self.batch is not None else ()
        return tuple(
            rules.ReplicaSide(
                side.nodes, frozenset(side.incoming), replica, wide[n] if wide else frozenset({NEVER})
            )
            for n, (side, replica) in enumerate(zip(self.sides, self.plan.parts, strict=True))
        )

    def form_of(self, kind: StepKind) -> ActivePlan:
        """The plan of a kind of steps. Raises StateLost if there is none: they have to be made in another way then."""
        form = {StepKind.PREFILL: self.prefill, StepKind.BATCH: self.batch}.get(kind, self)
        if form is None:
            raise StateLost(f"the plan of this model makes no {kind.value} steps")
        return form

    def can_be_reduced(self, outputs: Sequence[str], side: int) -> bool:
        """Whether the most likely entries of each of these outputs follow from those of its pieces."""
        found = self.sides[side]
        return all(name in found.tiles or name not in found.recipes for name in outputs)


def activate_plan(plan: Plan, nodes: Mapping[str, str], constants: Mapping[str, Array]) -> ActivePlan:
    """`plan` as its gateway uses it. Raises InternalError if an output is missing or a device has no node id."""
    if unknown := set(plan.programs) - set(nodes):
        raise InternalError(f"no node id given for devices {sorted(unknown)}")
    for name in plan.constant_outputs:
        if name not in {info.name for info in plan.inputs} and name not in constants:
            raise InternalError(f"no value given for the constant output {name!r}")
    sides = tuple(_active_side(plan, replica.devices, nodes) for replica in plan.parts)
    prefill, batch = (
        activate_plan(form, nodes, {}) if form is not None else None for form in (plan.prefill, plan.batch)
    )
    return ActivePlan(plan, dict(nodes), dict(constants), sides, prefill=prefill, batch=batch)


def _active_side(plan: Plan, devices: Sequence[str], nodes: Mapping[str, str]) -> ActiveSide:
    incoming = {t.number: t for t in plan.transfers if t.target == GATEWAY and t.source in devices}
    keys = [(t.number, n) for t in incoming.values() for n in range(len(t.pieces))]
    slots = {key: slot for slot, key in enumerate(keys)}
    pieces = {slot: incoming[number].pieces[n] for (number, n), slot in slots.items()}
    recipes: dict[str, CopyPlan] = {}
    tiles: dict[str, tuple[tuple[int, Region], ...]] = {}
    for info in plan.outputs:
        if info.name in plan.constant_outputs:
            continue
        found = plan_copy(Piece(info.name, Region.full(info.shape)), pieces)
        if found is None:
            raise InternalError(f"the plan does not bring all of output {info.name!r} to the gateway")
        recipes[info.name] = found
        parts = tuple((slot, pieces[slot].region) for slot in found.slots)
        if info.shape and sum(region.size for _, region in parts) == prod(info.shape):
            tiles[info.name] = parts
    outgoing = tuple(t for t in plan.transfers if t.source == GATEWAY and t.target in devices)
    fed = {t.target for t in plan.transfers}
    starts = tuple(sorted(d for d in devices if d not in fed and _receives_nothing(plan.programs[d].steps)))
    members = frozenset(nodes[name] for name in devices)
    return ActiveSide(members, outgoing, incoming, slots, recipes, tiles, starts)


def _receives_nothing(steps: Sequence[object]) -> bool:
    return bool(steps) and not any(isinstance(step, Receive) for step in steps)


def check_inputs(expected: Sequence[ValueInfo], given: Mapping[str, Value]) -> dict[str, Value]:
    """`given`, with text arrays as object arrays. Raises RequestError, which names the input at fault and what is
    expected."""
    names = {info.name for info in expected}
    if unknown := [name for name in given if name not in names]:
        raise RequestError(f"there is no input {unknown[0]!r}; the model takes {_describe_inputs(expected)}")
    checked: dict[str, Value] = {}
    for info in expected:
        if info.name not in given:
            raise RequestError(
                f"input {info.name!r} is missing; the model takes {_describe_inputs(expected)}"
            )
        checked[info.name] = _check_input(info, given[info.name])
    return checked


def _check_input(info: ValueInfo, value: Value) -> Value:
    dtype = element_dtype(info.dtype)
    if dtype is None:
        return value  # A sequence or map: ONNX Runtime itself raises an error if the value is none.
    if not isinstance(value, np.ndarray):
        raise RequestError(
            f"input {info.name!r} is a {type(value).__name__}; expected an array {_describe_input(info)}"
        )
    if dtype.kind == "O" and value.dtype.kind == "U":
        value = value.astype(object)
    if value.dtype != dtype:
        raise RequestError(
            f"input {info.name!r} is of {element_name(value.dtype)}; expected {_describe_input(info)}"
        )
    if info.shape is not None and value.shape != info.shape:
        raise RequestError(
            f"input {info.name!r} has shape {list(value.shape)}; expected {_describe_input(info)}"
        )
    return value


def _describe_inputs(expected: Sequence[ValueInfo]) -> str:
    return ", ".join(map(_describe_input, expected)) or "no inputs"


def _describe_input(info: ValueInfo) -> str:
    return describe_input(replace(info, free=()))


def output_names(deployment: str, plan: Plan, outputs: Sequence[str]) -> tuple[str, ...]:
    """The names of the outputs that are asked for; all of them if `outputs` is empty. Raises RequestError for a name that
    the model does not have."""
    known = tuple(info.name for info in plan.outputs)
    if absent := [name for name in outputs if name not in known]:
        raise RequestError(f"{deployment!r} has no output {absent[0]!r}; it has {list(known)}")
    return tuple(outputs) or known


def cut_inputs(
    active: ActivePlan, inputs: Mapping[str, Value], side: int = 0
) -> list[tuple[str, int, list[Value]]]:
    """The messages of the gateway to one side of the plan: node id, transfer number and contiguous pieces of each."""
    parcels: list[tuple[str, int, list[Value]]] = []
    for transfer in active.sides[side].outgoing:
        values = [_piece_of(piece, inputs[piece.tensor]) for piece in transfer.pieces]
        parcels.append((active.nodes[transfer.target], transfer.number, values))
    return parcels + [(active.nodes[device], START_TRANSFER, []) for device in active.sides[side].starts]


def _piece_of(piece: Piece, value: Value) -> Value:
    if piece.region.rank == 0 or not isinstance(value, np.ndarray):
        return value
    return np.ascontiguousarray(piece.region.crop(value))


def assemble_output(
    active: ActivePlan,
    name: str,
    got: Mapping[int, Value],
    inputs: Mapping[str, Value],
    side: int = 0,
    likely: int = 0,
) -> Value:
    """One output, made from the pieces that arrived from a side; so many of its most likely entries if that is what came of
    some piece. Raises InternalError if they do not fit together in one array."""
    recipes = active.sides[side].recipes
    if name in recipes:
        parts = [(region, got[slot]) for slot, region in active.sides[side].tiles.get(name, ())]
        try:
            if any(isinstance(value, LikelyEntries) for _, value in parts):
                shape = recipes[name].piece.region.shape
                return merge_likely(shape, parts, likely)
            return recipes[name].make(got)
        except (ValueError, TypeError) as error:
            raise InternalError(f"the parts of output {name!r} do not fit together: {error}") from error
    return inputs[name] if name in inputs else active.constants[name]
