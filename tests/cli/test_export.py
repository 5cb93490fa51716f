"""`edgepart export MODEL` as a person types it; and what it wrote, run by processes that know nothing of edgepart."""

from __future__ import annotations

import ast
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.models.light import light

import edgepart
from edgepart.agent.verify.reference import run_alone
from edgepart.agent.verify.same_answer import differences
from edgepart.agent.verify.sample_inputs import random_inputs
from edgepart.cli.main import main
from edgepart.planner.errors import UsageError
from edgepart.planner.model.load import load_graph
from tests.planner.small_models import residual

DEVICE = {"kind": "k", "flops_per_s": 2e9, "memory_bytes_per_s": 3e9, "memory_bytes": 2e9, "threads": 1}
NAMES = ("pi-a", "pi-b", "pi c")
CLUSTER: dict[str, Any] = {
    "devices": [{"name": name, **DEVICE} for name in NAMES],
    "default_link": {"bytes_per_s": 1.2e8, "latency_s": 2e-4},
}


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(CLUSTER))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(residual(rows=12, channels=4))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    capsys.readouterr()
    try:
        main(["export", *map(str, arguments)])
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


# Separate processes


def free_addresses(count: int) -> list[str]:
    with ExitStack() as stack:
        doors = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{door.getsockname()[1]}" for door in doors]


def command(folder: Path, *arguments: str) -> list[str]:
    """Isolated: neither this repository nor what is set for tests is there."""
    return [sys.executable, "-I", str(folder / "run.py"), *arguments]


@contextmanager
def devices(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """A process for each device, all of which listen."""
    addresses = json.loads((folder / "plan.json").read_text())["devices"]
    started: list[subprocess.Popen[str]] = []
    try:
        for name in names:
            line = command(folder, name, "--listen", addresses[name]["address"])
            started.append(subprocess.Popen(line, stdout=subprocess.PIPE, text=True))
        for one in started:
            assert one.stdout and "listens at" in one.stdout.readline()
        yield
    finally:
        for one in started:
            one.kill()
            one.communicate()


def ask(folder: Path, inputs: dict[str, Any], out: Path) -> subprocess.CompletedProcess[str]:
    np.savez(out.with_name("input.npz"), **inputs)
    line = command(folder, "--ask", str(out.with_name("input.npz")), "--out", str(out))
    return subprocess.run(line, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("strategy", ["bbgrap", "auto", "pipeline"])
def test_processes_with_these_files_answer_what_one_session_does(
    strategy: str, cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = light("squeezenet"), tmp_path / "out"
    at = [f"{name}={address}" for name, address in zip(NAMES, free_addresses(3), strict=True)]
    given = ("--cluster", cluster, "--strategy", strategy, "--search-budget", "1", "--out", out, "--json")
    placed = () if strategy == "bbgrap" else ("--memory-limit", "9M")
    status, text, _ = run(
        capsys, source, *given, *placed, *(word for one in at for word in ("--address", one))
    )
    document = json.loads(text)
    assert status == 0 and len(document["devices"]) > 1
    if strategy == "bbgrap":
        assert len(document["devices"]) == 3
    graph = load_graph(source)
    inputs = random_inputs(graph)
    with devices(out, document["devices"]):
        done = ask(out, inputs, tmp_path / "answer.npz")
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "answer.npz") as answer:
        assert not differences(dict(answer), run_alone(source, inputs))


def test_what_goes_wrong_is_said_to_who_asks(cluster: Path, model: Path, tmp_path: Path) -> None:
    out, inputs = tmp_path / "out", random_inputs(load_graph(model))
    given = dict(zip(NAMES, free_addresses(3), strict=True))
    edgepart.export(model, cluster, out, addresses=given, strategy="single", search_budget_s=0.5)
    wrong = ask(out, {name: value[:, :1] for name, value in inputs.items()}, tmp_path / "none.npz")
    assert wrong.returncode == 1 and "'x' has to be float32 [1, 3, 12, 12]" in wrong.stderr
    none = ask(out, {}, tmp_path / "none.npz")
    assert none.returncode == 1 and "'x' has to be float32" in none.stderr and "Traceback" not in none.stderr
    gone = ask(out, inputs, tmp_path / "none.npz")
    assert gone.returncode == 1 and "cannot be reached at 127.0.0.1" in gone.stderr
    assert not (tmp_path / "none.npz").exists()


def test_a_device_that_fails_is_named(cluster: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = dict(zip(NAMES, free_addresses(3), strict=True))
    made = edgepart.export(
        model, cluster, out, addresses=given, strategy="bbgrap", axis="height", search_budget_s=0.5
    )
    assert set(made.plan.programs) == set(NAMES)
    inputs = random_inputs(load_graph(model))
    path = out / "plan.json"
    document = json.loads(path.read_text())
    # The client knows where pi-b is, and the other devices do not.
    document["devices"]["pi-b"]["address"] = "127.0.0.1:1"
    with devices(out, ["pi-b"]):
        path.write_text(json.dumps(document))
        with devices(out, ["pi-a", "pi c"]):
            document["devices"]["pi-b"]["address"] = given["pi-b"]
            path.write_text(json.dumps(document))
            done = ask(out, inputs, tmp_path / "answer.npz")
    assert done.returncode == 1 and "pi-b cannot be reached at 127.0.0.1:1" in done.stderr


def test_a_file_that_is_missing_is_named(cluster: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    edgepart.export(model, cluster, out, strategy="single", search_budget_s=0.5)
    device, known = next(iter(json.loads((out / "plan.json").read_text())["devices"].items()))
    for missing in ("segment-000.onnx", "schedule.json"):
        (out / known["folder"] / missing).unlink()
        line = command(out, device, "--listen", free_addresses(1)[0])
        done = subprocess.run(line, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and missing in done.stderr and "Traceback" not in done.stderr


def test_the_program_imports_onnxruntime_and_numpy_alone(
    cluster: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, model, "--cluster", cluster, "--out", tmp_path / "out", "--budget", "0.5")[0] == 0
    tree = ast.parse((tmp_path / "out/run.py").read_text(), feature_version=(3, 9))
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in found} - sys.stdlib_module_names == {"numpy", "onnxruntime"}
    vermin = [str(Path(sys.executable).with_name("vermin")), "-t=3.9-", "--violations", "--no-tips"]
    done = subprocess.run([*vermin, str(tmp_path / "out/run.py")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


# The command


def test_the_same_command_writes_the_same_bytes(
    cluster: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        status, text, _ = run(
            capsys,
            model,
            "--cluster",
            cluster,
            "--strategy",
            "bbgrap",
            "--out",
            tmp_path / name,
            "--budget",
            "5",
        )
        assert status == 0 and "README.txt says how to run it" in " ".join(text.split())
    one, two = (
        {
            file.relative_to(tmp_path / name): file.read_bytes()
            for file in (tmp_path / name).rglob("*.*")
            if file.is_file()
        }
        for name in ("one", "two")
    )
    assert one == two and {"README.txt", "plan.json", "run.py"} <= {path.name for path in one}
    status, _, err = run(capsys, model, "--cluster", cluster, "--out", tmp_path / "one")
    assert status == 2 and "not empty" in err


def test_engines_are_left_out_and_that_is_said(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = {
        "name": "cuda",
        "provider": "CUDA",
        "flops_per_s": 1e13,
        "memory_bytes_per_s": 1e12,
        "memory_bytes": 1e9,
    }
    path = tmp_path / "engines.json"
    path.write_text(json.dumps({**CLUSTER, "devices": [{"name": "pi-a", **DEVICE, "engines": [engine]}]}))
    status, text, err = run(
        capsys, model, "--cluster", path, "--out", tmp_path / "out", "--budget", "0.5", "--json"
    )
    assert status == 0, err
    assert "without the engines of pi-a" in err and json.loads(text)["notes"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--out", "x"], "only with a model"),
        (["--strategy", "bbgrap"], "--strategy: only with a model"),
        (["MODEL"], "--out DIR"),
        (["MODEL", "--out", "OUT", "--strategy", "nothing"], "nothing"),
        (["MODEL", "--out", "OUT", "--budget", "0"], "positive"),
        (["MODEL", "--out", "OUT", "--address", "pi-a"], "DEVICE=HOST:PORT"),
        (["MODEL", "--out", "OUT", "--address", "nobody=h:1", "--budget", "0.2"], "address of 'nobody'"),
        (["MODEL", "--out", "MODEL"], "not empty"),
    ],
)
def test_wrong_options_are_named_and_nothing_is_written(
    options: list[str],
    said: str,
    cluster: Path,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = sorted(tmp_path.iterdir())
    words = [{"MODEL": str(model), "OUT": str(tmp_path / "out")}.get(word, word) for word in options]
    more = ["--cluster", str(cluster)] if "MODEL" in options else []
    status, _, err = run(capsys, *words, *more)
    assert status == 2 and said in " ".join(err.split())
    assert sorted(tmp_path.iterdir()) == before


def test_the_python_api_refuses_what_it_cannot_write(cluster: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rounds nothing"):
        edgepart.export(model, cluster, tmp_path / "out", transfer_dtype="float16")
    made = edgepart.export(
        model, CLUSTER | {"gateway": "pi-b"}, tmp_path / "out", strategy="single", search_budget_s=0.5
    )
    assert made.latency_s > 0 and (tmp_path / "out/pi-b/schedule.json").exists()
