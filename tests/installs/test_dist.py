"""Wheel and sdist in empty environments, of each Python that is here: make a cluster, run its agent, deploy, ask."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.installs.machines import ROOT, doubling, only

pytestmark = pytest.mark.installs
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
CASES = [*((version, "*.whl") for version in PYTHONS), ("3.11", "*.tar.gz")]


def interpreter(version: str) -> str | None:
    """The path of this Python on this machine: the program `pythonX.Y`, or one of pyenv's."""
    places = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    for candidate in (*map(str, places), f"python{version}"):
        if shutil.which(candidate) is None:
            continue
        tried = subprocess.run(
            [candidate, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True
        )
        if tried.returncode == 0:
            return tried.stdout.strip()
    return None


@pytest.fixture
def command(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the command of an environment into which pip has just installed a file."""
    version, pattern = request.param
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    subprocess.run([python, "-m", "venv", str(tmp_path / "env")], check=True)
    pip = (str(tmp_path / "env/bin/pip"), "install", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, str(only(pattern))], check=True, cwd=tmp_path)
    return tmp_path / "env/bin/edgepart"


@pytest.fixture
def state(command: Path, tmp_path: Path) -> Iterator[Path]:
    """Yield the state directory of an agent that runs."""
    folder = tmp_path / "state"
    settings = tmp_path / "agent.toml"
    settings.write_text('listen = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\nmdns = false\nthreads = 1\n')
    run(command, "init", "--state", folder)
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(
        [command, "agent", "--config", settings, "--state", folder],
        env=clean(),
        stdout=log,
        stderr=log,
        cwd=tmp_path,
    )
    try:
        while not (folder / "agent.json").exists():
            assert process.poll() is None, (tmp_path / "log").read_text()
        yield folder
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        log.close()


def clean() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "EDGEPART"))}


def run(*words: str | Path) -> str:
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, env=clean(), cwd="/", timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("command", CASES, indirect=True, ids=str)
def test_from_an_empty_environment_to_an_answer(command: Path, state: Path, tmp_path: Path) -> None:
    doubling(tmp_path / "double.onnx")
    np.save(tmp_path / "x.npy", np.array([1, 2, 3, 4.5], np.float32))
    run(command, "deploy", tmp_path / "double.onnx", "--name", "double", "--state", state)
    run(
        command,
        "infer",
        "double",
        "--input",
        tmp_path / "x.npy",
        "--output",
        tmp_path / "y.npz",
        "--state",
        state,
    )
    with np.load(tmp_path / "y.npz") as outputs:
        assert outputs["y"].tolist() == [2, 4, 6, 9]
    assert str(ROOT) not in run(
        command.with_name("python"), "-c", "import edgepart; print(edgepart.__file__)"
    )
