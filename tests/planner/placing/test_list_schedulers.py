"""HEFT on its paper's example, earliest first against its plain twin, favourite children and groups of speeds by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from edgepart.planner.placing.engine.dispatch import upward_ranks
from edgepart.planner.placing.engine.ports import Sides, Timeline, all_first
from edgepart.planner.placing.placers.favourite_child import favourites
from edgepart.planner.placing.placers.getf import speed_groups
from edgepart.planner.placing.placers.heft import place_by_rank
from edgepart.planner.placing.placers.list_schedulers import place_earliest_first
from edgepart.planner.placing.problem.workload import Workload
from tests.planner.placing.asking import asked, found_by
from tests.planner.placing.workloads import workload, workloads

INF = float("inf")

ROWS = [
    (14, 16, 9),
    (13, 19, 18),
    (11, 13, 19),
    (13, 8, 17),
    (12, 13, 10),
    (13, 16, 9),
    (7, 15, 11),
    (5, 11, 14),
]
ROWS += [(18, 12, 20), (21, 7, 16)]
EDGES = {
    (1, 2): 18,
    (1, 3): 12,
    (1, 4): 9,
    (1, 5): 11,
    (1, 6): 14,
    (2, 8): 19,
    (2, 9): 16,
    (3, 7): 23,
    (4, 8): 27,
}
EDGES |= {(4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13}
PAPER = workload(
    [tuple(map(float, row)) for row in ROWS],
    [(source - 1, (reader - 1,), float(cost)) for (source, reader), cost in EDGES.items()],
    bytes_per_s=1.0,
)
"""Ten tasks on three machines, from the paper of 2002."""


def test_heft_finds_what_its_paper_says() -> None:
    ranks = [108.0, 77.0, 80.0, 80.0, 69.0, 190 / 3, 128 / 3, 107 / 3, 133 / 3, 44 / 3]
    assert upward_ranks(PAPER) == pytest.approx(ranks)
    sides = place_by_rank(PAPER, contention=False)
    assert max(sides.end_s) == 80.0
    assert sides.machine == [2, 0, 2, 1, 2, 1, 2, 0, 1, 1]


def test_with_one_transfer_at_a_time_the_paper_s_example_takes_longer() -> None:
    sides = place_by_rank(PAPER)
    assert max(sides.end_s) > 80.0
    assert found_by("heft", PAPER).value_s <= max(sides.end_s)


@st.composite
def trees(draw: DrawFn) -> Workload:
    """Each task reads from one, so that a start, once worked out, only becomes later until it is booked."""
    count, machines = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    rows = [tuple(float(draw(st.integers(1, 9))) for _ in range(machines)) for _ in range(count)]
    readers: list[set[int]] = [set() for _ in range(count)]
    for task in range(1, count):
        if (source := draw(st.integers(-1, task - 1))) >= 0:
            readers[source].add(task)
    tensors = [
        (source, tuple(sorted(found)), float(draw(st.integers(0, 5))))
        for source, found in enumerate(readers)
        if found
    ]
    return workload(rows, tensors, bytes_per_s=1.0)


def plainly(workload: Workload) -> list[int]:
    """By task, its machine: all pairs of tasks and machines looked at in each step."""
    sides, ranks = Sides(workload), upward_ranks(workload)
    for _ in workload.tasks:
        ready = [
            task
            for task, machine in enumerate(sides.machine)
            if machine < 0 and all(sides.machine[source] >= 0 for source in workload.before[task])
        ]
        pairs = []
        for task in ready:
            compute_s = workload.tasks[task].compute_s
            for machine in range(len(workload.machines)):
                start_s = max(sides.computing[machine].end, sides.ready_s(task, machine))
                pairs.append((start_s + compute_s[machine] - min(compute_s), -ranks[task], task, machine))
        _, _, task, machine = min(pairs)
        sides.place(task, machine)
    return sides.machine


@settings(max_examples=300)
@given(trees())
def test_earliest_first_is_what_looking_at_every_pair_finds(workload: Workload) -> None:
    assert place_earliest_first(workload).machine == plainly(workload)


def test_a_machine_waits_for_the_favourite_child_of_what_it_did() -> None:
    # After the first task its machine could go on with the third at once; the second, its favourite, comes at 3.
    kept = workload(
        [(2.0, 9.0), (3.0, 9.0), (3.0, 9.0), (9.0, 2.0)],
        [(0, (1,), 300.0), (0, (2,), 100.0), (3, (1,), 100.0)],
    )
    assert place_earliest_first(kept).start_s[2] == 2.0
    sides = place_earliest_first(kept, favourites=[1, -1, -1, -1])
    assert (sides.start_s[1], sides.start_s[2]) == (3.0, 6.0)


def test_the_dearer_path_has_the_favourite_child() -> None:
    pytest.importorskip("ortools", reason="needs OR-tools, of the extra [exact]")
    fork = workload([(1.0, 1.0), (1.0, 1.0), (9.0, 9.0)], [(0, (1,), 200.0), (0, (2,), 200.0)])
    assert favourites(fork, asked()).child == (2, -1, -1)
    join = workload([(1.0, 1.0), (9.0, 9.0), (1.0, 1.0)], [(0, (2,), 200.0), (1, (2,), 200.0)])
    assert favourites(join, asked()).child == (-1, 2, -1)


@given(workloads(8, 3), st.sampled_from([0.0, 1e6]))
def test_favourites_are_pairs_of_parents_and_children(workload: Workload, budget_s: float) -> None:
    pytest.importorskip("ortools", reason="needs OR-tools, of the extra [exact]")
    found = favourites(workload, asked(budget_s=budget_s))
    assert found.relaxed == (len(workload.tasks) if budget_s else 0)
    children = [child for child in found.child if child >= 0]
    assert len(children) == len({*children})
    for task, child in enumerate(found.child):
        assert child < 0 or child in workload.after[task]
        # Of a pair with nobody else to choose, each is the other's.
        if len(workload.after[task]) == 1 and len(workload.before[workload.after[task][0]]) == 1:
            assert child == workload.after[task][0]


def test_machines_of_like_speed_are_a_group_and_very_slow_ones_in_none() -> None:
    # Of four the factor is ln 4 / ln ln 4, 4.2; a machine five times slower than the fastest is below a fourth of it.
    four = workload([(1.0, 2.0, 3.9, 5.0)], [])
    assert [(group.machines, round(group.capacity, 3)) for group in speed_groups(four)] == [
        ((0, 1, 2), 1.756)
    ]
    assert [group.machines for group in speed_groups(workload([(2.0, 1.0)], []))] == [(0,), (1,)]
    assert [group.machines for group in speed_groups(workload([(1.9, 1.0)], []))] == [(0, 1)]
    nine = workload([(1.0, 1.0, 1.0, 6.0, 6.0, 6.0, 6.0, 7.5, 9.5)], [])
    assert [group.machines for group in speed_groups(nine)] == [(3, 4, 5, 6, 7), (0, 1, 2)]
    # Each is the only one that something costs no time on.
    crossed = workload([(0.0, 1.0), (1.0, 0.0)], [])
    assert [group.machines for group in speed_groups(crossed)] == [(0, 1)]


@pytest.mark.parametrize(
    ("count", "machines", "length_s"),
    [
        # n equal tasks that nothing connects, 1 s on the fast machine and 3 s on each of seven: the relaxation gives each
        # the share x of the fast one for which 3 - 2 x = n x, as its end is the longest task and the fast machine's work
        # (up to eight tasks; with more it is also the work of the seven).
        (3, {0}, 3.0),  # x = 3/5, more than half: only the fast one is good.
        (5, set(range(1, 8)), 3.0),  # x = 3/7: both are good, and seven are faster together.
        (7, set(range(1, 8)), 3.0),  # x = 1/3.
    ],
)
def test_getf_gives_to_the_good_group_that_is_fastest_together(
    count: int, machines: set[int], length_s: float
) -> None:
    pytest.importorskip("ortools", reason="needs OR-tools, of the extra [exact]")
    free = workload([(1.0, *[3.0] * 7)] * count, [])
    assert [group.machines for group in speed_groups(free)] == [tuple(range(1, 8)), (0,)]
    getf, metf = found_by("getf", free), found_by("m-etf", free)
    assert set(getf.placement) <= machines and getf.value_s == length_s
    if count > 3:
        # m-etf uses the fast machine, and the others once that is busy for longer than they are slower.
        assert 0 in metf.placement and getf.placement != metf.placement


def test_getf_is_metf_where_machines_are_of_one_group() -> None:
    four = workload([(1.0, 2.0, 3.0, 3.9)] * 9, [(0, (4, 5), 100.0), (1, (6,), 300.0)])
    assert found_by("getf", four).placement == found_by("m-etf", four).placement


def test_what_cannot_run_in_its_group_runs_elsewhere() -> None:
    pytest.importorskip("ortools", reason="needs OR-tools, of the extra [exact]")
    odd = workload([(1.0, 4.0), (INF, 4.0), (1.0, 4.0)], [(0, (1,), 1.0), (1, (2,), 1.0)])
    assert found_by("getf", odd).placement == (0, 1, 0)


SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=12)


@given(SPANS, SPANS, st.integers(0, 30), st.integers(0, 5))
def test_two_timelines_are_free_at_once_where_no_hour_of_either_is_taken(
    one: list[tuple[int, int]], other: list[tuple[int, int]], ready: int, length: int
) -> None:
    timelines: list[Timeline] = []
    taken: set[int] = set()
    for spans in (one, other):
        timeline = Timeline()
        hours: set[int] = set()
        for start, took in spans:
            if not hours & {*range(start, start + took)}:
                timeline.take(float(start), float(start + took))
                hours |= {*range(start, start + took)}
        assert all(a < b for a, b in zip(timeline.ends, timeline.starts[1:], strict=False))
        timelines.append(timeline)
        taken |= hours
    if length:
        first = next(s for s in range(ready, 200) if not taken & {*range(s, s + length)})
        assert all_first(timelines, float(ready), float(length)) == first
