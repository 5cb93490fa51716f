"""`edgepart train` as a person types it: a network that `edgepart plan` can use, and what is refused at once."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import onnx
import pytest

from edgepart.cli import train as command
from edgepart.cli.main import main
from edgepart.planner.learning.training import trainers
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.learning.training.trainers import Trained, TrainingAsked, TrainingPoint
from edgepart.planner.placing.problem.networks import read_card
from tests.planner.placing.workload_files import workload_document

Run = Callable[..., tuple[int, str, str]]
SMALL = ("--graphs", 1, "--tasks", 20, "--machines", 2, "--families", "branches")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def train(*arguments: object, command: str = "train") -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            main([command, *map(str, arguments)])
            status = 0
        except SystemExit as ended:
            status = int(ended.code or 0)
        return status, *capsys.readouterr()

    return train


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "w.json"
    path.write_text(json.dumps(workload_document(draw_workload("branches", Random(3), 20, 2))))
    return path


def test_what_is_trained_guides_a_plan(run: Run, tmp_path: Path, workload: Path) -> None:
    out = tmp_path / "placeto.onnx"
    status, text, _ = run("--placer", "placeto", "--out", out, "--steps", 2, *SMALL, "--json")
    document = json.loads(text)
    assert status == 0 and document["updates"] == 2 == len(document["curve"])
    assert document["unseen"] and set(document["compared"]) == {"branches", "cells"}
    for row in document["compared"].values():
        assert row["graphs"] == 8 and all(row[name] > 0 for name in ("trained", "untrained", "m-etf"))
    kept = {one.key: one.value for one in onnx.load(out).metadata_props}
    card = read_card(kept, "out")
    assert card.placer == "placeto" and card.machines == 2 and card.families == ("branches",)
    assert card.scores["cells: trained"] == document["compared"]["cells"]["trained"]
    assert card.command.startswith(
        f"edgepart train --placer placeto --out {out} --seed 0 --steps 2 --machines 2"
    )
    assert "--minutes" not in card.command and card.trained_on
    status, text, _ = run(workload, "--strategy", "placeto", "--network", out, command="plan")
    assert status == 0 and "a policy trained on branches" in " ".join(text.split())


def test_a_workload_alone_is_what_it_learns_and_is_compared_on(
    run: Run, tmp_path: Path, workload: Path
) -> None:
    out = tmp_path / "placeto.onnx"
    status, text, _ = run("--placer", "placeto", "--out", out, "--steps", 1, "--workload", workload)
    assert status == 0 and out.exists()
    said = " ".join(text.split())
    assert "trained on 1 graphs (branches) by 1 updates" in said
    assert "on graphs that it was trained on, as there are no others" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--placer", "heft"], "'heft'"),
        (["--families", "branches,trees"], "'trees'"),
        (["--machines", 0], "--machines"),
        (["--minutes", 0], "--minutes"),
        (["--graphs", 0], "--graphs"),
        (["--steps", 0], "--steps"),
        (["--out", "network.txt"], "ends with .onnx"),
        (["--out", "no/such/folder/n.onnx"], "a folder that exists"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(
    run: Run, tmp_path: Path, options: list[object], said: str
) -> None:
    given = {
        "--placer": "placeto",
        "--out": tmp_path / "n.onnx",
        **dict(zip(options[::2], options[1::2], strict=True)),
    }
    status, _, err = run(*(part for pair in given.items() for part in pair))
    assert status == 2 and said in err
    assert not list(tmp_path.iterdir())


def test_a_place_where_nothing_can_be_written_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**where: object) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(command, "TemporaryDirectory", refuse)
    status, _, err = run("--placer", "placeto", "--out", tmp_path / "n.onnx")
    assert status == 2 and "n.onnx: cannot be written (Permission denied)" in err


def test_without_torch_it_says_what_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    status, text, err = run("--placer", "placeto", "--out", tmp_path / "n.onnx", "--json")
    assert status == 2 and "edgepart[learn]" in err and json.loads(text)["kind"] == "NotInstalled"


def test_a_broken_workload_is_named(run: Run, tmp_path: Path, workload: Path) -> None:
    out = tmp_path / "n.onnx"
    broken = tmp_path / "broken.json"
    broken.write_text('{"schema": 1}')
    for path, said in ((broken, "'schema'"), (tmp_path / "none.json", "none.json: cannot be read")):
        status, _, err = run("--placer", "placeto", "--out", out, "--workload", path)
        assert status == 1 and said in err
    status, _, err = run("--placer", "placeto", "--out", out, "--workload", workload, "--machines", 3)
    assert status == 2 and "has 2 machines, and the network is to place on 3" in err
    assert not out.exists()


def pressing(times: int) -> Callable[[TrainingAsked], Trained]:
    """A training during whose second update Ctrl-C is pressed."""

    def train(asked: TrainingAsked) -> Trained:
        real = import_module("edgepart.planner.learning.training.placeto").train

        def tell(point: TrainingPoint) -> None:
            if point.step == 2:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)

        found: Trained = real(
            TrainingAsked(asked.share_over, asked.families, asked.graphs, asked.tasks, machines=2, tell=tell)
        )
        return found

    return train


def test_ctrl_c_keeps_what_was_learned(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainers, "trainer", lambda name: pressing(1))
    out = tmp_path / "n.onnx"
    before = signal.getsignal(signal.SIGINT)
    status, text, err = run("--placer", "placeto", "--out", out, "--steps", 1000, *SMALL, "--json")
    assert status == 0 and json.loads(text)["updates"] == 2 and "press Ctrl-C again" in err
    assert out.exists() and signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_pressed_twice_writes_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainers, "trainer", lambda name: pressing(2))
    status, _, err = run("--placer", "placeto", "--out", tmp_path / "n.onnx", "--steps", 1000, *SMALL)
    assert status == 130 and "press Ctrl-C again" in err
    assert not list(tmp_path.iterdir())


def test_it_says_how_far_it_is(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "REMINDER_S", 0.0)
    _, _, err = run("--placer", "placeto", "--out", tmp_path / "n.onnx", "--steps", 2, *SMALL)
    assert "placeto has trained for" in err and "50% of the whole; 1 updates; loss" in err
