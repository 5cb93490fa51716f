"""docs/tdl.md: its example runs as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "tdl.md"
DEVICE = {"kind": "k", "flops_per_s": 1e6, "memory_bytes_per_s": 1e6, "memory_bytes": 1e9}
CLUSTER = {
    "devices": [DEVICE | {"name": name} for name in "ab"],
    "default_link": {"bytes_per_s": 1e9, "latency_s": 1e-6},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the example; the model is made."""
    made = tmp_path_factory.mktemp("example")
    for name, text in re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (made / name).write_text(text)
    (made / "cluster.json").write_text(json.dumps(CLUSTER))
    subprocess.run([sys.executable, "make-model.py"], cwd=made, check=True)
    return made


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "edgepart", *arguments, "model.onnx", "--operators", "my-ops.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_way_to_divide_the_example_gives_the_same_answer(folder: Path) -> None:
    found = json.loads(run(folder, "check", "--json"))
    assert found["equal"] and found["axes"] == ["batch", "sequence", "feature"]
    assert all(way["devices_used"] > 1 and not way["faults"] for way in found["ways"])


def test_the_example_is_planned_over_two_devices(folder: Path) -> None:
    found = json.loads(run(folder, "plan", "--cluster", "cluster.json", "--json"))
    assert [device["layers"] for device in found["devices"].values()] == [
        {"out": "batch 0:1"},
        {"out": "batch 1:2"},
    ]
