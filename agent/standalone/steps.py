"""Steps: what each device of a plan does, and its client, as lists that a program needs nothing else for. Rules: no door.

Where the paper inserts operators that crop and concatenate (BBGraP, section 3.2), a list has copies: boxes of values that
are there go to boxes of a new one. Each value is sent by itself, as the number of its transfer and its place in that. Each
step names the values that no later step needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgepart.agent.execution.copies import CopyPlan, plan_copy
from edgepart.agent.execution.schedule import DeviceSchedule, make_schedule
from edgepart.planner.errors import InternalError
from edgepart.planner.plans.plan import GATEWAY, Piece, Plan, Program, Receive, Run, Transfer
from edgepart.planner.region import Region

Step = dict[str, Any]


class _ValueNames:
    """Names of values, each given once: a piece's own, with a number where another value has that."""

    def __init__(self, taken: Sequence[str] = ()) -> None:
        self._given = set(taken)

    def of(self, piece: Piece) -> str:
        name = base = f"{piece.tensor}[{piece.region}]"
        number = 1
        while name in self._given:
            number += 1
            name = f"{base} {number}"
        self._given.add(name)
        return name


def device_steps(program: Program, transfers: Sequence[Transfer], models: Sequence[str]) -> list[Step]:
    """The steps of one device. `models` are the files of the program's segments."""
    schedule = make_schedule(program, transfers)
    names = _ValueNames()
    slots = [names.of(piece) for piece in schedule.slots]
    found: list[Step] = []
    for index, step in enumerate(program.steps):
        copies, wanted = _copies(schedule.recipes[index], slots, names)
        found += copies
        if isinstance(step, Receive):
            found += _receive(step.transfer, [slots[slot] for slot in schedule.received[step.transfer]])
        elif isinstance(step, Run):
            segment = program.segments[step.segment]
            made = [slots[slot] for slot in schedule.computed[index]]
            found.append({
                "do": "run", "model": models[step.segment],
                "inputs": dict(zip((port.name for port in segment.inputs), wanted, strict=True)),
                "outputs": dict(zip((port.name for port in segment.outputs), made, strict=True)),
            })  # fmt: skip
        else:
            found += _send(schedule.outgoing[step.transfer], wanted)
        found[-1]["drop"] = [copy["value"] for copy in copies] + _freed(schedule, index, slots)
    return found


def _send(transfer: Transfer, values: Sequence[str]) -> list[Step]:
    to = transfer.target or None
    return [
        {"do": "send", "value": value, "to": to, "as": f"{transfer.number}.{n}", "drop": []}
        for n, value in enumerate(values)
    ]


def _receive(transfer: int, values: Sequence[str]) -> list[Step]:
    return [
        {"do": "receive", "value": value, "as": f"{transfer}.{n}", "drop": []}
        for n, value in enumerate(values)
    ]


def _freed(schedule: DeviceSchedule, index: int, slots: Sequence[str]) -> list[str]:
    return [slots[slot] for slot in schedule.frees[index]]


def _copies(
    recipes: Sequence[CopyPlan], slots: Sequence[str], names: _ValueNames
) -> tuple[list[Step], list[str]]:
    """The copies that pieces have to be made by, and the value of each piece."""
    steps: list[Step] = []
    values: list[str] = []
    for recipe in recipes:
        if recipe.is_held_piece:
            values.append(slots[recipe.slots[0]])
            continue
        values.append(names.of(recipe.piece))
        shape, parts = list(recipe.piece.region.shape), list(_parts(recipe, slots))
        steps.append({"do": "copy", "value": values[-1], "shape": shape, "parts": parts, "drop": []})
    return steps, values


def _parts(recipe: CopyPlan, slots: Sequence[str]) -> Iterator[Step]:
    """The boxes that are copied: each from a box of a value to a box of the new one, by [begin, end] of each axis."""
    for copy in recipe.copies:
        yield {"of": slots[copy.slot], "from": _ends(copy.source), "to": _ends(copy.target)}
    if recipe.crop is not None and not recipe.copies:
        for box in recipe.crop.boxes() or (recipe.crop,):  # One without elements has no boxes.
            ends = box.slices(), box.within(recipe.crop).slices()
            yield {"of": slots[recipe.slots[0]], "from": _ends(ends[0]), "to": _ends(ends[1])}


def _ends(index: Sequence[slice | int]) -> list[list[int]]:
    ends = [[one.start, one.stop] for one in index if isinstance(one, slice)]
    if len(ends) != len(index):
        raise InternalError("a schedule of plain arrays has a copy of blocks")
    return ends


def client_groups(plan: Plan) -> list[dict[str, Any]]:
    """What the client of a request does, for each group of devices that answers whole requests: the steps that send the
    inputs and take the answers, and the value of each output. It begins with the inputs and constant outputs by name."""
    return [_client_group(plan, replica.devices) for replica in plan.parts]


def _client_group(plan: Plan, devices: Sequence[str]) -> dict[str, Any]:
    outgoing = [one for one in plan.transfers if one.source == GATEWAY and one.target in devices]
    incoming = [one for one in plan.transfers if one.target == GATEWAY and one.source in devices]
    given = [info.name for info in plan.inputs]
    names = _ValueNames([*given, *plan.constant_outputs])
    steps: list[Step] = []
    pieces = {slot: Piece(info.name, Region.full(info.shape)) for slot, info in enumerate(plan.inputs)}
    for transfer in outgoing:
        copies, values = _copies([_found(piece, pieces) for piece in transfer.pieces], given, names)
        steps += [*copies, *_send(transfer, values)]
        steps[-1]["drop"] = [copy["value"] for copy in copies]
    slots: list[str] = []
    come: dict[int, Piece] = {}
    for transfer in incoming:
        values = [names.of(piece) for piece in transfer.pieces]
        come.update(enumerate(transfer.pieces, len(slots)))
        slots += values
        steps += _receive(transfer.number, values)
    outputs: dict[str, str] = {}
    for info in plan.outputs:
        if info.name in plan.constant_outputs:
            outputs[info.name] = info.name
            continue
        copies, (outputs[info.name],) = _copies(
            [_found(Piece(info.name, Region.full(info.shape)), come)], slots, names
        )
        steps += copies
    return {"devices": list(devices), "steps": steps, "outputs": outputs}


def _found(want: Piece, held: Mapping[int, Piece]) -> CopyPlan:
    found = plan_copy(want, held)
    if found is None:
        raise InternalError(f"the plan does not bring all of {want.tensor}[{want.region}]")
    return found
