"""The figures of GDP's source, the graphs of our table, and what is said of both."""

from __future__ import annotations

import pytest
from benchmarks.learning_gdp import (
    KINDS,
    MACHINES,
    MOST_TASKS,
    PLACERS,
    UNTRAINED,
    Measured,
    Values,
    evaluated,
    tables,
    trained_on,
)
from benchmarks.learning_gdp_published import PUBLISHED, published_batch, published_ratio


def test_ratios_are_of_the_sources_seconds() -> None:
    assert published_ratio("expert", "cells") == pytest.approx(0.44 / 0.394)
    assert published_ratio("metis", "attention") is None
    assert published_ratio("expert") == pytest.approx(1.150, abs=5e-4)
    assert published_ratio("hdp") == pytest.approx(1.112, abs=5e-4)
    assert 0.95 < published_batch() < 1.0
    assert {row.kind for row in PUBLISHED.values()} == {*KINDS, ""}


def test_graphs_are_of_one_segment_and_none_is_trained_on_before() -> None:
    ones, others = evaluated(1), trained_on(1)
    assert [len(found) for found in ones.values()] == [1] * len(KINDS)
    for kind, (graph,) in ones.items():
        assert len(graph.tasks) <= MOST_TASKS and len(graph.machines) == MACHINES
        assert (graph.name == UNTRAINED) == (kind == UNTRAINED) and graph not in others
    assert UNTRAINED not in {graph.name for graph in others}


def test_tables_say_where_ours_differs_and_what_does_not_fit() -> None:
    kinds = [kind for kind in KINDS for _ in range(2)]
    ones: list[float | None] = [1.0] * len(kinds)
    short: dict[str, Values] = dict.fromkeys(PLACERS, ones) | {"single": [None, *ones[1:]]}
    learned: dict[str, Values] = {"GDP-one": ones, "HDP": [published_ratio("hdp")] * len(kinds)}
    learned["GDP-batch"] = [1.5] * len(kinds)
    text = "\n".join(tables(Measured(kinds, 15, 1, short | learned, {"GDP-one": 0.25}, 1.0, True)))
    assert "- expert takes 1.000 times as long as GDP-one here, and 1.150 times in the source: less." in text
    assert "- GDP-batch takes 1.500 times" in text and "- HDP takes" not in text
    assert "- single finds nothing that fits on 1 of the graphs." in text
    assert "| GDP-one | 1.000 (1.000 to 1.000) | 1.000 (1.000 to 1.000) | 1.000 | 25% |" in text
    assert "15 steps of 32 placements" in text and "| recurrent | 2 |" in text
