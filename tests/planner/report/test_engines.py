"""What people read of engines: what they compute, or why they compute nothing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from benchmarks.models import light

from edgepart.planner.devices.engine import Engine
from edgepart.planner.model.graph import Graph
from edgepart.planner.model.load import load_graph
from edgepart.planner.planner import choose_plan, without_engines_s
from edgepart.planner.report.engines import engine_documents
from edgepart.planner.search.study import Study
from tests.planner.lowering.test_engines import CONVOLUTIONS, problem


@pytest.fixture(scope="module")
def squeezenet() -> Graph:
    return load_graph(light("squeezenet"))


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (CONVOLUTIONS, r"Engine npu of d0 computes 10 of 20 segments \(\d\d% of the device's time\)"),
        (CONVOLUTIONS.slowed(8.0), "Engine npu of d0 is not used: it would take 2 times as long as the CPU"),
        (
            replace(CONVOLUTIONS, segment_s=9.0),
            "not used: its starts and copies would take more time than it saves",
        ),
        (replace(CONVOLUTIONS, families={"gemm": 1e9}), "not used: it can run none of the model's operators"),
    ],
    ids=["used", "slower", "dear", "useless"],
)
def test_a_plan_says_what_becomes_of_each_engine(engine: Engine, said: str, squeezenet: Graph) -> None:
    why = choose_plan(problem(squeezenet, engine), "single", digests={})[0].why
    assert re.search(said, why)


def test_a_refused_engine_is_said_to_be_refused(squeezenet: Graph) -> None:
    plan = choose_plan(problem(squeezenet, CONVOLUTIONS), "single", digests={})[0]
    refused = frozenset(one.digest for one in plan.programs["d0"].segments)
    why = choose_plan(problem(squeezenet, replace(CONVOLUTIONS, refused=refused)), "single", digests={})[
        0
    ].why
    assert "refused for segments of this plan" in why


def test_a_comparison_has_what_each_engine_would_give(squeezenet: Graph) -> None:
    study = Study(problem(squeezenet, CONVOLUTIONS, replace(CONVOLUTIONS, name="two").slowed(8.0)))
    one, two = engine_documents(study.memo)
    assert (one["engine"], two["engine"], one["device"]) == ("npu", "two", "d0")
    assert one["times_as_long"] == pytest.approx(0.25) and two["times_as_long"] == pytest.approx(2.0)
    assert 0 < one["operators"] < len(squeezenet.operators)
    plain = Study(problem(squeezenet))
    assert without_engines_s(study) == pytest.approx(choose_plan(plain.memo.problem, "auto")[1].latency_s)
    assert without_engines_s(plain) is None and engine_documents(plain.memo) == []
