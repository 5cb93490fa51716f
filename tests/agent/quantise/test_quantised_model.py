"""Quantised models are made once, kept, tried, and refused where answers are too far off."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from edgepart.agent.planwork.model_process import stored_digest
from edgepart.agent.quantise import quantised_model
from edgepart.agent.quantise.quantised_model import IN_USE_S, KEPT, make, quantise
from edgepart.agent.quantise.work import DATA, MODEL, do_apart
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import ModelError, UsageError
from tests.agent.quantise.models import mixed, saved

INT8 = DeployOptions(shapes={"ids": (4,)}, weights="int8")


def refuse_to_work(*_: object, **__: object) -> None:
    raise AssertionError("this was done before")


def test_a_model_is_made_and_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, told = saved(mixed(), tmp_path / "m.onnx"), list[str]()

    def run(options: DeployOptions, given: Path | None = None) -> quantised_model.QuantisedModel:
        return quantise(
            model, {"m.onnx": model}, options, tmp_path / "cache", given, lambda stage, *_: told.append(stage)
        )

    found = run(INT8)
    assert told == ["making int8 weights", "comparing answers with those of the model as it was"]
    assert found.files == {MODEL: found.graph, DATA: found.graph.with_name(DATA)}
    about = found.options.quantised
    assert about is not None and about.source == stored_digest(model, [], INT8)
    assert 0 < about.error < 0.1 and about.maker.startswith("ONNX Runtime 1.")
    assert "int8 weights (made by ONNX Runtime 1." in found.note and "became" in found.note

    with monkeypatch.context() as patched:
        patched.setattr(quantised_model, "do_apart", refuse_to_work)
        assert run(INT8) == found
        with pytest.raises(AssertionError):
            run(DeployOptions(shapes={"ids": (5,)}, weights="int8"))
        with pytest.raises(
            ModelError, match=r"more than --max-error allows \(0.001 %\).* Nothing was deployed"
        ):
            run(DeployOptions(shapes={"ids": (4,)}, weights="int8", max_error=1e-5))
    given = tmp_path / "given.npz"
    np.savez(given, ids=np.array([1, 2]))
    mine = run(INT8, given).options.quantised
    assert mine is not None and mine.inputs == "the input that was given"
    assert told[3:] == ["comparing answers with those of the model as it was"]


def test_errors_of_the_process_are_the_callers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--weights 'int2'"):
        make(saved(mixed(), tmp_path / "m.onnx"), "int2", tmp_path / "cache", lambda *_: None)
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"bad\.onnx"):
        do_apart("write", "quantising", model=tmp_path / "bad.onnx", kind="int8", folder=tmp_path)
    with pytest.raises(ModelError, match=r"trying it ended its process \(KeyError.*Nothing was deployed"):
        do_apart("no such work", "trying it")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 looks into the user's folder first")
def test_modules_in_the_users_folder_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    (tmp_path / "onnx.py").write_text("raise SystemExit('the wrong onnx')")
    monkeypatch.chdir(tmp_path)
    do_apart("write", "quantising", model=saved(mixed(), tmp_path / "m.onnx"), kind="int8", folder=tmp_path)
    assert (tmp_path / MODEL).is_file()


def test_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    now = 1e9
    for number in range(KEPT + 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / MODEL).touch()
        os.utime(folder, (now - number * IN_USE_S, now - number * IN_USE_S))
    for name, age_s in (("making-old", IN_USE_S + 1), ("making-new", 1)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (now - age_s, now - age_s))
    quantised_model._prune(tmp_path, tmp_path / "5", now)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"0", "1", "2", "5", "making-new"}, "Folder 5 is the one that is used now."
    quantised_model._prune(tmp_path, tmp_path / "5", now - KEPT * IN_USE_S)
    assert {path.name for path in tmp_path.iterdir()} == left, "What was used lately stays."
