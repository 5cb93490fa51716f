"""What is rounded between devices, and that whoever predicts knows."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgepart.planner.errors import FrameError, UsageError
from edgepart.planner.layerwise.configurations import make_space
from edgepart.planner.layerwise.time_costs import TimeCosts
from edgepart.planner.lowering.lower import Lowering
from edgepart.planner.model.graph import Tensor
from edgepart.planner.planner import choose_plan
from edgepart.planner.plans.check import broken_plan_rules
from edgepart.planner.plans.plan import GATEWAY, Plan
from edgepart.planner.plans.plan_bytes import plan_from_bytes, plan_to_bytes
from edgepart.planner.plans.reduced_precision import (
    EXACT,
    FLOAT16,
    INT8,
    KINDS,
    SMALLEST_ROUNDED_BYTES,
    check_kind,
    rounded_dtype,
    smallest_share,
    transfer_bytes,
    wire_bytes,
)
from edgepart.planner.plans.timeline import Compute
from edgepart.planner.region import Region
from edgepart.planner.search.lower_bound import lower_bound_s
from edgepart.planner.search.memo import Memo
from edgepart.planner.search.study import Study
from edgepart.planner.simulation.latency import time_schedule
from tests.planner.cost.test_chain_cost import drawn, studied

FLOATS = Tensor("x", (1, 64, 8, 56), "float", 4)
ENDS = ("a", "b")


@pytest.mark.parametrize(
    ("tensor", "region", "ends", "wanted"),
    [
        (FLOATS, FLOATS.region, ENDS, INT8),
        (FLOATS, FLOATS.region, (GATEWAY, "b"), EXACT),
        (FLOATS, FLOATS.region, ("a", GATEWAY), EXACT),
        (replace(FLOATS, dtype="float16", item_bytes=2), FLOATS.region, ENDS, EXACT),
        (replace(FLOATS, dtype="int64", item_bytes=8), FLOATS.region, ENDS, EXACT),
        (replace(FLOATS, shape=None), Region(()), ENDS, EXACT),
        (FLOATS, Region.full((1, 1, 5, 51)), ENDS, EXACT),
        (FLOATS, Region.full((1, 1, 5, 52)), ENDS, INT8),
    ],
)
def test_what_is_rounded(tensor: Tensor, region: Region, ends: tuple[str, str], wanted: str) -> None:
    assert rounded_dtype(tensor, region, ends, INT8) == wanted
    assert rounded_dtype(tensor, region, ends, EXACT) == EXACT


@given(st.lists(st.integers(0, 70), max_size=5).map(tuple), st.sampled_from(KINDS))
def test_a_piece_never_travels_with_more_bytes_than_it_has(shape: tuple[int, ...], kind: str) -> None:
    tensor = replace(FLOATS, shape=shape)
    nbytes = transfer_bytes(tensor, tensor.region, ENDS, kind)
    assert tensor.nbytes * smallest_share(tensor, kind) <= nbytes <= tensor.nbytes
    if kind != EXACT and rounded_dtype(tensor, tensor.region, ENDS, kind) != EXACT:
        assert nbytes == wire_bytes(kind, shape) and tensor.nbytes >= SMALLEST_ROUNDED_BYTES


@cache
def rounding(kind: str) -> Study:
    known = studied("squeezenet")
    return Study(replace(known.memo.problem, transfer_dtype=kind, search_budget_s=0.5))


@pytest.mark.parametrize("kind", [FLOAT16, INT8])
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whoever_predicts_knows_what_travels(kind: str, data: st.DataObject) -> None:
    study = rounding(kind)
    strategy = drawn(data, study)
    lowering = Lowering(study.memo.problem, study.memo.cost, study.memo.coarse.accesses)
    outline, _ = lowering.outline(strategy)
    plan = lowering.plan(strategy, sketch=True)
    twin = time_schedule(plan, study.memo.cost)
    assert outline.messages == twin.messages
    for device, steps in twin.steps.items():
        took = [one.seconds for one in outline.steps[device] if isinstance(one, Compute)]
        assert took == pytest.approx([one.seconds for one in steps if isinstance(one, Compute)])
    assert lower_bound_s(study, strategy) <= study.scorer.forecast(strategy).latency_s * (1 + 1e-9)
    for transfer in plan.transfers:  # All of this model is float32, addends too.
        kinds = transfer.dtypes or (EXACT,) * len(transfer.pieces)
        pieces = zip(kinds, transfer.pieces, strict=True)
        assert transfer.nbytes == sum(wire_bytes(kind, piece.region.shape) for kind, piece in pieces)


@cache
def chosen(kind: str) -> Plan:
    return choose_plan(rounding(kind).memo.problem, "modnn", study=rounding(kind))[0]


def test_the_same_division_sends_less_and_says_so() -> None:
    exact, half, eighth = map(chosen, KINDS)
    assert (
        exact.rounded_to == "" and "rounded" not in exact.why and not any(t.dtypes for t in exact.transfers)
    )
    for plan, kind in ((half, FLOAT16), (eighth, INT8)):
        assert plan.rounded_to == kind and f"rounded to {kind}" in plan.why
        assert list(broken_plan_rules(plan)) == [] and plan_to_bytes(
            plan_from_bytes(plan_to_bytes(plan))
        ) == plan_to_bytes(plan)
        assert plan_from_bytes(plan_to_bytes(plan)) == plan
    sent = [sum(t.nbytes for t in p.transfers if t.source and t.target) for p in (exact, half, eighth)]
    assert sent[1] < 0.6 * sent[0] and sent[2] < 0.4 * sent[0]


def test_a_search_by_layers_prices_what_travels() -> None:
    tables = [sum_s(rounding(kind).memo) for kind in KINDS]
    assert tables[2] < tables[1] < tables[0]


def sum_s(memo: Memo) -> float:
    """Of the ways that all have, between the first layers."""
    time_costs = TimeCosts(memo, make_space(memo))
    before, after = memo.operator_costs.search_nodes[:2]
    return float(time_costs.edge(before, 0, after, after.sources.index(before.exits[0])).sum())


@pytest.mark.parametrize(
    "broken",
    [("float16", "float16"), ("int4",), ("float32", "float32", "float32")],
)
def test_plans_that_round_what_is_not_there_are_refused(broken: tuple[str, ...]) -> None:
    plan = chosen(EXACT)
    inner = next(t for t in plan.transfers if t.source and t.target and len(t.pieces) == 1)
    assert list(broken_plan_rules(with_dtypes(plan, inner.number, ("float16",)))) == []
    assert list(broken_plan_rules(with_dtypes(plan, inner.number, broken)))
    outer = next(t for t in plan.transfers if not t.source and len(t.pieces) == 1)
    assert list(broken_plan_rules(with_dtypes(plan, outer.number, ("float16",))))


def with_dtypes(plan: Plan, number: int, dtypes: tuple[str, ...]) -> Plan:
    changed = replace(plan.transfers[number], dtypes=dtypes)
    return replace(plan, transfers=tuple(changed if t.number == number else t for t in plan.transfers))


def test_a_plan_that_says_it_in_other_words_is_none() -> None:
    plan = with_dtypes(chosen(EXACT), 0, (3,))  # type: ignore[arg-type]
    with pytest.raises(FrameError):
        plan_from_bytes(plan_to_bytes(plan))


def test_only_what_there_is_can_be_asked_for() -> None:
    assert [check_kind(kind, "--transfer-dtype") for kind in KINDS] == list(KINDS)
    with pytest.raises(UsageError, match="float32, float16, int8"):
        check_kind("int4", "--transfer-dtype")
