"""Engine probes: each engine is checked and calibrated in a process of its own, and what it does there is said. Real
processes with an engine that is made up; its faults are real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgepart import __version__
from edgepart.agent.measure import engine_probe_process, probe_models
from edgepart.agent.measure.calibration import calibrate
from edgepart.agent.measure.engine_probe import _difference
from edgepart.agent.measure.engine_probe_process import (
    MeasuredEngines,
    measure_engines,
)
from edgepart.agent.measure.probe_models import FAMILIES, MOVES, Trial
from edgepart.planner.devices.cluster import Device
from edgepart.planner.errors import UsageError
from tests.lab_engine import LAB, give_lab_engine

FIGURES = {
    "families": {"conv": 2e9},
    "moves": {"elementwise/2097152": 3e9},
    "kernel_s": 1e-6,
    "run_s": 2e-6,
    "copy_s": 0.0,
    "copy_bytes_per_s": None,
}
DEVICE = Device("box", "kind", 1e9, 1e9, 1e9, segment_s=1e-3)


def measure(
    kept: Path | None = None, names: tuple[str, ...] = (LAB,), made_with: str = "1"
) -> MeasuredEngines:
    return measure_engines(DEVICE, names, kept, made_with)


def test_an_engine_that_passes_is_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    give_lab_engine(monkeypatch, "lab,lacks=Softmax|QLinearConv")
    (found,) = measure().engines
    assert (found.name, found.provider, found.precision) == (LAB, "LabExecutionProvider", "float32")
    assert found.families.keys() == FAMILIES.keys() - {"int8_conv"}
    assert found.moves.keys() == {*MOVES, *probe_models.large_moves(), "border"} - {"softmax"}
    assert found.flops_per_s == found.families["conv"]
    assert found.segment_s >= DEVICE.segment_s
    assert (found.copy_s, found.copy_bytes_per_s, found.memory_bytes) == (0.0, None, None)


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ("lab,crashes=Neg", "it crashes: it ended its process with signal SIGABRT when it was checked"),
        ("lab,hangs=Conv", "it hangs: it gave no answer within 3 s when it was checked"),
        ("lab,lies=Tanh", "it lies: its answer to a Tanh is off by"),
    ],
)
def test_an_engine_that_does_not_pass_is_left_out_and_it_is_said_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: str, why: str
) -> None:
    monkeypatch.setattr(engine_probe_process, "MOST_TRIAL_S", 3.0)
    give_lab_engine(monkeypatch, engine)
    found = measure(tmp_path / "engines.json")
    assert not found.engines and found.left_out[LAB].startswith(why)
    monkeypatch.setattr(engine_probe_process, "_probe", lambda *_: FIGURES)
    assert measure(tmp_path / "engines.json") == found  # It is not tried at every start.
    assert measure(tmp_path / "engines.json", made_with="2").engines


def test_a_measurement_is_kept_until_something_else_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept, times = tmp_path / "engines.json", [0]

    def probe(kind: Any, threads: int, progress: Any) -> dict[str, Any]:
        times[0] += 1
        return FIGURES

    monkeypatch.setattr(engine_probe_process, "_installed_providers", lambda: ["LabExecutionProvider"])
    monkeypatch.setattr(engine_probe_process, "_probe", probe)
    first = measure(kept)
    assert measure(kept) == first and times == [1]
    document = json.loads(kept.read_text())
    document["engines"][LAB]["families"]["conv"] = 1.0
    kept.write_text(json.dumps(document))
    assert measure(kept).engines[0].flops_per_s == 1.0
    assert measure(kept, made_with="2") == first and times == [2]


def test_what_is_installed_is_asked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listed: list[list[str]] = [["CPUExecutionProvider"], ["LabExecutionProvider"]]
    monkeypatch.setattr(engine_probe_process, "_installed_providers", lambda: listed.pop(0))
    monkeypatch.setattr(engine_probe_process, "_probe", lambda *_: FIGURES)
    kept = tmp_path / "engines.json"
    for _ in "ab":
        assert not measure(kept, ("auto",)).engines
        with pytest.raises(UsageError, match="lab"):
            measure(kept)
    assert [measure(kept, made_with="2").engines[0].name for _ in "ab"] == [LAB, LAB] and not listed


@pytest.mark.parametrize(
    "kept", ["", "{", "[]", '{"engines": 1}', '{"engines": {"lab": 1}}', '{"engines": {"lab": {}}}']
)
def test_a_damaged_file_is_measured_again_or_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kept: str
) -> None:
    file = tmp_path / "engines.json"
    made_for = {"version": __version__, "made_with": "1", "kind": "kind", "threads": 1}
    file.write_text(json.dumps(made_for | json.loads(kept)) if kept.startswith('{"') else kept)
    asked: list[str] = []

    def probe(kind: Any, threads: int, progress: Any) -> dict[str, Any]:
        asked.append(kind.name)
        return {"outcome": "fails", "why": "no"}

    monkeypatch.setattr(engine_probe_process, "_installed_providers", lambda: ["LabExecutionProvider"])
    monkeypatch.setattr(engine_probe_process, "_probe", probe)
    assert measure(file).left_out == {LAB: "it fails: no"}
    assert asked == [LAB]


def test_a_box_whose_onnxruntime_has_nothing_else_has_no_engines() -> None:
    found = measure(names=("auto",))
    assert found.engines == ()


def test_nothing_is_started_if_only_the_cpu_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_probe_process, "_installed_providers", pytest.fail)
    assert measure(names=("cpu",)) == MeasuredEngines()


def test_an_engine_that_is_asked_for_and_missing_ends_the_start() -> None:
    with pytest.raises(UsageError, match=r"edgepart\[gpu\]"):
        measure(names=("cuda",))


def test_a_trial_that_cannot_be_run_is_a_family_that_is_missing() -> None:
    def best_s(trial: Trial) -> float | None:
        return None if trial in (FAMILIES["gemm"], MOVES["softmax"]) else 1e-3

    found = calibrate(best_s, MOVES)
    assert found.families.keys() == FAMILIES.keys() - {"gemm"}
    assert found.moves.keys() == {*MOVES, "border"} - {"softmax"}
    nothing = calibrate(lambda trial: None, MOVES)
    assert not nothing.families and not nothing.moves


def test_what_is_a_difference() -> None:
    import numpy as np

    one = np.array([1.0, -4.0], np.float32)
    assert _difference(one, one) == 0
    assert _difference(one + np.float32(1), one) == 0.25
    assert _difference(one[:1], one) == _difference(one.astype(np.float64), one) == float("inf")
    assert _difference(one * np.nan, one) == float("inf")
    assert _difference(one * 0 + 1, one * 0) == float("inf")
