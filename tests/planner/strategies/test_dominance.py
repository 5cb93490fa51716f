"""No strategy finds a better plan than auto, and what auto leaves unsimulated could not have been one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.dominance import QUICK, Cell, cluster, graph, measure, run
from hypothesis import given
from hypothesis import strategies as st

from edgepart.planner.layout.choices import Choice, Divide, Pull, Reduce, Whole
from edgepart.planner.layout.strategy import Problem, Strategy
from edgepart.planner.search.lower_bound import is_hopeless, lower_bound_s
from edgepart.planner.search.moves import devices_of, leave_out, rescale, widen
from edgepart.planner.search.study import Study
from edgepart.planner.strategies import auto
from edgepart.planner.strategies.registry import get, strategies
from edgepart.planner.strategies.single import holds, run_alone, singles
from edgepart.planner.vocabulary import GUIDED
from tests.nightly import nightly

UNGUIDED = [name for name in strategies() if name not in GUIDED]
CELLS = [(model, *where) for model in QUICK[0] for where in QUICK[1]]


@pytest.mark.parametrize("where", [CELLS[1], *nightly(*CELLS[2:4])], ids=str)
def test_auto_is_as_fast_as_every_strategy_and_no_device_hurts(where: tuple[str, str, float]) -> None:
    cell = measure(where)
    assert set(cell.seconds) == set(UNGUIDED)
    assert not cell.dominated, (cell.next_best, cell.ratio)
    assert not cell.hurts, cell.lighter
    assert cell.seconds["auto"] <= cell.seconds["single"]


def test_a_cell_tells_what_is_wrong() -> None:
    good = Cell("m", "2 equal", 1e9, {"auto": 1.0, "optcnn": 1.0, "single": 2.0}, ("a", "b"), 1.5, 0.0)
    assert (good.next_best, good.ratio, good.dominated, good.hurts) == ("optcnn", 1.0, False, False)
    beaten = Cell("m", "2 equal", 1e9, {"auto": 1.0, "optcnn": 0.98, "single": 1.0}, ("a", "b"), 0.98, 0.0)
    assert beaten.dominated and beaten.hurts
    kept = Cell("m", "2 equal", 1e9, {"auto": 1.0, "optcnn": 0.999, "single": 1.0}, ("a",), float("inf"), 0.0)
    assert kept.dominated and not kept.hurts


def test_cells_that_were_measured_before_are_not_measured_again(tmp_path: Path) -> None:
    kept = tmp_path / "cells.json"
    (cell,) = run(CELLS[:1], 1, kept)
    found = replace(cell, searched_s=-1.0)
    kept.write_text(kept.read_text().replace(f'"searched_s": {cell.searched_s}', '"searched_s": -1.0'))
    assert run(CELLS[:1], 1, kept) == [found]


def everything(study: Study) -> Iterator[Strategy]:
    for device in study.memo.by_speed:
        yield run_alone(study, device)
    for name in UNGUIDED:
        if name != "auto":
            yield from get(name)(study)


@pytest.mark.parametrize("bits_per_s", [1e8, *nightly(1e10)])
def test_no_plan_takes_less_than_its_floor(bits_per_s: float) -> None:
    study = Study(Problem(graph("squeezenet"), cluster("1:2:4:8", bits_per_s), "d0"))
    floors = [(one, lower_bound_s(study, one), study.scorer.forecast(one)) for one in everything(study)]
    assert all(0 < floor <= forecast.latency_s * (1 + 1e-9) for _, floor, forecast in floors)
    for enough in sorted({floor for _, floor, _ in floors})[::10]:
        for one, floor, _ in floors:
            assert (lower_bound_s(study, one, enough) >= enough) == (floor >= enough)
    many = Study(Problem(graph("squeezenet"), cluster("1:2:4:8", bits_per_s), "d0", objective="throughput"))
    assert all(
        lower_bound_s(many, one) * many.scorer.forecast(one).most_per_s <= 1 + 1e-9
        for one in everything(many)
    )
    tight = [one.name for one, floor, forecast in floors if floor > 0.9 * forecast.latency_s]
    assert "single" in tight


@pytest.mark.parametrize("model", ["bert_base_small", *nightly("film_3d_small", "yolo_640_small")])
def test_no_candidate_of_auto_takes_less_than_its_floor(model: str) -> None:
    """Among them are plans with borders first, with detours, and of whole operators; most of the time is messages."""
    study = Study(Problem(graph(model), cluster("1:2:4:8", 1e10), "d0"))
    tight = 0
    for one in get("auto")(study):
        floor, takes_s = lower_bound_s(study, one), study.scorer.forecast(one).latency_s
        assert floor <= takes_s * (1 + 1e-9), one.why
        assert not is_hopeless(study, one, takes_s * (1 + 1e-6))
        tight += len(study.scorer.forecast(one).compute_s) > 1 and floor > 0.5 * takes_s
    assert tight


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("kind", ["1:2:4:8", *nightly("1 slow link of 4", "8 equal")])
def test_no_device_that_is_left_out_is_the_best_one_alone(kind: str, objective: str) -> None:
    study = Study(Problem(graph("squeezenet"), cluster(kind, 1e8), "d0", objective=objective))
    few, every = list(singles(study)), [run_alone(study, device) for device in study.memo.by_speed]
    assert len(few) < len(every)
    assert min(map(study.scorer.score, few)) == min(map(study.scorer.score, every))


def test_who_holds_the_model_is_known_without_asking_each() -> None:
    among = cluster("1:2:4:8", 1e9)
    roomy = Study(Problem(graph("squeezenet"), among, "d0"))
    needed = max(roomy.scorer.forecast(run_alone(roomy, "d0")).peak_memory_bytes.values())
    limits = {"d0": needed, "d1": needed - 1, "d2": 1.0}
    study = Study(Problem(graph("squeezenet"), among, "d0", memory_limit_bytes=limits))
    for device in study.memo.by_speed:
        assert holds(study, device) == (not study.scorer.short_bytes(run_alone(study, device)))
    assert [holds(study, f"d{n}") for n in range(4)] == [True, False, False, True]


def test_the_search_is_the_same_each_time() -> None:
    def found() -> list[str]:
        problem = Problem(graph("squeezenet"), cluster("1:2:4:8", 1e9), "d0")
        return [one.why for one in auto.candidates(Study(problem))]

    assert found() == found()


def test_an_ample_budget_looks_at_every_strategy() -> None:
    """What auto tries is as good as the best of each strategy, in cells that no test above has."""
    study = Study(Problem(graph("squeezenet"), cluster("4 equal", 1e10), "d0"))
    best = study.scorer.forecast(study.scorer.pick_best(auto.candidates(study))).latency_s
    for name in UNGUIDED:
        assert best <= study.scorer.forecast(study.scorer.pick_best(get(name)(study))).latency_s * (
            1 + 1e-9
        ), name


shares = st.lists(st.sampled_from("abcd"), min_size=2, max_size=4, unique=True).flatmap(
    lambda names: st.tuples(*(st.tuples(st.just(n), st.floats(0.1, 10)) for n in names))
)
wholes = st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True).map(lambda d: Whole(tuple(d)))
divides = st.builds(Divide, st.just(("height",)), shares)
choices = st.one_of(
    wholes, divides, st.just(Pull()), st.builds(Reduce, st.just("inner"), shares, st.one_of(wholes, divides))
)
all_choices = st.dictionaries(st.integers(0, 9), choices, max_size=6)


@given(all_choices, st.sampled_from("abcd"))
def test_without_a_device_nothing_names_it(before: dict[int, Choice], device: str) -> None:
    after = leave_out(before, device, "instead")
    assert device not in devices_of(after)
    assert set(devices_of(after)) <= {*devices_of(before), "instead"}
    assert after.keys() == before.keys()
    for choice in after.values():
        assert not isinstance(choice, Divide | Reduce) or len(choice.shares) > 1


@given(all_choices, st.dictionaries(st.sampled_from("abcd"), st.floats(0.25, 4)))
def test_rescaling_keeps_who_does_what(before: dict[int, Choice], factors: dict[str, float]) -> None:
    after = rescale(before, factors)
    assert devices_of(after) == devices_of(before)
    for number, choice in before.items():
        changed = after[number]
        if isinstance(choice, Divide):
            assert isinstance(changed, Divide)
            assert sum(share for _, share in changed.shares) == pytest.approx(1, abs=1e-3)
            weights = [share * factors.get(name, 1.0) for name, share in choice.shares]
            expected = [weight / sum(weights) for weight in weights]
            assert [share for _, share in changed.shares] == pytest.approx(expected, abs=1e-4)
        elif not isinstance(choice, Reduce):
            assert changed == choice


def test_a_grid_without_a_tile_is_a_row() -> None:
    grid = Divide(("height", "width"), (("a", 1.0), ("b", 1.0), ("c", 1.0), ("d", 1.0)), (2, 2))
    assert leave_out({0: grid}, "b", "a") == {0: Divide(("height",), (("a", 1.0), ("c", 1.0), ("d", 1.0)))}
    assert leave_out({0: Divide(("height",), (("a", 1.0), ("b", 1.0)))}, "b", "a") == {0: Whole(("a",))}


def test_only_borders_in_space_are_computed_twice() -> None:
    rows, columns = (Divide((axis,), (("a", 1.0), ("b", 1.0))) for axis in ("height", "channel"))
    found = widen({0: rows, 1: columns, 2: Whole(("a",))}, ("height", "width"))
    assert isinstance(found[0], Divide) and found[0].widened
    assert found[1] == columns and found[2] == Whole(("a",))
