"""`make learned`: its rows, those of further seeds among them, and what placing again reuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from benchmarks.learned import Cell, cell_row, replanning, report, without_last

from benchmarks import learned
from edgepart.planner.learning.training.families import FAMILIES
from edgepart.planner.placing.problem.networks import NeuralNetwork
from tests.planner.placing.untrained import untrained

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
