"""Who computes what and what crosses, as people read it off a plan."""

from __future__ import annotations

from dataclasses import replace

from edgepart.planner.plans.plan import Run
from edgepart.planner.report.shares import device_shares, plan_report
from tests.agent.handmade import split_plan

PLAN = split_plan()


def test_divided_tensors_say_along_what_and_whole_ones_say_so() -> None:
    assert device_shares(PLAN) == {
        "c1": {"a": "height 0:4", "b": "height 4:8"},
        "y": {"a": "height 0:4", "b": "height 4:8"},
        "total": {"c": "whole"},
    }


def test_replicas_are_whole_on_each() -> None:
    both = replace(PLAN, programs={"a": PLAN.programs["c"], "b": PLAN.programs["c"]})
    assert device_shares(both) == {"total": {"a": "whole", "b": "whole"}}


def test_programs_without_their_segments_have_no_shares() -> None:
    bare = {name: replace(program, segments=()) for name, program in PLAN.programs.items()}
    assert device_shares(replace(PLAN, programs=bare)) == {}


def test_every_byte_that_crosses_is_counted_once_at_each_end() -> None:
    document = plan_report(PLAN)
    devices = document["devices"].values()
    assert document["syncs"] == 4
    assert sum(d["sent_bytes"] for d in devices) == sum(d["received_bytes"] for d in devices)
    crossing = sum(d["sent_bytes"] + d["from_gateway_bytes"] + d["to_gateway_bytes"] for d in devices)
    assert crossing == sum(transfer.nbytes for transfer in PLAN.transfers)
    assert document["devices"]["a"]["segments"] == sum(
        isinstance(step, Run) for step in PLAN.programs["a"].steps
    )
