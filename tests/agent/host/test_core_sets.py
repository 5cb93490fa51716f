"""Core sets: what the system tells of cores, which sets of them are tried, and which one is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepart.agent.host.core_sets import (
    CoreSet,
    LogicalCpu,
    allowed_cpus,
    choose_set,
    confine,
    read_topology,
    sets_to_try,
)
from edgepart.agent.measure import thread_probe
from edgepart.agent.measure.thread_probe import find_quickest
from edgepart.planner.errors import UsageError

PLAIN = [LogicalCpu(n, ("0", str(n)), 1000.0) for n in range(4)]
HYPER = [LogicalCpu(n, ("0", str(n % 2)), 1000.0) for n in range(4)]
BIG_LITTLE = [LogicalCpu(n, ("0", str(n)), 500.0 if n < 4 else 1024.0) for n in range(6)]


@pytest.mark.parametrize(
    ("topology", "leave", "tried"),
    [
        (PLAIN, 0, [("all cores", 4, 4)]),
        (PLAIN, 1, [("all cores", 4, 3)]),
        (HYPER, 0, [("all cores", 4, 4), ("one thread for each core", 4, 2)]),
        (HYPER, 2, [("all cores", 4, 2)]),
        (BIG_LITTLE, 0, [("all cores", 6, 6), ("the fast cores", 2, 2)]),
        (BIG_LITTLE, 5, [("all cores", 6, 1), ("the fast cores", 2, 1)]),
        ([LogicalCpu(n, ("0", str(n)), 0.0) for n in range(2)], 0, [("all cores", 2, 2)]),
    ],
)
def test_sets_that_are_tried(
    topology: list[LogicalCpu], leave: int, tried: list[tuple[str, int, int]]
) -> None:
    assert [(one.what, len(one.cpus), one.threads) for one in sets_to_try(topology, leave)] == tried


def test_somebody_has_to_compute() -> None:
    with pytest.raises(UsageError, match="--leave-cores 4: there are 4 here"):
        sets_to_try(PLAIN, 4)


def test_the_system_is_asked(tmp_path: Path) -> None:
    for number, files in enumerate(
        [
            {"topology/physical_package_id": "0\n", "topology/core_id": "7\n", "cpu_capacity": "446\n"},
            {"topology/core_id": "8\n", "cpufreq/cpuinfo_max_freq": "1800000\n"},
            {},
        ]
    ):
        for name, text in files.items():
            path = tmp_path / f"cpu{number}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    assert read_topology([2, 0, 1], tmp_path) == (
        LogicalCpu(0, ("0", "7"), 446.0),
        LogicalCpu(1, ("", "8"), 1800000.0),
        LogicalCpu(2, ("", "2"), 0.0),
    )


def test_cpus_that_are_not_there_are_refused_and_nothing_changes() -> None:
    before = allowed_cpus()
    with pytest.raises(UsageError, match="CPU 4095 is not there"):
        confine({*before, 4095})
    confine(before)
    assert allowed_cpus() == before


def test_the_first_set_is_left_only_for_a_gain() -> None:
    sets = [CoreSet(str(n), frozenset({n}), 1) for n in range(3)]
    assert choose_set({sets[0]: 1.0, sets[1]: 0.96, sets[2]: 2.0}) is sets[0]
    assert choose_set({sets[0]: 1.0, sets[1]: 0.9, sets[2]: 0.8}) is sets[2]


def test_the_quickest_set_is_found_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (CoreSet(name, allowed_cpus(), threads) for name, threads in (("one", 1), ("two", 2)))
    assert find_quickest([one, two]) in (one, two)
    monkeypatch.setattr(thread_probe, "_timed", {one: 1.0, two: 0.5}.get)
    assert find_quickest([one, two]) is two
    monkeypatch.setattr(thread_probe, "_timed", {one: 1.0, two: None}.get)
    assert find_quickest([one, two]) is one


def test_the_quickest_set_is_kept_for_the_same_sets_and_software(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, two = (CoreSet(name, frozenset({0}), threads) for name, threads in (("one", 1), ("two", 2)))
    kept = tmp_path / "cores.json"
    monkeypatch.setattr(thread_probe, "_timed", {one: 1.0, two: 0.5}.get)
    assert find_quickest([one, two], kept, "1") is two
    monkeypatch.setattr(thread_probe, "_timed", {one: 0.5, two: 1.0}.get)
    assert find_quickest([one, two], kept, "1") is two
    assert find_quickest([two, one], kept, "1") is one  # other sets
    assert find_quickest([one, two], kept, "2") is one
    for damaged in (
        "",
        "{",
        "[]",
        '{"quickest": 0}',
        kept.read_text().replace('"quickest": 0', '"quickest": 2'),
    ):
        kept.write_text(damaged)
        monkeypatch.setattr(thread_probe, "_timed", {one: 1.0, two: 0.5}.get)
        assert find_quickest([one, two], kept, "2") is two
        monkeypatch.setattr(thread_probe, "_timed", pytest.fail)
        assert find_quickest([one, two], kept, "2") is two
        kept.write_text(kept.read_text().replace('"quickest": 1', '"quickest": 0'))
        assert find_quickest([one, two], kept, "2") is one


def test_nothing_is_started_if_there_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_probe, "_timed", pytest.fail)
    assert find_quickest([CoreSet("all", frozenset({0}), 1)]).what == "all"
