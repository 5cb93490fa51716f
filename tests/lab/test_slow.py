"""The emulation of slow devices: in a process of its own, as for an agent, and with a fake clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgepart.agent.host.system import thread_times
from edgepart.cli.emulation import sitecustomize as slow

SLOW = Path(slow.__file__).parent

SCRIPT = """
import json, sys, time
early = "onnxruntime" in sys.modules
slept = []
time.sleep = slept.append
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [256, 256]) for name in "xy"]
graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "g", infos[:1], infos[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(model.SerializeToString(), options)
x = np.eye(256, dtype=np.float32)
equal = bool((session.run(None, {"x": x})[0] == x).all())
binding = session.io_binding()
binding.bind_cpu_input("x", x)
binding.bind_output("y")
session.run_with_iobinding(binding)
print(json.dumps({"early": early, "equal": equal, "slept": slept, "chained": getattr(sys, "chained", 0)}))
"""


def run_script(folders: list[Path], factor: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != slow.VARIABLE}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    if factor is not None:
        environment[slow.VARIABLE] = factor
    return subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_runs_are_stretched_in_a_process_and_its_other_sitecustomize_is_run(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.chained = getattr(sys, 'chained', 0) + 1\n")
    done = run_script([SLOW, tmp_path], "1000")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert not found["early"]
    assert found["equal"]
    assert found["chained"] == 1
    assert len(found["slept"]) == 2  # run and run_with_iobinding
    assert min(found["slept"]) > 0


def test_without_the_variable_nothing_is_changed() -> None:
    done = run_script([SLOW], None)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["slept"] == []


@pytest.mark.parametrize("factor", ["8", ""])
def test_a_slow_device_is_not_told_how_long_its_threads_wait(factor: str) -> None:
    script = "import os; from edgepart.agent.measure.cpu_wait import thread_times; print(len(thread_times([os.getpid()])))"
    path = os.pathsep.join([str(SLOW), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": path, slow.VARIABLE: factor},
        capture_output=True,
        text=True,
        check=True,
    )
    told = 0 if factor else len(thread_times([os.getpid()]))
    assert (int(done.stdout) > 0) == (told > 0)


@pytest.mark.parametrize("factor", ["fast", "0.5", "nan", "inf", "-8"])
def test_a_factor_that_is_none_ends_the_process(factor: str) -> None:
    with pytest.raises(SystemExit, match="expected a number from 1 up"):
        slow.factor_of(factor)


def test_a_wrong_factor_is_not_passed_over_by_the_interpreter() -> None:
    done = run_script([SLOW], "fast")
    assert done.returncode != 0
    assert "EDGEPART_LAB_SLOW='fast'" in done.stderr


def test_the_smallest_cpu_time_counts_and_time_that_passed_is_not_waited_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(wall=0.0, cpu=0.0)
    slept: list[float] = []
    fake = SimpleNamespace(monotonic=lambda: clock.wall, thread_time=lambda: clock.cpu, sleep=slept.append)
    monkeypatch.setattr(slow, "time", fake)

    def run(session: object, wall: float, cpu: float) -> str:
        clock.wall += wall
        clock.cpu += cpu
        return "outputs"

    stretched, session = slow.stretch(run, lambda: 8.0), SimpleNamespace()
    assert stretched(session, 1.0, 1.0) == "outputs"
    stretched(session, 5.0, 2.0)  # disturbed: counts as 1 s of CPU
    stretched(session, 9.0, 1.0)  # already late: does not sleep
    stretched(session, 0.5, cpu=0.5)
    stretched(SimpleNamespace(), 2.0, 2.0)  # each session has its own smallest time
    assert slept == [7.0, 3.0, 3.5, 14.0]


def test_a_first_run_is_made_several_times_and_the_smallest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(wall=0.0, cpu=0.0)
    slept: list[float] = []
    fake = SimpleNamespace(monotonic=lambda: clock.wall, thread_time=lambda: clock.cpu, sleep=slept.append)
    monkeypatch.setattr(slow, "time", fake)
    takes = [5.0, 2.0, 3.0, 4.0, 4.0]
    told: list[tuple[float, float]] = []

    def run(_: object) -> int:
        seconds = takes.pop(0)
        clock.wall += seconds
        clock.cpu += seconds
        return len(takes)

    stretched = slow.stretch(run, lambda: 8.0, lambda *span: told.append(span), first_runs=3)
    session = SimpleNamespace()
    assert stretched(session) == 1  # the fourth run, after three of which the second was the shortest
    assert stretched(session) == 0
    assert slept == [12.0, 12.0]
    assert told == [(10.0, 14.0), (14.0, 18.0)]  # this clock does not advance during a sleep


def test_runs_are_told_to_a_file(tmp_path: Path) -> None:
    told = slow.telling(str(tmp_path / "runs"))
    assert told is not None
    told(1.5, 2.5)
    told(3.0, 3.25)
    assert (tmp_path / "runs").read_text().split() == ["1.500000", "2.500000", "3.000000", "3.250000"]
    assert slow.telling("") is None


def test_a_factor_in_a_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "factor"
    file.write_text("8")
    source = slow.source_of(f"@{file}")
    assert source() == 8.0
    file.write_text("2.5\n")
    assert source() == 2.5
    assert slow.source_of("4")() == 4.0
    with pytest.raises(SystemExit, match="expected a number from 1 up"):
        slow.source_of("-4")
