"""Checks the rules of a plan, both when an agent receives a plan and in tests. Pure rules, which follow the
steps of the programs without computing anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from edgepart.planner.errors import InternalError
from edgepart.planner.model.graph import Graph
from edgepart.planner.plans.plan import (
    GATEWAY,
    IN_PLACE_ROWS,
    KeptPiece,
    Piece,
    Plan,
    Program,
    Receive,
    Run,
    Send,
    Step,
    Transfer,
    widen,
)
from edgepart.planner.plans.reduced_precision import KINDS
from edgepart.planner.region import Region


def broken_plan_rules(plan: Plan, graph: Graph | None = None) -> Iterator[str]:
    """Yields the rules that `plan` breaks; none for a valid plan. If the graph is given, also checks that the
    answers are complete."""
    faults = [*_number_faults(plan), *_pair_faults(plan), *_port_faults(plan), *_replica_faults(plan)]
    yield from faults
    if not faults:
        yield from _run_faults(plan)
        if graph is not None:
            yield from _answer_faults(plan, graph)
    if plan.prefill is not None:
        yield from _prefill_faults(plan, plan.prefill)
    if plan.batch is not None:
        yield from _batch_faults(plan, plan.batch)
    yield from _mirror_faults(plan)


def _prefill_faults(plan: Plan, prefill: Plan) -> Iterator[str]:
    """Yields the faults of the programs that read many rows at once: they keep the same pieces on the same devices."""
    yield from (f"prefill: {fault}" for fault in broken_plan_rules(prefill))
    kept = {name: tuple(one.after(1) for one in program.kept) for name, program in prefill.programs.items()}
    if kept != {name: program.kept for name, program in plan.programs.items()}:
        yield "prefill: its devices do not keep the same pieces of states"
    if any(transfer.target == GATEWAY for transfer in prefill.transfers):
        yield "prefill: it sends an answer to the gateway"


def _batch_faults(plan: Plan, batch: Plan) -> Iterator[str]:
    """Yields the faults of the programs that make a step in several sequences: they keep what so many sequences keep."""
    yield from (f"batch: {fault}" for fault in broken_plan_rules(batch))
    rows = batch.rows
    wide = {name: widen(program.kept, rows) for name, program in plan.programs.items()}
    if rows < 2 or {name: program.kept for name, program in batch.programs.items()} != wide:
        yield f"batch: its devices do not keep what {rows} sequences keep"
    if [one.name for one in batch.outputs] != [one.name for one in plan.outputs]:
        yield "batch: it has other outputs"


def _mirror_faults(plan: Plan) -> Iterator[str]:
    """Yields the faults of mirrors: each copies the states of another device, all of which are written in place and have a
    row for each step."""
    for device, mirror in plan.mirrors.items():
        program = plan.programs.get(device)
        if program is None or not program.kept:
            yield f"{mirror!r} mirrors {device!r}, which keeps no states"
        elif device == mirror:
            yield f"{device!r} mirrors itself"
        elif any(not one.in_place or one.read.region.rank <= IN_PLACE_ROWS for one in program.kept):
            yield f"{mirror!r} mirrors states of {device!r} that are not written in place, row after row"


def check_plan(plan: Plan, graph: Graph | None = None) -> Plan:
    """Returns `plan`. Raises InternalError, naming every broken rule, if the plan is not valid."""
    if broken := list(broken_plan_rules(plan, graph)):
        raise InternalError("the plan breaks its rules: " + "; ".join(broken))
    return plan


def _number_faults(plan: Plan) -> Iterator[str]:
    for n, transfer in enumerate(plan.transfers):
        if transfer.number != n:
            yield f"transfer {transfer.number} is at place {n}"
        if transfer.source == transfer.target:
            yield f"transfer {n} goes from {transfer.source!r} to itself"
        for end in {transfer.source, transfer.target} - {GATEWAY} - set(plan.programs):
            yield f"transfer {n} names {end!r}, which has no program"
        if not transfer.pieces:
            yield f"transfer {n} is empty"
        yield from _rounding_faults(transfer)
    for name, program in plan.programs.items():
        if program.device != name:
            yield f"the program of {name!r} says that it is {program.device!r}'s"
        for step in program.steps:
            known = len(program.segments) if isinstance(step, Run) else len(plan.transfers)
            if not 0 <= _number(step) < known:
                yield f"{name}: {step} names nothing"


def _rounding_faults(transfer: Transfer) -> Iterator[str]:
    """Yields the faults of rounding: only pieces that go from device to device are rounded, and only to known
    kinds."""
    if transfer.dtypes and GATEWAY in (transfer.source, transfer.target):
        yield f"transfer {transfer.number} is rounded, and one end is the gateway"
    if transfer.dtypes and len(transfer.dtypes) != len(transfer.pieces):
        yield f"transfer {transfer.number} rounds {len(transfer.dtypes)} of {len(transfer.pieces)} pieces"
    for kind in sorted(set(transfer.dtypes) - set(KINDS)):
        yield f"transfer {transfer.number} is rounded to {kind!r}"


def _number(step: Step) -> int:
    return step.segment if isinstance(step, Run) else step.transfer


def _pair_faults(plan: Plan) -> Iterator[str]:
    """Yields the faults of steps: each transfer is sent once by its source and received once by its target,
    and each segment runs once."""
    steps = Counter((name, step) for name, program in plan.programs.items() for step in program.steps)
    wanted = Counter[tuple[str, Step]]()
    for transfer in plan.transfers:
        ends: tuple[tuple[str, Step], ...] = (
            (transfer.source, Send(transfer.number)),
            (transfer.target, Receive(transfer.number)),
        )
        wanted.update(end for end in ends if end[0] != GATEWAY)
    for name, program in plan.programs.items():
        wanted.update((name, Run(n)) for n in range(len(program.segments)))
    for name, step in sorted((steps - wanted) + (wanted - steps), key=str):
        yield f"{name}: {step} is there {steps[name, step]} times instead of {wanted[name, step]}"


def _port_faults(plan: Plan) -> Iterator[str]:
    for name, program in plan.programs.items():
        if program.kept and not plan.states:
            yield f"{name} keeps states, and the plan has none"
        for kept in program.kept:
            if not _may_become(kept, short=not plan.outputs):
                yield f"{name}: {kept.read} is kept from {kept.written}, which has another shape"
        for n, segment in enumerate(program.segments):
            names = [port.name for port in (*segment.inputs, *segment.outputs)]
            names += [ref.name for ref in segment.weights]
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                yield f"{name}: segment {n} has two ports or weights called {twice}"
            for ref in segment.weights:
                if ref.shape != ref.region.shape:
                    yield f"{name}: segment {n}: {ref.name!r} has shape {ref.shape}, not {ref.region.shape}"


def _may_become(kept: KeptPiece, *, short: bool) -> bool:
    """Whether what is written can be what is read next; steps of which nothing is answered may be `short`."""
    if kept.read.region.rank != kept.written.region.rank:
        return False
    return not kept.longer or (short and len(kept.longer) == 1 and kept.longer[0][1] > 0)


@dataclass
class _ProgramPlace:
    """The place of one device in its program, and the pieces that the device holds."""

    program: Program
    at: int = 0
    held: dict[str, list[Region]] = field(default_factory=dict)

    def take(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self.held.setdefault(piece.tensor, []).append(piece.region)

    def lacks(self, pieces: Sequence[Piece]) -> Iterator[str]:
        for piece in pieces:
            have = [region for region in self.held.get(piece.tensor, []) if region.rank == piece.region.rank]
            if piece.region not in have and (not have or piece.region.subtract_all(have)):
                yield f"{piece.region} of {piece.tensor!r} (it has {[*map(str, have)]})"


def _run_faults(plan: Plan) -> Iterator[str]:
    """Yields the faults of a run: every program has to reach its end (no deadlock), and every step has to
    have the pieces that it needs."""
    places = {name: _ProgramPlace(program) for name, program in plan.programs.items()}
    for place in places.values():
        place.take([kept.read for kept in place.program.kept])
    sent = {transfer.number for transfer in plan.transfers if transfer.source == GATEWAY}
    moving = True
    while moving:
        moving = False
        for name, place in places.items():
            while place.at < len(place.program.steps):
                step = place.program.steps[place.at]
                if isinstance(step, Receive) and step.transfer not in sent:
                    break
                yield from (f"{name}: {step} lacks {what}" for what in _take_step(plan, place, step))
                if isinstance(step, Send):
                    sent.add(step.transfer)
                place.at += 1
                moving = True
    for name, place in places.items():
        if place.at < len(place.program.steps):
            yield f"{name} waits at {place.program.steps[place.at]} for ever"
        else:
            lacking = place.lacks([kept.written for kept in place.program.kept])
            yield from (f"{name}: the next step lacks {what}" for what in lacking)


def _take_step(plan: Plan, place: _ProgramPlace, step: Step) -> list[str]:
    """Takes one step, and returns a text for each piece that the step lacks."""
    if isinstance(step, Receive):
        place.take(plan.transfers[step.transfer].pieces)
        return []
    if isinstance(step, Send):
        return list(place.lacks(plan.transfers[step.transfer].pieces))
    segment = place.program.segments[step.segment]
    lacking = list(place.lacks([port.piece for port in segment.inputs]))
    place.take([port.piece for port in segment.outputs])
    return lacking


def _replica_faults(plan: Plan) -> Iterator[str]:
    """Yields the faults of replicas: each device is in one replica, and no transfer goes from one replica to
    another."""
    of = {name: n for n, replica in enumerate(plan.replicas) for name in replica.devices}
    named = Counter(name for replica in plan.replicas for name in replica.devices)
    for name in sorted(named.keys() | plan.programs.keys()) if plan.replicas else ():
        if name not in plan.programs:
            yield f"a replica names {name!r}, which has no program"
        elif named[name] != 1:
            yield f"{name!r} is in {named[name]} replicas instead of 1"
    for n, replica in enumerate(plan.replicas):
        if not replica.devices:
            yield f"replica {n} has no devices"
        for pace in (replica.latency_s, replica.between_s):
            if not 0 <= pace < inf:
                yield f"replica {n} has a pace of {pace} s"
    for transfer in plan.transfers if plan.replicas else ():
        ends = {of.get(end) for end in (transfer.source, transfer.target) if end != GATEWAY}
        if len(ends) > 1:
            yield f"transfer {transfer.number} goes from replica to replica"


def _answer_faults(plan: Plan, graph: Graph) -> Iterator[str]:
    """Yields the faults of each replica's answer: every output that operators write has to reach the gateway
    whole, each element once."""
    for replica in plan.parts:
        coming = [t for t in plan.transfers if t.target == GATEWAY and t.source in replica.devices]
        yield from _answer_faults_of(coming, plan, graph)


def _answer_faults_of(coming: Sequence[Transfer], plan: Plan, graph: Graph) -> Iterator[str]:
    for name in dict.fromkeys(graph.answer_outputs):
        arriving = [piece.region for transfer in coming for piece in transfer.pieces if piece.tensor == name]
        full = graph.region_of(name)
        if name not in graph.producers:
            if name not in plan.constant_outputs:
                yield f"output {name!r} is written by no operator and is not among the constant outputs"
        elif not arriving or full.subtract_all(arriving):
            yield f"output {name!r} reaches the gateway as {[*map(str, arriving)]}, not as {full}"
        elif sum(region.size for region in arriving) != full.size:
            yield f"output {name!r} reaches the gateway more than once in part: {[*map(str, arriving)]}"
