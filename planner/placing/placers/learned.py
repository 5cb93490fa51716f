"""Learned: list scheduling that a trained network biases, the best of many samples, improved by climbing. Ours. Rules only.

The network (planner/placing/guided) was trained on drawn graphs and clusters of other sizes than those that it is
used on. So plain list scheduling is among the samples, and what HEFT finds counts if it is better and there is time: the
network can only help. A graph of many tasks is contracted to groups, and the network places these, if there is time for it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from edgepart.planner.errors import Infeasible
from edgepart.planner.figures import format_count
from edgepart.planner.placing.engine.coarse_workload import coarsen, expand
from edgepart.planner.placing.engine.contract import contract
from edgepart.planner.placing.engine.evaluate import settle
from edgepart.planner.placing.engine.judge import is_prepared
from edgepart.planner.placing.engine.load import max_load
from edgepart.planner.placing.guided.decode import PLAIN, Decoded, SampleDecoder, gumbel
from edgepart.planner.placing.guided.features import describe
from edgepart.planner.placing.guided.trained import trained_network
from edgepart.planner.placing.placers.best import single
from edgepart.planner.placing.placers.best_start import find_best_start
from edgepart.planner.placing.placers.climb import GROUPS, LARGE, ascend, has_time_to_contract
from edgepart.planner.placing.problem.networks import NeuralNetwork
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import register

SAMPLES, FEW_SAMPLES = 64, 4
"""The placements that are drawn by the network, where decoding is compiled, and at most where it is not, as then one takes
as long as one of HEFT's. The first one is the most likely one."""

HEFT_S = 0.0001
"""The seconds in which HEFT places a task, or fewer."""

SETTLED = 2
"""Of how many samples, the best by what decoding says, the schedule is worked out; of one where this is not compiled and no
time is left."""


@register("learned")
def place_by_network(workload: Workload, asked: Asked) -> PlacementFound:
    """Place by the network, and climb from there within the budget. Raises NotInstalled without a network, and
    Infeasible if nothing fits."""
    network = trained_network(asked, "learned", len(workload.machines))
    until = asked.clock() + asked.budget_s
    large = len(workload.tasks) > LARGE
    start = _best_with_heft(workload, _place(workload, None if large else network, asked), asked, until)
    if not large:
        return ascend(workload, start, asked, until)
    if not has_time_to_contract(workload, until - asked.clock()):
        why = "there was no time to contract the graph for the network, so that it was not asked: "
        return ascend(workload, replace(start, why=why + start.why), asked, until)
    try:
        start = min(start, _place_groups(workload, network, asked, until), key=lambda found: found.value_s)
    except Infeasible as error:  # Groups may be too large where single tasks are not.
        start = replace(start, why=f"no groups of tasks, as of these {error}; {start.why}")
    return ascend(workload, start, asked, until)


def _best_with_heft(workload: Workload, start: PlacementFound, asked: Asked, until: float) -> PlacementFound:
    """Return what HEFT finds if it is better than `start`, and there is time to ask HEFT."""
    if until - asked.clock() < HEFT_S * len(workload.tasks):
        return start
    with suppress(Infeasible):
        heft = find_best_start(workload, asked, ("heft",), always=1).found
        if heft.value_s < start.value_s:
            return replace(heft, why=f"heft's, better than {start.why}")
    return start


def _place_groups(workload: Workload, network: NeuralNetwork, asked: Asked, until: float) -> PlacementFound:
    """Return what is found for groups of tasks, in half of the time that is left, as a placement of the tasks."""
    groups = contract(workload, GROUPS)
    coarse, now = coarsen(workload, groups), asked.clock()
    found = ascend(coarse, _place(coarse, network, asked), asked, now + max(0.0, until - now) / 2)
    return settle(
        workload, expand(groups, found.placement), asked, f"{len(groups)} groups of tasks ({found.why}):"
    )


def _place(workload: Workload, network: NeuralNetwork | None, asked: Asked) -> PlacementFound:
    """Return the best of plain list scheduling and of what the network draws, if there is one."""
    until = asked.clock() + asked.budget_s
    features = describe(workload)
    decoder = SampleDecoder(workload, features)
    tasks, machines = features.flat.compute_s.shape
    plain = np.tile(PLAIN, (tasks, 1))
    drawn = [decoder.decode(np.zeros((tasks, machines)), plain, np.zeros((1, tasks, machines)))]
    samples = 0
    if network is not None:
        scores = network.run(features.inputs)
        at_once, most = (SAMPLES, SAMPLES) if is_prepared() else (1, FEW_SAMPLES)
        noise = gumbel(most, tasks, machines, seed=0)
        while samples < most and (not samples or asked.clock() < until):
            drawn.append(decoder.decode(scores[0], scores[1], noise[samples : samples + at_once]))
            samples += at_once
    settled = SETTLED if is_prepared() or asked.clock() < until else 1
    return _best(workload, drawn, samples, settled, asked)


def _best(
    workload: Workload, drawn: list[Decoded], samples: int, settled: int, asked: Asked
) -> PlacementFound:
    """Return the best of what was drawn, with its schedule or load."""
    every = Decoded(*(np.concatenate(columns) for columns in zip(*map(_columns, drawn), strict=True)))
    if asked.objective == "throughput":
        values = np.array([max_load(workload, where.tolist()) for where in every.placements])
    else:
        values = every.makespan_s
    found = []
    for row in np.argsort(values, kind="stable")[:settled].tolist():
        whose = (
            f"the best of {format_count(samples, 'sample')} of the network"
            if row
            else "plain list scheduling"
        )
        orders = [(-every.start_s[row]).tolist()]
        found.append(settle(workload, every.placements[row].tolist(), asked, whose, orders=orders))
    with suppress(Infeasible):  # One machine alone may lack the memory.
        found.append(single(workload, asked))
    best = min(found, key=lambda one: one.value_s)
    few = ", few as decoding is not compiled (extra [climb])" if 0 < samples < SAMPLES else ""
    only = ", of which one was worked out as no time was left" if settled < SETTLED else ""
    return replace(best, why=f"{best.why}{few}{only},")


def _columns(drawn: Decoded) -> tuple[np.ndarray, ...]:
    return drawn.placements, drawn.start_s, drawn.makespan_s
