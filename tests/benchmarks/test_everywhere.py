"""Every model under every strategy: cells are tried on real agents and kept, and the page says what became of each."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.everywhere_report import BEGIN, END, Cell, Cells, Outcome, page, rewritten, summary
from benchmarks.models import Model, zoo_model

from benchmarks import everywhere
from edgepart.client.records import Answer
from edgepart.planner.errors import EdgepartError, Infeasible, InternalError, RunError, UsageError

RIGHT = Cell("vgg", "auto", 2, Outcome.RIGHT, used=("a", "b"), difference=2e-7, commit="abc", machine="a box")
ALONE = replace(RIGHT, devices=3, used=("a",), difference=0.0)
WRONG = Cell(
    "vgg",
    "tofu",
    2,
    Outcome.WRONG,
    used=("a",),
    difference=0.5,
    text="y | <z> differs",
    commit="def",
    machine="another",
)
REFUSED = replace(
    ALONE, model="flat", strategy="tofu", devices=2, outcome=Outcome.REFUSED, text="it is not served"
)
EXCUSED = replace(REFUSED, model="odd", excuse="its logits are equal")
UNPLANNED = replace(
    WRONG,
    model="odd",
    strategy="pipeline",
    outcome=Outcome.NOT_PLANNED,
    difference=None,
    text="nothing to cut",
    allowed=0.1,
)
FAILED = replace(UNPLANNED, strategy="auto", outcome=Outcome.FAILED, text="RunError: no")


def cells(*several: Cell) -> Cells:
    return {cell.key: cell for cell in several}


def test_the_page_has_a_line_for_each_model_and_names_what_is_not_right() -> None:
    every = cells(RIGHT, ALONE, WRONG, REFUSED, EXCUSED, UNPLANNED, FAILED)
    lines = page(every, ("auto", "tofu", "pipeline"), (2, 3), "2026-01-02").splitlines()
    assert lines[0] == "Last written on 2026-01-02. Measured at abc on a box; at def on another."
    assert "| vgg | 2, 1 | **wrong**, ? | ?, ? | 5e-01 |" in lines
    assert "| odd | **failed**, ? | refused, ? | -, ? | 0e+00 |" in lines
    assert "- vgg under tofu on 2: wrong: y \\| &lt;z> differs" in lines
    assert "- flat under tofu on 2: refused: it is not served" in lines
    assert "- refused, and no fault: its logits are equal (odd tofu 2)" in lines
    assert "- No plan, as the planner says: nothing to cut (odd pipeline 2)" in lines
    assert "- Computed in less than float32, where 0.1 is allowed: odd." in lines


def test_the_summary_counts_every_cell_once() -> None:
    (sentence,) = summary(cells(RIGHT, ALONE, WRONG, REFUSED, UNPLANNED, FAILED))
    assert sentence.startswith("3 models, 6 cells: 2 right (1 of them computed by more than one device), ")
    assert sentence.endswith("1 wrong, 1 refused, 1 not planned, 1 failed.")


def test_models_whose_right_answers_say_little_are_named() -> None:
    every = cells(replace(RIGHT, telling=True), replace(ALONE, model="flat", telling=False, allowed=1e9))
    assert "1 of the right ones say little" in "\n".join(summary(every))
    (line,) = [line for line in page(every, ("auto",), (2, 3), "").splitlines() if line.startswith("- ")]
    assert line.startswith("- Right answers say little") and line.endswith(": flat.")


def test_only_its_own_part_of_the_document_is_written() -> None:
    assert (
        rewritten(f"before\n{BEGIN}\nstale\n{END}\nafter", "new") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter"
    )
    with pytest.raises(InternalError, match="has 0 places"):
        rewritten("nothing", "new")


def test_what_went_well_is_not_tried_again_and_faults_are() -> None:
    known = cells(RIGHT, WRONG, UNPLANNED, EXCUSED)
    todo = dict(everywhere.wanted(["vgg", "odd", "new"], ["auto", "tofu", "pipeline"], [2], known))
    assert todo == {
        "vgg": [("tofu", 2), ("pipeline", 2)],
        "odd": [("auto", 2)],
        "new": [("auto", 2), ("tofu", 2), ("pipeline", 2)],
    }


@pytest.mark.nightly
@pytest.mark.processes
def test_cells_are_tried_on_real_agents_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, document = tmp_path / "everywhere.json", tmp_path / "page.md"
    document.write_text(f"{BEGIN}\n{END}\n")
    asked = [
        "--models",
        "ort_logreg_iris",
        "letters_small",
        "--strategies",
        "bbgrap",
        "pipeline",
        "--devices",
        "2",
    ]
    assert everywhere.main([*asked, "--json", str(kept), "--docs", str(document)]) == 0
    found = everywhere.read(kept)
    assert len(found) == 4 and all(cell.outcome is Outcome.RIGHT for cell in found.values())
    assert len(found["letters_small", "bbgrap", 2].used) == 2
    assert found["letters_small", "bbgrap", 2].telling
    assert "| letters_small | ?, ? | ?, ? | 2, ? |" in document.read_text()
    monkeypatch.setattr(everywhere, "LocalCluster", None)  # which nothing needs any more
    assert everywhere.main([*asked, "--json", str(kept)]) == 0
    assert "2 models, 4 cells: 4 right" in capsys.readouterr().out
    (first, *rest) = json.loads(kept.read_text())["cells"]
    first["outcome"], first["text"] = "wrong", "y differs"
    kept.write_text(json.dumps({"cells": [first, *rest]}))
    assert everywhere.read(kept)[first["model"], first["strategy"], 2].is_fault


class Agent:
    """Answers as it is told, in place of a client."""

    def __init__(self, answer: float = 0.5, why: str = "", fault: EdgepartError | None = None) -> None:
        self.answer, self.why, self.fault = np.full((3, 4, 5), answer, np.float32), why, fault
        self.deployed: list[str] = []

    async def deploy_files(self, name: str, *_: Any) -> dict[str, Any]:
        if isinstance(self.fault, UsageError | Infeasible):
            raise self.fault
        self.deployed.append(name)
        return {}

    async def infer(self, name: str, *_: Any, timeout_s: float) -> Answer:
        if self.fault:
            raise self.fault
        return Answer({"y": self.answer}, "", 0.0, 0, 0)

    async def undeploy(self, name: str) -> None:
        self.deployed.remove(name)

    async def get(self, path: str) -> dict[str, Any]:
        return {"devices": {"a": {"segments": 2}, "b": {"segments": 0}}, "why": self.why}


def became(agent: Agent) -> Cell:
    """Of a model that answers 0.5 throughout."""
    model = Model(
        "half", zoo_model("ort_sigmoid").path, {}, lambda seed: {"x": np.zeros((3, 4, 5), np.float32)}
    )
    clients: list[Any] = [agent] * 3
    found = asyncio.run(everywhere.tried(clients, everywhere.Case(model), "tofu", 2))
    assert not agent.deployed
    return found


def test_what_became_of_a_cell() -> None:
    assert (became(Agent()).outcome, became(Agent()).used) == (Outcome.RIGHT, ("a",))
    assert became(Agent()).telling is False
    wrong = became(Agent(answer=0.25))
    assert wrong.outcome is Outcome.WRONG and wrong.difference == 0.5
    assert wrong.text.startswith("asked through a, y differs by 0.5") and "asked through c" in wrong.text
    assert became(Agent(why="a plan on a, b is not served: y differs")).outcome is Outcome.REFUSED
    assert became(Agent(fault=Infeasible("too large"))).outcome is Outcome.NOT_PLANNED
    failed = became(Agent(fault=RunError("a device is odd")))
    assert (failed.outcome, failed.text) == (Outcome.FAILED, "RunError: a device is odd")
