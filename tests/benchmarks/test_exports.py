"""Models that torch exports are made where it is installed; elsewhere those that were made before can be had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.models import exported
from benchmarks.models.builder import Builder
from benchmarks.models.model import place_of, save
from benchmarks.models.zoo import can_be_had, zoo_model

from benchmarks import exports

NAME = "torch_yolos"


@pytest.fixture(autouse=True)
def without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    without = {NAME: replace(exported.EXPORTS[NAME], packages=("no_such_package",))}
    for module in ("exported", "zoo"):
        monkeypatch.setattr(f"benchmarks.models.{module}.EXPORTS", without)
    monkeypatch.setattr(exports, "EXPORTS", without)


def test_what_is_missing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert not can_be_had(NAME)
    assert exports.main([]) == 0
    shown = capsys.readouterr()
    assert f"{NAME} needs no_such_package: `make exports`" in shown.err and not shown.out


def test_one_that_was_made_before_can_be_had() -> None:
    b = Builder("made_before")
    b.output(b.add("Neg", b.input("x", (2, 3))), "y")
    save(b.model(), place_of(NAME, f"{NAME}.onnx"))
    assert can_be_had(NAME)
    assert zoo_model(NAME).inputs(0)["x"].shape == (2, 3)


def test_an_export_that_fails_is_said_and_no_end_of_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(name: str) -> None:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(exports, "zoo_model", failing)
    assert exports.main([NAME]) == 1
    assert f"{NAME} is not made: no such operator" in capsys.readouterr().err
