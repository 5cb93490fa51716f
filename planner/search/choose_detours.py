"""Tries what a strategy would choose if slow links were as wide as the way around them. Rules only.

A search that moves everything straight leaves out whoever is behind one slow link, or cuts so that nothing crosses it. So
the question is asked once more for a cluster in which slow links have the width of the widest way around them, and
what comes of it is looked at with relays on the cluster as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, pairwise

from edgepart.planner.devices.cluster import Cluster, Link
from edgepart.planner.devices.routes import SLOWER, LinkTable, widest
from edgepart.planner.errors import Infeasible
from edgepart.planner.layout.strategy import Strategy
from edgepart.planner.search.choose_relays import MOST_DEVICES, add_relays
from edgepart.planner.search.study import Study


def try_detours(study: Study, search: Callable[[Study], Iterator[Strategy]]) -> Iterator[Strategy]:
    """The best that `search` finds where slow links are as wide as the way around them, with relays on the real cluster;
    nothing where no link is that slow."""
    cluster = as_wide_as_around(study.memo.cluster)
    if cluster is None:
        return
    problem = study.memo.problem
    wide = study.on(replace(problem, cluster=cluster, search_budget_s=problem.search_budget_s / 2))
    try:
        best = wide.scorer.pick_best(search(wide))
    except Infeasible:  # Then the study itself says so, with what is missing.
        return
    choices = wide.candidates.choices_of(best)
    if best.replicas or not choices:
        return
    made = study.candidates.make(best.name, choices, best.why, best.sync, best.hub)
    made = replace(made, early=best.early, order=best.order)
    yield add_relays(study, made) or made


def as_wide_as_around(cluster: Cluster) -> Cluster | None:
    """The cluster with slow links a little narrower than the widest way around them, as a way uses links of others; None
    where there are no slow links, or too many devices to look."""
    names = [device.name for device in cluster.devices]
    link_table = LinkTable(cluster, names[0])
    if len(names) > MOST_DEVICES or link_table.is_even:
        return None
    links = dict(cluster.links)
    ways = {name: widest(name, [other for other in names if other != name], link_table) for name in names}
    for one, two in combinations(names, 2):
        way, link = ways[one][two], cluster.link(one, two)
        width = link_table.width(way) / SLOWER
        if link.bytes_per_s < width:
            legs = [link_table.link(*leg) for leg in pairwise(way)]
            links.pop((two, one), None)
            links[one, two] = Link(width, sum(leg.latency_s for leg in legs), link.message_s)
    return replace(cluster, links=links) if links != cluster.links else None
