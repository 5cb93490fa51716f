"""Placeto: a trained policy goes over the graph once and gives one group of operators after another a machine. Rules only.

After Addanki et al. (NeurIPS 2019). The network runs once for each group, as the state changes with each placement. The
answer is the best placement that the pass visits.
"""

from __future__ import annotations

import numpy as np

from edgepart.planner.errors import ModelError
from edgepart.planner.placing.engine.coarse_workload import coarsen, expand
from edgepart.planner.placing.engine.contract import contract
from edgepart.planner.placing.engine.evaluate import settle
from edgepart.planner.placing.guided.placeto_state import GROUPS, Episode, placeto_graph, start_alone
from edgepart.planner.placing.guided.trained import trained_network
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import register


@register("placeto")
def placeto(workload: Workload, asked: Asked) -> PlacementFound:
    """Place groups as the network says. Placements are judged by latency while they are visited, whatever the objective.
    Raises NotInstalled without a network for so many machines, ModelError if its card does not say how many groups it was
    trained on, and Infeasible if nothing fits."""
    network = trained_network(asked, "placeto", len(workload.machines))
    most = network.card.options.get("groups", GROUPS)
    if not isinstance(most, int) or most < 1:
        raise ModelError(f"the network of placeto: its card has {most!r} for the groups of a graph")
    until = asked.clock() + asked.budget_s
    groups = contract(workload, most)
    graph = placeto_graph(coarsen(workload, groups))
    episode = Episode(graph, start_alone(graph))
    while not episode.done and (asked.clock() < until or episode.step == 0):
        group = episode.current
        (logits,) = network.run(
            {
                "state": episode.state(),
                "parents": graph.parents,
                "pools": graph.pools[group],
                "current": np.eye(1, len(groups), group, np.float32),
            }
        )
        episode.place(int(np.where(graph.able[group], logits[0], -np.inf).argmax()))
    why = f"a policy trained on {', '.join(network.card.families)} placed {len(groups)} groups of operators one by one"
    if not episode.done:
        why = f"{why}, of which it came to {episode.step} in the time"
    return settle(workload, expand(groups, episode.best.tolist()), asked, why)
