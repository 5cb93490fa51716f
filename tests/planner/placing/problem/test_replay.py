"""The answer about a workload says enough for anybody to replay its value."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.errors import Infeasible, ModelError
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.placing.problem.read import workload_of
from edgepart.planner.placing.problem.workload import Workload
from edgepart.planner.placing.problem.write import answer_document
from edgepart.planner.placing.registry import placer
from tests.planner.placing.asking import asked
from tests.planner.placing.problem.replay import replay
from tests.planner.placing.workload_files import workload_document
from tests.planner.placing.workloads import workloads

PLACERS = ("heft", "m-etf", "expert", "metis", "pipeline", "climb")


def documents(graph: Workload, name: str) -> tuple[dict[str, object], dict[str, object]]:
    found = placer(name)(graph, asked(budget_s=12))
    answer = answer_document(graph, found, name, "latency", 0.0)
    return json.loads(json.dumps(workload_document(graph))), json.loads(json.dumps(answer))


@settings(max_examples=60)
@given(workloads(8, 4, memory=True, partial=True, groups=True, media=True), st.sampled_from(PLACERS))
def test_any_answer_can_be_replayed(graph: Workload, name: str) -> None:
    try:
        workload, answer = documents(graph, name)
    except Infeasible:
        return
    assert replay(workload, answer) == []


RATES = st.sampled_from([50.0, 100.0, 200.0])


@settings(max_examples=60)
@given(
    workloads(8, 4, media=True),
    st.lists(st.tuples(RATES, RATES, st.booleans()), min_size=6),
    st.sampled_from(PLACERS),
)
def test_answers_over_other_devices_can_be_replayed(
    graph: Workload, links: list[tuple[float, float, bool]], name: str
) -> None:
    document = workload_document(graph)
    document["links"] = [
        {**link, "bytes_per_s": there, "up_bytes_per_s": back}
        for link, (there, back, kept) in zip(document["links"], links, strict=False)
        if kept
    ]
    try:
        workload = workload_of(document)
    except ModelError:
        return  # No way leads from one to another.
    answer = answer_document(workload, placer(name)(workload, asked(budget_s=12)), name, "latency", 0.0)
    assert replay(json.loads(json.dumps(document)), json.loads(json.dumps(answer))) == []


def test_what_is_changed_is_noticed() -> None:
    workload, answer = documents(draw_workload("attention", Random(2), 60, 3), "heft")
    assert replay(workload, answer) == [] and answer["transfers"]

    def changed(**others: object) -> list[str]:
        return replay(workload, {**answer, **others})

    transfers = answer["transfers"]
    assert isinstance(transfers, list)
    value_s, starts = answer["value_s"], answer["start_s"]
    assert isinstance(value_s, float) and isinstance(starts, dict)
    last = max(starts, key=starts.__getitem__)
    assert "the last node ends" in changed(value_s=0.99 * value_s)[0]
    assert any("starts before it has" in one for one in changed(start_s={**starts, last: 0.0}))
    assert any("starts before it has" in one for one in changed(transfers=transfers[1:]))
    shorter = [{**transfers[0], "end_s": transfers[0]["start_s"]}, *transfers[1:]]
    assert any("takes" in one for one in changed(transfers=shorter))
    early = [
        {**one, "start_s": one["start_s"] - value_s, "end_s": one["end_s"] - value_s} for one in transfers
    ]
    assert any("before it is made" in one for one in changed(transfers=early))


@pytest.mark.parametrize("name", PLACERS)
def test_graphs_like_models_can_be_replayed(name: str) -> None:
    workload, answer = documents(draw_workload("inception", Random(4), 140, 4), name)
    assert replay(workload, answer) == []
