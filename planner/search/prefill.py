"""Prefill: adds to a plan the programs of steps that read many rows (tokens) of a sequence at once. Rules only.

A prompt is read several times faster in blocks of rows than row by row. Such steps give no answer; they only leave states
behind, so what only answers depend on is not computed. Their programs follow from the choices of the plan for steps of one
row, layer by layer, so that every device keeps the same pieces of states in both and no state ever moves.
"""

from __future__ import annotations

from dataclasses import replace

from edgepart.planner.errors import EdgepartError, Infeasible
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.lowering.segment import Digests
from edgepart.planner.model.graph import Graph
from edgepart.planner.plans.plan import GATEWAY, Plan, Program, Receive, Run, Send, Step, Transfer
from edgepart.planner.region import Region
from edgepart.planner.search.study import Study


def add_prefill(
    study: Study, strategy: Strategy, plan: Plan, graph: Graph, model_digest: str, digests: Digests | None
) -> tuple[Plan, str]:
    """The plan, which `study` made from `strategy`, with programs for steps of as many rows as `graph` has, and "". If
    there can be none, the plan as it is, and the reason."""
    try:
        prefill = _make_prefill(study, strategy, plan, graph, model_digest, digests)
    except EdgepartError as error:
        return plan, str(error)
    if fault := _misfit(study, plan, prefill):
        return plan, fault
    programs = {
        name: _with_memory(program, prefill.programs[name]) for name, program in plan.programs.items()
    }
    return replace(plan, programs=programs, prefill=replace(prefill, replicas=plan.replicas)), ""


def _make_prefill(
    study: Study, strategy: Strategy, plan: Plan, graph: Graph, model_digest: str, digests: Digests | None
) -> Plan:
    # A device that runs the model's own file does so for these steps too, with the session that it has already.
    whole = plan.is_model_itself
    pinned = None if whole else _kept_regions(plan)
    wide = Study(replace(study.memo.problem, graph=graph, pinned=pinned))
    if wide.memo.coarse.layer_of != study.memo.coarse.layer_of:
        raise Infeasible("blocks of rows have other layers")
    choices = study.candidates.choices_of(strategy)
    made = wide.candidates.make(strategy.name, choices, "", strategy.sync, strategy.hub)
    return drop_answers(wide.memo.lowering.plan(made, model_digest=model_digest, digests=digests))


def _kept_regions(plan: Plan) -> dict[str, dict[str, tuple[Region, ...]]]:
    """The regions that each device keeps, by the state's output and the device."""
    found: dict[str, dict[str, tuple[Region, ...]]] = {}
    for name, program in plan.programs.items():
        for piece in program.kept:
            of_state = found.setdefault(piece.written.tensor, {})
            of_state[name] = (*of_state.get(name, ()), piece.written.region)
    return found


def _misfit(study: Study, plan: Plan, prefill: Plan) -> str:
    """Why the programs cannot be used beside the plan's; "" if they can."""
    if plan.programs.keys() != prefill.programs.keys():
        return "other devices would read blocks of rows"
    for name, program in plan.programs.items():
        if program.kept != prefill.programs[name].kept:
            return f"{name} would keep other pieces of states for blocks of rows"
        both = _with_memory(program, prefill.programs[name])
        limit = study.memo.problem.cluster.device(name).memory_bytes
        if both.peak_memory_bytes > limit:
            return f"{name} has not the memory for sessions that read blocks of rows"
    return ""


def _with_memory(program: Program, prefill: Program) -> Program:
    """The program with the predicted memory of both; a session of the model's own file is shared."""
    shared = {segment.model for segment in program.segments if segment.whole}
    more = 0 if all(one.model in shared for one in prefill.segments) else prefill.kept_bytes
    request = max(program.request_bytes, prefill.request_bytes)
    return replace(
        program,
        kept_bytes=program.kept_bytes + more,
        request_bytes=request,
        peak_memory_bytes=program.peak_memory_bytes + more + request - program.request_bytes,
    )


def drop_answers(plan: Plan) -> Plan:
    """The plan without outputs and without transfers to the gateway."""
    kept = [transfer for transfer in plan.transfers if transfer.target != GATEWAY]
    numbers = {transfer.number: number for number, transfer in enumerate(kept)}

    def renumber(program: Program) -> Program:
        steps = tuple(
            step if isinstance(step, Run) else _moved(step, numbers)
            for step in program.steps
            if isinstance(step, Run) or step.transfer in numbers
        )
        return replace(program, steps=steps)

    return replace(
        plan,
        programs={name: renumber(program) for name, program in plan.programs.items()},
        transfers=tuple(_numbered(transfer, numbers) for transfer in kept),
        outputs=(),
        constant_outputs=(),
    )


def _moved(step: Receive | Send, numbers: dict[int, int]) -> Step:
    return type(step)(numbers[step.transfer])


def _numbered(transfer: Transfer, numbers: dict[int, int]) -> Transfer:
    return replace(transfer, number=numbers[transfer.number])
