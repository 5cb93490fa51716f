"""Big graphs: every declaration is bound once, whatever is asked of it later; plans of them are right."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from benchmarks.scale import SEQUENCE, WIDTH, transformer

from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.verify.reference import run_alone
from edgepart.agent.verify.same_answer import differences
from edgepart.planner.access import accesses, registry
from edgepart.planner.access.declare.protocol import Access
from edgepart.planner.layout.strategy import Problem, Sync
from edgepart.planner.lowering.lower import make_plan
from edgepart.planner.model.graph import Graph, Operator
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import choose_plan
from edgepart.planner.plans.check import check_plan
from edgepart.planner.search.force_axis import force
from edgepart.planner.search.study import Study
from edgepart.planner.strategies.bbgrap import divide_along
from tests.planner.random_plans import CLUSTER, NAMES

NODES = 2000


@pytest.fixture(scope="module")
def big() -> Graph:
    return load_graph(transformer(NODES).SerializeToString())


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each operator's declaration was bound."""
    count: Counter[str] = Counter()
    bind = registry.access_of

    def counted(operator: Operator, graph: Graph) -> Access:
        count[operator.name] += 1
        return bind(operator, graph)

    monkeypatch.setattr(registry, "access_of", counted)
    return count


def test_nothing_is_bound_before_it_is_asked_for(big: Graph, bound: Counter[str]) -> None:
    known = accesses(big)
    assert len(known) == len(big.operators) >= NODES
    assert not bound
    first = known[big.operators[7].name]
    assert known[big.operators[7].name] is first
    assert bound == {big.operators[7].name: 1}


def test_each_declaration_is_bound_once_for_all_plans(big: Graph, bound: Counter[str]) -> None:
    problem = Problem(big, CLUSTER, NAMES[0])
    study = Study(problem)
    alone_plan, _, _ = choose_plan(problem, "single", study=study)
    check_plan(alone_plan, big)
    assert [len(program.segments) for program in alone_plan.programs.values()] == [1]
    parted = make_plan(
        problem, divide_along(study, "sequence", NAMES), model_digest="m", accesses=study.memo.coarse.accesses
    )
    check_plan(parted, big)
    assert set(parted.programs) == set(NAMES)
    assert set(bound.values()) == {1} and len(bound) == len(big.operators)


def test_broadcasting_comes_to_what_only_sending_what_is_needed_comes_to(big: Graph) -> None:
    problem = Problem(big, CLUSTER, NAMES[0])
    strategy = divide_along(Study(problem), "sequence", NAMES)
    assert strategy.sync is Sync.BROADCAST
    full, sketch = (make_plan(problem, strategy, model_digest="m", sketch=sketch) for sketch in (False, True))
    assert sum(t.nbytes for t in full.transfers) == sum(t.nbytes for t in sketch.transfers)
    assert len(full.transfers) == len(sketch.transfers)


@pytest.mark.parametrize("axis", ["sequence", "feature", "head", None])
def test_blocks_one_after_another_answer_as_one_session(axis: str | None) -> None:
    data = transformer(80).SerializeToString()
    graph = load_graph(data)
    problem = Problem(graph, CLUSTER, NAMES[0])
    shares = tuple(zip(NAMES, (0.5, 0.3, 0.2), strict=True))
    study = Study(problem)
    plan = check_plan(make_plan(problem, force(study, axis, shares), model_digest="m"), graph)
    assert set(plan.programs) == set(NAMES)
    inputs = {"x0": np.random.default_rng(1).standard_normal((1, SEQUENCE, WIDTH)).astype(np.float32)}
    assert differences(LocalRun(plan, graph).run(inputs), run_alone(data, inputs)) == []
