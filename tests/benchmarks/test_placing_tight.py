"""Graphs of the benchmark where memory is tight: as large and as tight as they say, and comparable with one search."""

from __future__ import annotations

import pytest
from benchmarks.placing_tight import compare, show, tight_workload

from benchmarks import placing_tight

pytest.importorskip("ortools", reason="moirai needs OR-tools, of the extra [exact]")


def test_a_graph_has_its_size_its_branches_and_its_memory() -> None:
    made = tight_workload(3, 0.4)
    total = sum(task.memory_bytes for task in made.tasks)
    assert 140 <= len(made.order) < 175 and made == tight_workload(3, 0.4) != tight_workload(4, 0.4)
    assert all(machine.memory_bytes == pytest.approx(0.4 * total) for machine in made.machines)
    assert max(map(len, made.after)) > 1 and max(map(len, made.before)) > 1


def test_rows_are_multiples_of_the_one_search(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(placing_tight, "MOST_SEARCH_S", 0.2)
    quick, plain, ours, default = made = list(compare(0, 0.0, [0.1, None], 0.1))
    assert plain.times == 1.0 and quick.times >= 1.0
    assert ours.makespan_s <= quick.makespan_s and ours.times == ours.makespan_s / plain.makespan_s
    assert default.makespan_s <= quick.makespan_s and default.who == "moirai, by default"
    show(made, markdown=True)
    assert "| moirai, by default |" in capsys.readouterr().out
