"""Computing plans on the leader. Door: a thread and the store's files; what is decided is decided in planner/planner.py."""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from edgepart.agent.cluster.state.cards import cluster_of
from edgepart.agent.cluster.state.events import ComputePlan, PlanComputed, PlanFailed
from edgepart.agent.cluster.state.profiles import for_planner
from edgepart.agent.verify.same_answer import tolerance_for
from edgepart.agent.wire.control import Deployment
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.devices.cluster import Cluster
from edgepart.planner.errors import EdgepartError, Infeasible, NotInstalled, UserError
from edgepart.planner.figures import figure, seconds
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import Digests, choose, single
from edgepart.planner.plans.plan import Plan, from_bytes, to_bytes
from edgepart.planner.search import checkpoint as choices
from edgepart.planner.search.refine import refine
from edgepart.planner.search.study import Study
from edgepart.planner.simulation.latency import Simulation, simulate
from edgepart.planner.strategies.registry import strategies

log = logging.getLogger(__name__)

GRAPHS = 4
"""Loaded graphs that are remembered: a replan of the same model need not load it again."""

QUICK_S, THOROUGH_S = 1.0, 10.0
"""Search budgets where the user gave none. More finds better plans; less has one sooner."""

OTHERS = ("single", "bbgrap", "optcnn", "tofu", "pipeline")
"""Strategies that are asked where a plan was refused."""
MOST_REFUSED = 2
"""Plans that are refused before all but one device is given up: each costs the time that it takes to load."""

CHOSEN_BY_USER = frozenset(strategies()) - {"auto", "single"}
"""Strategies that divide a model because somebody wants it so, whatever is predicted."""


class Computing:
    """Answers ComputePlan. One thread at a time may call it."""

    def __init__(self, model_path: Callable[[str], Path], here: str) -> None:
        """`model_path(digest)` is where the store has a model; `here` is this device's node id, the gateway that plans
        are made for (requests may enter anywhere; one place must be assumed)."""
        self._model_path = model_path
        self._here = here
        self._graphs: OrderedDict[tuple[str, str], tuple[Graph, Digests]] = OrderedDict()

    def compute(self, order: ComputePlan) -> PlanComputed | PlanFailed:
        """The plan, or why there is none; never raises."""
        try:
            found = self._compute(order)
            plan = from_bytes(found.plan)
            return replace(found, structure=plan.structure, is_model_itself=plan.is_model_itself)
        except Infeasible as error:
            # When what others take is given back, the same order may find a plan.
            others = _others(order)
            return PlanFailed(order.key, f"{error}{others}", "Infeasible", final=not others)
        except UserError as error:
            return PlanFailed(order.key, str(error), type(error).__name__, final=True)
        except EdgepartError as error:
            return PlanFailed(order.key, str(error), type(error).__name__, final=False)
        except (OSError, MemoryError) as error:
            return PlanFailed(order.key, f"planning met {error!r}", "Unavailable", final=False)
        except Exception as error:  # the same order would fail again, and must not take the process with it
            log.exception("planning %s failed inside", order.key.deployment)
            text = f"the planner failed inside ({error!r}); the leader's log says where"
            return PlanFailed(order.key, text, "InternalError", final=True)

    def _compute(self, order: ComputePlan) -> PlanComputed:
        graph, digests = self._loaded(order.deployment)
        study = Study(self._problem(order, graph), for_planner(order.profiles))
        options, search = order.deployment.options, partial(_search, study, order, digests)
        refused = frozenset(structure for structure, _ in order.key.refused)
        found_best = search(options.strategy) if not refused else _next_best(search, order, refused)
        plan, simulation, chosen = found_best
        asked = plan if options.strategy in CHOSEN_BY_USER else None
        current_s = _seconds_of(order.current, study, asked)
        found = PlanComputed(
            order.key,
            to_bytes(plan),
            tuple(plan.programs),
            simulation.latency_s,
            current_s,
            order.quick,
            memory_bytes=_memory(plan),
            chosen=chosen,
            tolerance=tolerance_for(graph),
        )
        if options.objective == "throughput":
            # What one request takes alone says nothing for or against the plan.
            found = replace(found, latency_s=1 / plan.predicted_throughput_per_s)
            return replace(found, note=_note(order, found))
        latency_s, single_s = simulation.latency_s, _single_s(study)
        if len(plan.programs) > 1:
            latency_s *= _disappointment(order, current_s)
        found = replace(
            found,
            latency_s=latency_s,
            current_latency_s=max(current_s, order.measured_s),
            single_s=single_s,
        )
        divided = options.strategy == "auto" and len(plan.programs) > 1
        if divided and not order.quick and single_s <= latency_s:
            alone, of_one, chosen = search("single")
            found = replace(found, single_s=of_one.latency_s)
            if alone.structure not in refused and of_one.latency_s <= latency_s:
                found = _instead(order, found, alone, chosen)
        return replace(found, note=_note(order, found))

    def _problem(self, order: ComputePlan, graph: Graph) -> Problem:
        """On the devices as they are now, with the memory that the deployment may take of each."""
        names = {node: name for node, name, _ in order.key.devices}
        taken = {names[node]: nbytes for node, nbytes in order.taken_bytes if node in names}
        drifts = {names[node]: drift for node, drift in order.key.drifts if node in names}
        cluster = cluster_of(order.cards, names)
        cluster = replace(cluster, devices=tuple(d.drifted(drifts.get(d.name, 1.0)) for d in cluster.devices))
        cluster = limited(cluster, order.deployment, taken)
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
            clock=time.perf_counter,
        )

    def _loaded(self, deployment: Deployment) -> tuple[Graph, Digests]:
        """The model with the deployment's shapes bound, and what is remembered of its weights (some constants are
        folded from shapes). ModelError, UsageError."""
        shapes = deployment.options.shapes
        key = (deployment.model, repr(sorted(shapes.items())))
        if key not in self._graphs:
            self._graphs[key] = load_graph(self._model_path(deployment.model), shapes=shapes), {}
            while len(self._graphs) > GRAPHS:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        return self._graphs[key]


def search_budget_s(options: DeployOptions, *, quick: bool) -> float:
    """What the user said; when requests wait never more than `QUICK_S`."""
    given = options.search_budget_s or THOROUGH_S
    return min(given, QUICK_S) if quick else given


def _search(
    study: Study, order: ComputePlan, digests: Digests, strategy: str
) -> tuple[Plan, Simulation, bytes]:
    """The best plan of a strategy, the one that serves with its parts moved among its candidates, what it would do and
    what it was made from."""
    before = choices.read(order.chosen) if order.chosen else None
    also = refine(study, before) if before is not None and before.name == strategy else ()
    model = order.deployment.model
    plan, simulation, found = choose(
        study.memo.problem, strategy, model, digests=digests, study=study, also=also
    )
    return plan, simulation, choices.write(study.candidates, found)


def _next_best(
    search: Callable[[str], tuple[Plan, Simulation, bytes]], order: ComputePlan, refused: frozenset[str]
) -> tuple[Plan, Simulation, bytes]:
    """The quickest plan that was not refused yet. Where several were, it is not one plan that is wrong but what they have
    in common: then it is the model itself on one device. Infeasible where no other plan fits."""
    names = dict.fromkeys((order.deployment.options.strategy, *OTHERS))
    found, why = [], [text for _, text in order.key.refused]
    for name in names if len(refused) < MOST_REFUSED else ("single",):
        try:
            one = search(name)
        except (Infeasible, NotInstalled) as error:
            log.info("%s is no way out: %s", name, error)
            continue
        if one[0].structure not in refused:
            found.append(one)
    if not found:
        raise Infeasible(f"no plan that fits gives the model's own answers: {'; '.join(why)}.")
    plan, simulation, chosen = min(found, key=lambda one: one[1].latency_s)
    return replace(plan, why="; ".join([plan.why, *why])), simulation, chosen


def _instead(order: ComputePlan, found: PlanComputed, alone: Plan, chosen: bytes) -> PlanComputed:
    """One device, where several are no faster."""
    note = _gave_way(order, 1, found.single_s)
    plan = replace(alone, why="; ".join(filter(None, (alone.why, note))))
    return replace(
        found,
        plan=to_bytes(plan),
        names=tuple(plan.programs),
        latency_s=found.single_s,
        memory_bytes=_memory(plan),
        chosen=chosen,
    )


def _note(order: ComputePlan, found: PlanComputed) -> str:
    """What is said of a plan that is made because of what was measured."""
    return _gave_way(order, len(found.names), found.latency_s) or _refinement(order, found)


def _gave_way(order: ComputePlan, devices: int, single_s: float) -> str:
    """Of a plan on several devices that was measured to be slower than one, where one takes its place."""
    before = tuple(from_bytes(order.current).programs) if order.measured_s and order.current else ()
    if devices > 1 or len(before) < 2 or order.measured_s <= single_s:
        return ""
    return f"a plan on {', '.join(before)} took {seconds(order.measured_s)}, one device alone {seconds(single_s)}"


def _refinement(order: ComputePlan, found: PlanComputed) -> str:
    """What is said of a plan that is made only because of what was measured."""
    if not order.refines or not found.current_latency_s < math.inf:
        return ""
    names = {node: name for node, name, _ in order.key.devices}
    drifts = ", ".join(
        f"{names[node]} takes {figure(drift, 2)} times as long as calibrated"
        for node, drift in order.key.drifts
    )
    why = f" ({drifts})" if drifts else ""
    before, now = found.current_latency_s, found.latency_s
    return f"refined: shares moved after measuring{why}, predicted {seconds(before)} -> {seconds(now)}"


def _memory(plan: Plan) -> tuple[tuple[str, int], ...]:
    return tuple((name, program.peak_memory_bytes) for name, program in plan.programs.items())


def limited(cluster: Cluster, deployment: Deployment, taken: Mapping[str, int]) -> Cluster:
    """The devices with the memory that the deployment may take of each: what others leave, and not more than its own
    limit."""
    most = deployment.options.memory_limit_bytes or math.inf
    devices = tuple(
        replace(d, memory_bytes=max(1.0, min(d.memory_bytes - taken.get(d.name, 0), most)))
        for d in cluster.devices
    )
    return replace(cluster, devices=devices)


def _others(order: ComputePlan) -> str:
    """A sentence for people, where other plans are in the way."""
    names = {node: name for node, name, _ in order.key.devices}
    each = ", ".join(
        f"{nbytes:,} bytes on {names[node]}" for node, nbytes in order.taken_bytes if node in names
    )
    return f" Plans that serve now take {each}; undeploying one would give that back." if each else ""


def _single_s(study: Study) -> float:
    found = single(study)
    return found[1] if found else math.inf


def _disappointment(order: ComputePlan, current_s: float) -> float:
    """How many times as long as predicted requests take on the plan that serves, where that is on several devices:
    another one on several would fare no better than it."""
    if not order.measured_s or not 0 < current_s < math.inf or len(from_bytes(order.current).programs) < 2:
        return 1.0
    return max(1.0, order.measured_s / current_s)


def _seconds_of(current: bytes, study: Study, asked: Plan | None) -> float:
    """What the plan that serves now would take on this cluster, for a request or, where throughput is the objective,
    between two of them; inf where there is none or it cannot run.

    A division that the user asked for is followed, not weighed: where it takes other devices than the plan that serves
    (`asked`'s), that one counts no more."""
    if not current:
        return math.inf
    plan: Plan = from_bytes(current)
    there: Mapping[str, object] = {device.name: device for device in study.memo.cluster.devices}
    moved = asked is not None and asked.programs.keys() != plan.programs.keys()
    if moved or not plan.programs.keys() <= there.keys():
        return math.inf
    simulation = simulate(plan, study.memo.cluster, study.memo.problem.gateway, study.memo.cost)
    if study.memo.problem.objective == "throughput":
        return 1 / study.scorer.run_stream(simulation).throughput_per_s
    return simulation.latency_s
