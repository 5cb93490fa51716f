"""Refusals: only what no plan undercuts is called a proof."""

from __future__ import annotations

import pytest
from benchmarks.models.transformers import bert

from edgepart.planner.devices.cluster import Cluster, Device, Link
from edgepart.planner.errors import Infeasible
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import best_strategy
from edgepart.planner.search.refusal import least_bytes
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.registry import strategies
from edgepart.planner.vocabulary import GUIDED
from tests.planner.small_models import residual
from tests.planner.strategies.test_out_of_memory import chain, one_large

GRAPHS = {
    "residual": load_graph(residual()),
    **{
        name: load_graph(made.SerializeToString())
        for name, made in (("bert", bert(2, 64, 4, 16, 500)), ("chain", chain(4)), ("one_large", one_large()))
    },
}


def cluster(memory_bytes: float) -> Cluster:
    devices = (Device(f"d{n}", "k", (n + 1) * 1e9, 1e9, memory_bytes) for n in range(3))
    return Cluster(tuple(devices), {}, Link(1e8, 1e-4))


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_no_candidate_takes_less_than_the_least(graph: Graph, objective: str) -> None:
    study = Study(Problem(graph, cluster(4e9), "d0", objective, search_budget_s=0.2))
    least, seen = least_bytes(study.memo), 0
    for name, candidates in strategies().items():
        if name not in ("moirai", "m-sct", "getf", *GUIDED):
            for strategy in candidates(study):
                assert sum(study.scorer.forecast(strategy).peak_memory_bytes.values()) >= least, name
                seen += 1
    assert seen > 20


@pytest.mark.parametrize("name", ["single", "heft", "pipeline", "auto"])
def test_what_is_proven_is_said_to_be_and_nothing_else(name: str) -> None:
    graph = GRAPHS["chain"]
    least = least_bytes(Study(Problem(graph, cluster(4e9), "d0")).memo)
    for memory_bytes, proven in ((0.32 * least, True), (0.34 * least, False)):
        problem = Problem(graph, cluster(memory_bytes), "d0", search_budget_s=0.2)
        with pytest.raises(Infeasible) as refused:
            best_strategy(problem, name)
        assert refused.value.proven == proven and refused.value.short_bytes
        said = "does not fit, however it is divided" if proven else "no plan that fits was found"
        assert said in str(refused.value)
