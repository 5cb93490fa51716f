"""`make learned`: its rows, those of further seeds and of the best known among them, and what placing again reuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from benchmarks.learned import Cell, cell_row, replanning, report, without_last
from benchmarks.learned_known import find_best_known

from benchmarks import learned, learned_known
from edgepart.planner.errors import NotInstalled
from edgepart.planner.learning.training.families import FAMILIES
from edgepart.planner.placing.problem.networks import NeuralNetwork
from edgepart.planner.placing.problem.schedule import Asked, PlacementFound
from edgepart.planner.placing.problem.workload import Workload
from tests.planner.placing.asking import found_by
from tests.planner.placing.untrained import untrained
from tests.planner.placing.workloads import workload

CELL = Cell("small", ("inception", "cells"), 16, (2, 3))


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> list[NeuralNetwork]:
    monkeypatch.setattr(learned, "SAMPLES", 4)
    monkeypatch.setattr(learned, "CLIMB_S", 0.0)
    one = untrained("learned")
    return [one, *(replace(one, card=replace(one.card, seed=seed)) for seed in (1, 2))]


def test_each_further_seed_has_its_rows(networks: list[NeuralNetwork]) -> None:
    network, *others = networks
    alone, row = cell_row(CELL, network, 3), cell_row(CELL, network, 3, others)
    further = [name for name in row if name not in alone]
    what = ("greedy / m-etf", "greedy / heft", "best of 64", "climbed / climbed")
    assert further == [f"seed {seed}: {name}" for seed in (1, 2) for name in what]
    # The same network under another seed, without climbing, finds the same.
    for name in what[:3]:
        assert row[f"seed 1: {name}"] == row[name] == alone[name]


def test_the_report_has_every_row_and_every_way_to_place_again(
    networks: list[NeuralNetwork], capsys: pytest.CaptureFixture[str]
) -> None:
    took = replanning(networks[0], 4, tasks=16)
    assert took["first"] and len(took["first"]) == len(took["again"])
    large: dict[str, Any] = {"family": "cells", "tasks": 1000}
    large |= {name + unit: 1.0 for name in ("m-etf", "heft", "learned") for unit in ("", " s")}
    found = {
        "cells": [cell_row(CELL, networks[0], 2, networks[1:])],
        "large": [large],
        "replanning_s": {"compiled": took, "not compiled": took},
    }
    report(found, networks, markdown=True)
    printed = capsys.readouterr().out
    for words in (
        "seed 2, trained on",
        "| seed 2: climbed / climbed |",
        "| not compiled, its graph placed before |",
    ):
        assert words in printed


def test_placing_again_shares_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(learned, "find", lambda graph, *_: seen.append(graph))
    replanning(untrained("learned"), len(FAMILIES), tasks=16)
    for whole, first, again in zip(*(seen[n::3] for n in range(3)), strict=True):
        assert first == again == without_last(whole)
        assert again.graph is whole.graph and first.graph is not whole.graph


def test_what_is_best_known_is_below_all_others_and_above_the_bound(
    networks: list[NeuralNetwork],
) -> None:
    network, *others = networks
    without, row = (cell_row(CELL, network, 3, others, known_s) for known_s in (0.0, 0.2))
    assert set(row) - set(without) == {
        "best known",
        "lower bound",
        "best known / heft",
        "lower bound / heft",
    }
    mean, low, high = row["best known / heft"]
    assert low <= mean <= high and 0 < row["lower bound / heft"][0] <= mean
    assert all(mean <= row[name][0] for name in ("greedy / heft", "seed 1: greedy / heft"))


def test_all_searches_go_on_from_the_best_and_without_or_tools_only_climbing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = workload([(2.0, 1.0), (2.0, 1.0)], [])
    starts = [found_by(name, pair) for name in ("expert", "heft")]
    best = min(one.value_s for one in starts)
    given = list[tuple[str, float]]()

    def refuse(graph: Workload, name: str, asked: Asked) -> PlacementFound:
        assert asked.start is not None
        given.append((name, asked.start.value_s))
        if name == "moirai":
            raise NotInstalled("OR-tools is not there")
        return starts[0]

    monkeypatch.setattr(learned_known, "find", refuse)
    known = find_best_known(pair, starts, 1.0)
    assert given == [("climb", best), ("moirai", best), ("climb", best)]
    assert known.value_s == best and 0 < known.bound_s <= best
