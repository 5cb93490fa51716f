"""`make learning`: the tables and the drawing say what was found, and go where the page has their place."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.learning_placeto import (
    DRAWN,
    MACHINES,
    POINTS,
    QUICK,
    Results,
    draw_equal,
    drawing,
    places_table,
    rewards_table,
    text,
)

from benchmarks import learning
from edgepart.planner.errors import InternalError

WAYS = (*DRAWN, "Placeto, untrained", *QUICK)
FOUND = Results(
    curves={"at each step": [[2.0, 1.5, 1.0, 0.5]] * 2, "at the end": [[2.0, 2.0, 2.0, 1.0]] * 2},
    makespans={name: [0.5 + number / 10, 1.0] for number, name in enumerate(WAYS)},
    sampled={"Placeto, optimised": [10.0, 30.0], "RNN, optimised": [4.0, 6.0]},
    updates={"family": 9, "graph": 5, "reward": 8},
)


def rows(table: str) -> list[list[str]]:
    return [re.split(r" \| ", line.strip("| ")) for line in table.splitlines() if line.startswith("| ")]


def test_rewards_are_compared_over_the_same_trainings() -> None:
    heads, _, *lines = rows(rewards_table(FOUND))
    assert heads[2:] == ["to 2", "to 4", "to 6", "to 8 updates"] and len(heads) == 2 + POINTS
    assert lines == [
        ["at each step", "2", "2.000", "1.500", "1.000", "0.500"],
        ["at the end", "2", "2.000", "2.000", "2.000", "1.000"],
    ]
    assert "0.500 (0.500 to 0.500)" in rewards_table(FOUND)


def test_placers_are_listed_best_first() -> None:
    _, _, *lines = rows(places_table(FOUND))
    assert [line[0] for line in lines] == list(WAYS)
    assert lines[0][1] == "2" and lines[0][3:6] == ["0.500", "0.750", "1.000"]
    assert [line[0] for line in lines if line[-1] in ("20", "5")] == ["Placeto, optimised", "RNN, optimised"]


def test_distributions_are_drawn_as_steps() -> None:
    drawn = ElementTree.fromstring(drawing(FOUND.makespans, DRAWN))
    paths = [one.get("d", "") for one in drawn.iter("{http://www.w3.org/2000/svg}path")][1:]
    assert len(paths) == len(DRAWN)
    for path in paths:
        heights = [float(height) for height in re.findall(r"V([\d.]+)", path)]
        assert len(heights) == 2 and heights == sorted(heights, reverse=True)


def test_drawn_machines_are_equal() -> None:
    for graph in draw_equal(["unet", "inception"], 3):
        assert all(len(set(task.compute_s)) == 1 for task in graph.tasks)
        assert len(graph.machines) == MACHINES and {one.memory_bytes for one in graph.machines} == {
            float("inf")
        }


def test_the_tables_go_to_their_place() -> None:
    page = "# Page\n<!-- learned placeto -->\nold\n<!-- end -->\nafter\n"
    made = learning.written(page, "placeto", "make learning", text(FOUND, 1))
    assert "old" not in made and made.endswith("<!-- end -->\nafter\n") and "*`make learning`, commit" in made
    with pytest.raises(InternalError):
        learning.written("# Page\n", "placeto", "make learning", "")


def test_the_page_has_a_place_for_every_report() -> None:
    page = (Path(__file__).parents[2] / "docs" / "learning.md").read_text()
    for name in learning.REPORTS:
        assert page.count(f"<!-- learned {name} -->") == 1
