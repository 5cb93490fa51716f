"""Prefill and batches: adds to a plan the programs of other kinds of steps, for the same states. Rules only.

A prompt is read several times faster in blocks of rows (prefill) than row by row. Such steps give no answer; they only
leave states behind, so what only answers depend on is not computed. A block may have fewer tokens than rows; the rows
behind them are not kept, or are overwritten by later steps. And one request that makes a step in each of several sequences
(a batch) takes far less time than as many requests: weights are read once, and messages are sent once.

The programs of both follow from the choices of the plan for steps of one row, layer by layer, so that every device keeps
the same pieces of states in all of them and no state ever moves.
"""

from __future__ import annotations

from dataclasses import replace

from edgepart.planner.errors import EdgepartError, Infeasible
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.lowering.segment import Digests
from edgepart.planner.model.graph import Graph
from edgepart.planner.plans.join import join_plans
from edgepart.planner.plans.plan import (
    GATEWAY,
    Plan,
    Program,
    Receive,
    Replica,
    Run,
    Send,
    Step,
    Transfer,
    widen,
)
from edgepart.planner.region import Region, span
from edgepart.planner.search.study import Study

BATCH_SHARE = 0.5
"""The part of a device's memory that a model may take with the programs of a batch. They take as much as the plan's own,
for what only several clients at once notice; with a larger share there would be less for other models."""


def add_prefill(
    study: Study, strategy: Strategy, plan: Plan, graph: Graph, model_digest: str, digests: Digests | None
) -> tuple[Plan, str]:
    """The plan, which `study` made from `strategy`, with programs for steps of as many rows as `graph` has, and "". If
    there can be none, the plan as it is, and the reason."""
    graph = replace(graph, states=tuple(replace(one, short=one.grows is not None) for one in graph.states))
    try:
        prefill = drop_answers(_make_form(study, strategy, plan, graph, model_digest, digests, answers=False))
    except EdgepartError as error:
        return plan, str(error)
    # A device that only computes answers, such as the last of a pipeline may, has nothing to do for a block.
    idle = {name: _rest(one) for name, one in plan.programs.items() if not one.kept}
    prefill = replace(prefill, programs={**idle, **prefill.programs})
    fault = _misfit(study, plan, prefill, 1, "blocks of rows", 1.0)
    return (plan, fault) if fault else (replace(_with_form(plan, prefill), prefill=prefill), "")


def add_batch(
    study: Study, strategy: Strategy, plan: Plan, graph: Graph, model_digest: str, digests: Digests | None
) -> tuple[Plan, str]:
    """The plan, which `study` made from `strategy`, with programs for requests that make a step in as many sequences as the
    first axis of `graph` has places, and "". If there can be none, the plan as it is, and the reason."""
    try:
        batch = _make_form(study, strategy, plan, graph, model_digest, digests)
    except EdgepartError as error:
        return plan, str(error)
    if (rows := batch.rows) < 2:
        return plan, "the first axis of an input or state is not one of sequences"
    fault = _misfit(study, plan, batch, rows, "several sequences at once", BATCH_SHARE)
    return (plan, fault) if fault else (replace(_with_form(plan, batch), batch=batch), "")


def _make_form(
    study: Study,
    strategy: Strategy,
    plan: Plan,
    graph: Graph,
    model_digest: str,
    digests: Digests | None,
    *,
    answers: bool = True,
) -> Plan:
    """The plan of the other kind of steps, which has the replicas of `plan`."""
    if strategy.replicas:
        made = [
            _make_form(study, one, _part_of(plan, part), graph, model_digest, digests, answers=answers)
            for one, part in zip(strategy.replicas, plan.replicas, strict=True)
        ]
        return replace(join_plans(made, strategy.name, strategy.why), replicas=plan.replicas)
    layer_of = study.memo.coarse.layer_of
    if {op.name for op in graph.operators} != layer_of.keys():
        raise Infeasible("such steps have other operators")
    problem = replace(study.memo.problem, graph=graph, layer_of=layer_of)
    if not plan.is_model_itself:
        problem = replace(problem, pinned=_kept_regions(plan, graph), answers=answers)
    # A device that runs the model's own file does so for these steps too, with the session that it has already.
    wide = Study(problem)
    choices = study.candidates.choices_of(strategy)
    same = wide.candidates.make(strategy.name, choices, "", strategy.sync, strategy.hub)
    return wide.memo.lowering.plan(same, model_digest=model_digest, digests=digests)


def _part_of(plan: Plan, replica: Replica) -> Plan:
    """The plan with the programs of one replica only."""
    return replace(plan, programs={name: plan.programs[name] for name in replica.devices}, replicas=())


def _rest(program: Program) -> Program:
    """The program of its device for steps in which it has nothing to do."""
    return Program(program.device, (), (), 0, 0, flops_per_s=program.flops_per_s, sequences=program.sequences)


def _kept_regions(plan: Plan, graph: Graph) -> dict[str, dict[str, tuple[Region, ...]]]:
    """The regions of the outputs of `graph` that each device keeps, by the state's output and the device."""
    states = {state.output: state for state in graph.states}
    found: dict[str, dict[str, tuple[Region, ...]]] = {}
    for name, program in plan.programs.items():
        for piece in program.kept:
            state = states[piece.written.tensor]
            first = span((0, (graph.shape_of(state.input) or (1,))[0]))
            read = piece.read.region.replace(0, first)
            of_state = found.setdefault(state.output, {})
            of_state[name] = (*of_state.get(name, ()), graph.written_region(state, read))
    return found


def _misfit(study: Study, plan: Plan, form: Plan, rows: int, what: str, share: float) -> str:
    """Why the programs, which keep what `rows` sequences keep, cannot be used beside the plan's; "" if they can. `what` is
    what they are for, in words. All programs together may take this share of a device's memory."""
    if plan.programs.keys() != form.programs.keys():
        return f"other devices would compute {what}"
    for name, program in plan.programs.items():
        kept = widen(program.kept, rows) if rows > 1 else program.kept
        if tuple(one.after(1) for one in form.programs[name].kept) != kept:
            return f"{name} would keep other pieces of states for {what}"
        both = _with_memory(program, form.programs[name])
        limit = share * study.memo.problem.cluster.device(name).memory_bytes
        if both.peak_memory_bytes > limit:
            return f"{name} has not the memory for the sessions of {what}"
    return ""


def _with_form(plan: Plan, form: Plan) -> Plan:
    """The plan with the predicted memory of the other programs too."""
    programs = {name: _with_memory(program, form.programs[name]) for name, program in plan.programs.items()}
    return replace(plan, programs=programs)


def _with_memory(program: Program, form: Program) -> Program:
    """The program with the predicted memory of both; a session of the model's own file is shared."""
    shared = {segment.model for segment in program.segments if segment.whole}
    more = 0 if all(one.model in shared for one in form.segments) else form.kept_bytes
    request = max(program.request_bytes, form.request_bytes)
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
