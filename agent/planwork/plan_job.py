"""Plan job: computes one plan for the leader. Door: a thread and the store's files; planner/planner.py decides."""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from edgepart.agent.cluster.state.cards import build_cluster
from edgepart.agent.cluster.state.events import ComputePlan, PlanComputed, PlanFailed
from edgepart.agent.cluster.state.profiles import to_planner_profiles
from edgepart.agent.engines.networks import networks_of
from edgepart.agent.verify.same_answer import tolerance_for
from edgepart.agent.wire.bounds import Shapes
from edgepart.agent.wire.control import Deployment
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.devices.cluster import Cluster
from edgepart.planner.errors import EdgepartError, Infeasible, NotInstalled, UserError
from edgepart.planner.figures import format_figure, format_seconds
from edgepart.planner.layout.strategy import Problem, Strategy
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.model.states import keep_states
from edgepart.planner.planner import Digests, best_single_device, choose_plan
from edgepart.planner.plans.plan import IN_PLACE_ROWS, Plan
from edgepart.planner.plans.plan_bytes import plan_from_bytes, plan_to_bytes
from edgepart.planner.report.sentences import as_sentence
from edgepart.planner.search import checkpoint as choices
from edgepart.planner.search.checkpoint import SavedStrategy
from edgepart.planner.search.heirs import alone_with_states, with_heir
from edgepart.planner.search.mirrors import add_mirrors, bytes_by_mirror
from edgepart.planner.search.prefill import add_batch, add_prefill
from edgepart.planner.search.refine import refine
from edgepart.planner.search.study import Study
from edgepart.planner.simulation.latency import Simulation, simulate
from edgepart.planner.strategies.registry import strategies

log = logging.getLogger(__name__)

GRAPHS_KEPT = 4
"""Number of loaded graphs that are kept, so that planning the same model again need not load it again."""

QUICK_S, THOROUGH_S = 1.0, 10.0
"""Search budgets in seconds: the most while requests wait, and the default for options without a budget. A larger budget
finds better plans; a smaller one finds a plan sooner."""

LIKELY_BYTES = 1000
"""About as many bytes as a device sends of the logits of a step: 130 of the likeliest tokens, with their numbers, where one
of several likely ones is drawn (agent/text/likely_choice.py). Texts that take the likeliest one need less; those that any
token may come in need all logits, and are predicted too fast over slow links."""

FALLBACK_STRATEGIES = ("single", "bbgrap", "optcnn", "tofu", "pipeline")
"""Strategies that are tried when a plan was refused."""
MOST_REFUSED = 2
"""Refused plans after which only one device is tried: each further plan would cost the time that loading it takes."""
TOKEN_BY_TOKEN = "prompts are read token by token"
"""What happens to prompts if a plan reads no blocks."""

ALONE = "it was planned on one device alone first, so that requests need not wait for a search"
"""The note about a plan that was made without a search."""

CHOSEN_BY_USER = frozenset(strategies()) - {"auto", "single"}
"""Strategies that divide a model because the user wants it, whatever is predicted."""


class PlanComputer:
    """Computes the plans of ComputePlan orders. One thread at a time may call it."""

    def __init__(self, model_path: Callable[[str], Path], here: str) -> None:
        """`model_path(digest)` is the path of a model in the store. `here` is this device's node id: plans assume that it
        is the gateway, though requests may enter anywhere."""
        self._model_path = model_path
        self._here = here
        self._graphs: OrderedDict[tuple[str, str], tuple[Graph, Digests]] = OrderedDict()

    def compute(
        self, order: ComputePlan, may_search: Callable[[], bool] = lambda: True
    ) -> PlanComputed | PlanFailed | None:
        """The plan, or the reason why there is none. Never raises. `may_search` is asked before a search begins; if it says
        no, the result is None."""
        try:
            found = self._compute(order, may_search)
            if found is None:
                return None
            plan = plan_from_bytes(found.plan)
            return replace(
                found,
                structure=plan.structure,
                is_model_itself=plan.is_model_itself and not _has_engines(plan),
                step_bytes=_step_bytes(plan),
            )
        except Infeasible as error:
            # Not final if other deployments take memory: when it is free again, the same order may find a plan.
            others = _memory_note(order)
            return PlanFailed(order.key, f"{error}{others}", "Infeasible", final=not others)
        except UserError as error:
            return PlanFailed(order.key, str(error), type(error).__name__, final=True)
        except EdgepartError as error:
            return PlanFailed(order.key, str(error), type(error).__name__, final=False)
        except (OSError, MemoryError) as error:
            return PlanFailed(order.key, f"planning met {error!r}", "Unavailable", final=False)
        except Exception as error:  # The same order would fail again, and must not end the process.
            log.exception("planning %s failed inside", order.key.deployment)
            text = f"the planner failed inside ({error!r}); the leader's log says where"
            return PlanFailed(order.key, text, "InternalError", final=True)

    def _compute(self, order: ComputePlan, may_search: Callable[[], bool]) -> PlanComputed | None:
        options = order.deployment.options
        graph, digests = self._load(order.deployment, options.shapes)
        forms = tuple(
            None if shapes is None else self._load(order.deployment, shapes)[0]
            for shapes in (options.prefill, options.batch)
        )
        study = Study(self._problem(order, graph), to_planner_profiles(order.profiles))
        search = partial(_search, study, order, digests, forms)
        refused = frozenset(structure for structure, _ in order.key.refused)
        found_best = _on_one_device(search, order, refused)
        if found_best is None:
            if not may_search():
                return None
            found_best = search(options.strategy) if not refused else _next_best(search, order, refused)
        plan, simulation, chosen = found_best
        asked = plan if options.strategy in CHOSEN_BY_USER else None
        current_s = _seconds_of(order.current, study, asked)
        found = PlanComputed(
            order.key,
            plan_to_bytes(plan),
            _devices(plan),
            simulation.latency_s,
            current_s,
            order.quick,
            memory_bytes=_memory(plan),
            chosen=chosen,
            tolerance=tolerance_for(graph),
        )
        if options.objective == "throughput":
            # The latency of a single request says nothing about a plan for throughput.
            found = replace(found, latency_s=1 / plan.predicted_throughput_per_s)
            return replace(found, note=_note(order, found))
        single_s = _single_s(study)
        latency_s = _without_common_gain(study, plan, simulation.latency_s)
        if len(plan.programs) > 1:
            latency_s *= _prediction_miss(order, current_s)
        found = replace(
            found,
            latency_s=latency_s,
            current_latency_s=max(current_s, order.measured_s),
            single_s=single_s,
        )
        divided = options.strategy == "auto" and len(plan.programs) > 1
        if divided and not order.quick and single_s <= latency_s:
            alone, of_one, chosen = search("single")
            found = replace(found, single_s=_without_common_gain(study, alone, of_one.latency_s))
            if alone.structure not in refused and found.single_s <= latency_s:
                found = _replace_by_single(order, found, alone, chosen)
        return replace(found, note=_note(order, found))

    def _problem(self, order: ComputePlan, graph: Graph) -> Problem:
        """The problem on the devices as they are now, with the memory that the deployment may take of each."""
        names = {node: name for node, name, _ in order.key.devices}
        taken = {names[node]: nbytes for node, nbytes in order.taken_bytes if node in names}
        drifts = {names[node]: drift for node, drift in order.key.drifts if node in names}
        cluster = build_cluster(order.cards, names, order.deployment.model)
        cluster = replace(
            cluster, devices=tuple(d.with_drift(drifts.get(d.name, 1.0)) for d in cluster.devices)
        )
        cluster = limit_memory(cluster, order.deployment, taken)
        here = names.get(self._here, "")
        gateway = here if here in {device.name for device in cluster.devices} else cluster.devices[0].name
        options = order.deployment.options
        budget_s = search_budget_s(options, quick=order.quick)
        return Problem(
            graph,
            cluster,
            gateway,
            options.objective,
            options.axis,
            search_budget_s=budget_s,
            transfer_dtype=options.transfer_dtype,
            sequences=options.sequences,
            answer_share=_logits_share(graph) if options.text else {},
            clock=time.perf_counter,
            networks=networks_of({}),
        )

    def _load(self, deployment: Deployment, shapes: Shapes) -> tuple[Graph, Digests]:
        """The deployment's model with these shapes bound, and the digests of its weights that are known so far. Both depend
        on the shapes, as some constants are folded from them. Raises ModelError and UsageError."""
        states = deployment.options.states or ()
        key = (deployment.model, repr((sorted(shapes.items()), states)))
        if key not in self._graphs:
            graph = load_graph(self._model_path(deployment.model), shapes=shapes)
            self._graphs[key] = keep_states(graph, states), {}
            while len(self._graphs) > GRAPHS_KEPT:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        return self._graphs[key]


def _logits_share(graph: Graph) -> dict[str, float]:
    """The part of a language model's logits, by their name, that devices send for most texts."""
    shapes = {name: graph.shape_of(name) or () for name in graph.answer_outputs}
    sizes = {name: graph.region_of(name).size for name, shape in shapes.items() if len(shape) == 3}
    return {
        name: min(1.0, LIKELY_BYTES / (size * (graph.tensors[name].item_bytes or 4)))
        for name, size in sizes.items()
        if size and name in graph.tensors
    }


def search_budget_s(options: DeployOptions, *, quick: bool) -> float:
    """The user's search budget, else THOROUGH_S, in seconds; never more than QUICK_S for a `quick` plan."""
    given = options.search_budget_s or THOROUGH_S
    return min(given, QUICK_S) if quick else given


def _search(
    study: Study,
    order: ComputePlan,
    digests: Digests,
    forms: Sequence[Graph | None],
    strategy: str,
    *,
    in_blocks: bool = True,
) -> tuple[Plan, Simulation, bytes]:
    """The best plan of a strategy, its simulation, and the choices that it was made from. The candidates include
    refinements of the plan that serves, if that was made by the same strategy. `forms` are the graphs of steps that read
    many rows at once, and of steps in several sequences; the former are not used without `in_blocks`."""
    before = choices.read(order.chosen) if order.chosen else None
    refined = before is not None and before.name == strategy and not order.serving
    also = refine(study, before) if before is not None and refined else ()
    model = order.deployment.model
    plan, simulation, found = choose_plan(
        study.memo.problem,
        strategy,
        model,
        digests=digests,
        study=study,
        also=also,
        rather=_with_states(study, order, before),
    )
    without = TOKEN_BY_TOKEN, "texts at the same time are computed one after the other"
    for graph, add, what in zip(forms, (add_prefill, add_batch), without, strict=True):
        if graph is not None and not in_blocks and add is add_prefill:
            fault = f"{TOKEN_BY_TOKEN}: a plan that read them in blocks did not give the model's own answers"
            plan = replace(plan, why=f"{plan.why}\n{as_sentence(fault)}")
        elif graph is not None:
            plan, fault = add(study, found, plan, graph, model, digests)
            if fault:
                plan = replace(plan, why=f"{plan.why}\n{as_sentence(f'{what}: {fault}')}")
    if order.deployment.options.mirrors:
        memory = {device.name: device.memory_bytes for device in study.memo.cluster.devices}
        plan, fault = add_mirrors(plan, memory)
        if fault:
            plan = replace(plan, why=f"{plan.why}\n{as_sentence(f'states are not mirrored: {fault}')}")
    return plan, simulation, choices.write(study.candidates, found)


def _with_states(study: Study, order: ComputePlan, before: SavedStrategy | None) -> Strategy | None:
    """The strategy for a loss by which texts go on with their states where they are; None if there is none, or plans were
    refused, of which it may be one."""
    if not order.serving or order.key.refused:
        return None
    serving = plan_from_bytes(order.serving)
    if order.prompt or before is None:  # Another leader chose what serves.
        return alone_with_states(study, serving)
    return with_heir(study, serving, before)


def _search_again(
    search: Callable[..., tuple[Plan, Simulation, bytes]], strategy: str, refused: frozenset[str]
) -> tuple[Plan, Simulation, bytes]:
    """The best plan of a strategy. One that was refused may be right if it reads tokens one by one, and then does."""
    found = search(strategy)
    if found[0].structure in refused and found[0].prefill is not None:
        return search(strategy, in_blocks=False)
    return found


def _on_one_device(
    search: Callable[..., tuple[Plan, Simulation, bytes]], order: ComputePlan, refused: frozenset[str]
) -> tuple[Plan, Simulation, bytes] | None:
    """The plan on one device alone that is asked for, or that comes first because requests wait; None if another plan is to
    be found. Raises Infeasible if only a plan on one device will do, and there is none."""
    if not order.prompt:
        return None
    try:
        plan, simulation, chosen = _search_again(search, "single", refused)
    except Infeasible:
        if order.key.alone:
            raise
        log.info("%s has room on no device alone, so requests wait for a search", order.key.deployment)
        return None
    if plan.structure not in refused:
        return replace(plan, why="\n".join([plan.why, as_sentence(ALONE)])), simulation, chosen
    if order.key.alone:
        raise Infeasible("the plan on one device alone did not give the model's own answers.")
    return None


def _next_best(
    search: Callable[..., tuple[Plan, Simulation, bytes]], order: ComputePlan, refused: frozenset[str]
) -> tuple[Plan, Simulation, bytes]:
    """The fastest plan that was not refused yet. If several were refused, something that they have in common is wrong:
    then only plans on one device are tried. Raises Infeasible if no other plan fits."""
    names = dict.fromkeys((order.deployment.options.strategy, *FALLBACK_STRATEGIES))
    found, why = [], [text for _, text in order.key.refused]
    for name in names if len(refused) < MOST_REFUSED else ("single",):
        try:
            one = _search_again(search, name, refused)
        except (Infeasible, NotInstalled) as error:
            log.info("%s is no way out: %s", name, error)
            continue
        if one[0].structure not in refused:
            found.append(one)
    if not found:
        raise Infeasible(f"no plan that fits gives the model's own answers: {'; '.join(why)}.")
    plan, simulation, chosen = min(found, key=lambda one: one[1].latency_s)
    return replace(plan, why="\n".join([plan.why, *map(as_sentence, why)])), simulation, chosen


def _replace_by_single(order: ComputePlan, found: PlanComputed, alone: Plan, chosen: bytes) -> PlanComputed:
    """`found` with `alone`, a plan on one device, in place of its plan on several devices, which is no faster."""
    note = _replacement_note(order, 1, found.single_s)
    plan = replace(alone, why="\n".join(filter(None, (alone.why, as_sentence(note)))))
    return replace(
        found,
        plan=plan_to_bytes(plan),
        names=_devices(plan),
        latency_s=found.single_s,
        memory_bytes=_memory(plan),
        chosen=chosen,
    )


def _note(order: ComputePlan, found: PlanComputed) -> str:
    """The note about a plan that was made because of measurements; "" for other plans."""
    devices = len(plan_from_bytes(found.plan).programs)
    if order.prompt and devices == 1 < len(order.key.devices):
        return ALONE
    return _replacement_note(order, devices, found.latency_s) or _refinement_note(order, found)


def _replacement_note(order: ComputePlan, devices: int, single_s: float) -> str:
    """The note about a plan on one device that replaces a measured, slower plan on several; "" for other plans."""
    before = tuple(plan_from_bytes(order.current).programs) if order.measured_s and order.current else ()
    if devices > 1 or len(before) < 2 or order.measured_s <= single_s:
        return ""
    took = f"a plan on {', '.join(before)} took {format_seconds(order.measured_s)}"
    return f"{took}, one device alone {format_seconds(single_s)}"


def _refinement_note(order: ComputePlan, found: PlanComputed) -> str:
    """The note about a plan that refines the one that serves after measurements; "" for other plans."""
    if not order.refines or not found.current_latency_s < math.inf:
        return ""
    names = {node: name for node, name, _ in order.key.devices}
    drifts = ", ".join(
        f"{names[node]} takes {format_figure(drift, 2)} times as long as calibrated"
        for node, drift in order.key.drifts
    )
    why = f" ({drifts})" if drifts else ""
    before, now = found.current_latency_s, found.latency_s
    return f"refined: shares moved after measuring{why}, predicted {format_seconds(before)} -> {format_seconds(now)}"


def _step_bytes(plan: Plan) -> float:
    """The bytes by which states grow in a step; 0 if they cannot go from device to device."""
    programs = plan.programs.values()
    if not all(program.in_place for program in programs):
        return 0.0
    pieces = [piece for program in programs for piece in program.kept]
    return sum(piece.nbytes / piece.read.region.shape[IN_PLACE_ROWS] for piece in pieces)


def _devices(plan: Plan) -> tuple[str, ...]:
    """The devices that compute, and then those that only mirror states of others."""
    return tuple(dict.fromkeys((*plan.programs, *plan.mirrors.values())))


def _memory(plan: Plan) -> tuple[tuple[str, int], ...]:
    """The predicted peak memory of each device. Those of mirrors that compute are in their programs'."""
    mirroring = bytes_by_mirror(plan)
    return tuple(
        (name, plan.programs[name].peak_memory_bytes if name in plan.programs else mirroring[name])
        for name in _devices(plan)
    )


def limit_memory(cluster: Cluster, deployment: Deployment, taken: Mapping[str, int]) -> Cluster:
    """The devices with the memory that the deployment may take of each: what other deployments leave, and no more than its
    own limit."""
    most = deployment.options.memory_limit_bytes or math.inf
    devices = tuple(
        replace(d, memory_bytes=max(1.0, min(d.memory_bytes - taken.get(d.name, 0), most)))
        for d in cluster.devices
    )
    return replace(cluster, devices=devices)


def _memory_note(order: ComputePlan) -> str:
    """A sentence for the user about the memory that plans of other deployments take; "" if they take none."""
    names = {node: name for node, name, _ in order.key.devices}
    each = ", ".join(
        f"{nbytes:,} bytes on {names[node]}" for node, nbytes in order.taken_bytes if node in names
    )
    return f" Plans that serve now take {each}; undeploying one would give that back." if each else ""


def _single_s(study: Study) -> float:
    found = best_single_device(study)
    return found[1] / _common_gain(study, found[:1]) if found else math.inf


def _common_gain(study: Study, devices: Iterable[str]) -> float:
    """The least gain of these devices: measured divided by calibrated time of the device that has become quicker by the
    least; 1 if one of them has not become quicker."""
    return min(1.0, max(study.memo.cluster.device(name).drift for name in devices))


def _without_common_gain(study: Study, plan: Plan, latency_s: float) -> float:
    """The latency predicted for the plan, if segments that were never timed take as long as calibrated although all its
    devices seem quicker than that. The devices then have not become quicker: the segments that serve are, because caches
    hold their weights, or because an operator of theirs is not as slow as expected. A whole model would not be."""
    cost, more = study.memo.cost, 1 / _common_gain(study, plan.programs) - 1
    untimed_s = (
        sum(one.compute_s for one in program.runs if cost.profiled_s(one.timed_as, device) is None)
        for device, program in plan.programs.items()
    )
    return latency_s + more * max(untimed_s)


def _prediction_miss(order: ComputePlan, current_s: float) -> float:
    """Measured over predicted latency of the plan that serves, at least 1, if that plan is on several devices: another plan
    on several devices is expected to miss its prediction as much."""
    if (
        not order.measured_s
        or not 0 < current_s < math.inf
        or len(plan_from_bytes(order.current).programs) < 2
    ):
        return 1.0
    return max(1.0, order.measured_s / current_s)


def _has_engines(plan: Plan) -> bool:
    """Whether an engine computes some of it: its answers are then the CPU's but for rounding, and the plan is tried."""
    return any(one.engine for program in plan.programs.values() for one in program.segments)


def _lost_engines(plan: Plan, cluster: Cluster) -> bool:
    """Whether a segment's engine was refused for it or is gone since the plan was made. The device's CPU computes such a
    segment, for which the plan's prediction says nothing, so any plan of now is better."""
    kept = {(device.name, one.name): one.refused for device in cluster.devices for one in device.engines}
    return any(
        one.engine and one.digest in kept.get((name, one.engine), (one.digest,))
        for form in plan.forms
        for name, program in form.programs.items()
        for one in program.segments
    )


def _seconds_of(current: bytes, study: Study, asked: Plan | None) -> float:
    """Predicted seconds of the plan that serves now on this cluster, for a request or, if throughput is the objective,
    between two requests; inf if there is no such plan or it cannot run.

    A division that the user asked for is not compared: if `asked`, its plan, takes more devices than the plan that serves,
    the result is inf. Which devices it takes, if they are as many or fewer, was decided by their speed."""
    if not current:
        return math.inf
    plan: Plan = plan_from_bytes(current)
    there: Mapping[str, object] = {device.name: device for device in study.memo.cluster.devices}
    divided = asked is not None and len(asked.programs) > len(plan.programs)
    if divided or not plan.programs.keys() <= there.keys() or _lost_engines(plan, study.memo.cluster):
        return math.inf
    simulation = simulate(plan, study.memo.cluster, study.memo.problem.gateway, study.memo.cost)
    if study.memo.problem.objective == "throughput":
        return 1 / study.scorer.run_stream(simulation).throughput_per_s
    return simulation.latency_s
