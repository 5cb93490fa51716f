"""GDP (Zhou et al., 2019): one pass of a trained network over the whole graph gives every task its machine. Rules only.

The network decides all tasks at once, each by odds of its own. The source's answer to a graph that it was not trained on is
one placement. Ours is the best of the likeliest one and of some that are drawn by these odds, as judged by schedules: it
costs milliseconds, and the likeliest machine of each task is often the same one for all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edgepart.planner.placing.engine.evaluate import settle
from edgepart.planner.placing.engine.flat_workload import Floats, Integers
from edgepart.planner.placing.engine.judge import judge_of
from edgepart.planner.placing.guided.gdp_features import GdpFeatures, features_of, log_odds
from edgepart.planner.placing.guided.trained import trained_network
from edgepart.planner.placing.problem.networks import NetworkCard
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.registry import register

DRAWN = 64
"""The placements that are drawn besides the likeliest one, if the time suffices."""

SEED = 0


@register("gdp")
def gdp(workload: Workload, asked: Asked) -> PlacementFound:
    """Return the best of the placements that the network finds likely. Raises NotInstalled if no network is there for
    so many machines, and Infeasible if none of its placements can be made to fit."""
    until_s = asked.clock() + asked.budget_s
    network = trained_network(asked, "gdp", len(workload.machines))
    features = features_of(workload)
    odds = log_odds(np.asarray(network.run(features.inputs())[0], np.float64))
    judge = judge_of(workload, asked.objective)
    judged = short = 0
    best: tuple[float, Integers, int] | None = None
    for number, placement in enumerate(_likely(features, odds)):
        if number and asked.clock() >= until_s:
            break
        judged += 1
        if workload.short_bytes(placement.tolist()):
            short += 1
            continue
        value_s = judge(placement, None).value_s
        asked.tell(value_s)
        if best is None or value_s < best[0]:
            best = value_s, placement, number
    where = next(_likely(features, odds)) if best is None else best[1]
    why = _explain(network.card, judged, short, None if best is None else best[2], asked.objective)
    return settle(workload, where.tolist(), asked, why)


def _likely(features: GdpFeatures, odds: Floats) -> Iterator[Integers]:
    """Yield the likeliest placement, and then drawn ones; always the same for the same odds."""
    yield features.placements(odds.argmax(1))
    random = np.random.default_rng(SEED)
    for _ in range(DRAWN):
        # The largest of the logarithms of odds plus Gumbel noise is a draw by these odds.
        yield features.placements((odds + random.gumbel(size=odds.shape)).argmax(1))


def _explain(card: NetworkCard, judged: int, short: int, best: int | None, objective: str) -> str:
    families = ", ".join(card.families)
    why = f"a network trained on {families} gave each task its odds on each machine in one pass; "
    if best is None:
        return why + f"none of {judged} placements by these odds fits, so it is near the likeliest one"
    what = "the likeliest placement is" if best == 0 else "a drawn placement is"
    why += f"{what} the best of {judged} by these odds"
    if short:
        why += f", {short} of which do not fit"
    if objective == "throughput":
        why += "; the network was trained for latency"
    return why
