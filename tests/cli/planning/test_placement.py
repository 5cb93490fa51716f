"""`edgepart plan WORKLOAD.json` as a person types it."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from edgepart.cli.main import main
from edgepart.cli.planning import long_search, placement
from edgepart.planner.learning.training.draw import draw_workload
from edgepart.planner.placing.placers.best import names
from edgepart.planner.placing.problem.checker import check
from edgepart.planner.placing.problem.read import workload_of
from edgepart.planner.placing.problem.schedule import PlacedTransfer, PlacementFound, PlacementSchedule
from tests.from_terminal import from_terminal
from tests.planner.placing.problem.test_read import BRANCHES
from tests.planner.placing.workload_files import workload_document


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "w.json"
    path.write_text(json.dumps(BRANCHES))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    capsys.readouterr()
    try:
        main(["plan", *map(str, arguments)])
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


def replayed(document: dict[str, Any]) -> PlacementFound:
    """The answer, from what it says and the file."""
    workload = workload_of(BRANCHES)
    machines = {machine.name: number for number, machine in enumerate(workload.machines)}
    tasks = {task.name: number for number, task in enumerate(workload.tasks)}
    placement = tuple(machines[document["placement"][task.name]] for task in workload.tasks)
    if document["objective"] == "throughput":
        return PlacementFound(placement, document["value_s"], bound_s=document["bound_s"])
    transfers = tuple(
        PlacedTransfer(number, machines[t["from"]], machines[t["to"]], t["start_s"], t["end_s"])
        for t in document["transfers"]
        for number, tensor in enumerate(workload.tensors)
        if tensor.source == tasks[t["source"]] and {tasks[name] for name in t["targets"]} <= {*tensor.readers}
    )
    starts = tuple(document["start_s"][task.name] for task in workload.tasks)
    schedule = PlacementSchedule(placement, starts, transfers, document["value_s"])
    return PlacementFound(placement, document["value_s"], schedule, document["bound_s"])


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("strategy", ["heft", "m-etf", "expert", "auto"])
def test_an_answer_is_one_document_that_an_outsider_can_replay(
    file: Path, capsys: pytest.CaptureFixture[str], strategy: str, objective: str
) -> None:
    status, out, _ = run(
        capsys, file, "--strategy", strategy, "--objective", objective, "--json", "--budget", "1"
    )
    document = json.loads(out)
    assert status == 0 and document["strategy"] == strategy
    assert {"value_s", "bound_s", "gap", "search_s", "why"} <= set(document)
    assert ("start_s" in document) == (objective == "latency")
    check(workload_of(BRANCHES), replayed(document), objective)


def test_people_see_who_does_what(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = run(capsys, file, "--strategy", "heft")
    assert "branches · heft" in text and "for a sample" in text and "stem" in text and "host" in text
    _, text, _ = run(capsys, file, "--strategy", "heft", "--objective", "throughput")
    assert "between two samples" in text


def test_all_side_by_side(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, file, "--compare", "--json", "--budget", "1")
    rows = json.loads(out)["strategies"]
    assert tuple(rows) == names()
    assert not rows["single"]["feasible"]  # `right` runs on the host only, `left` does not.
    values = [row["value_s"] for row in rows.values() if row["feasible"]]
    assert rows["auto"]["value_s"] == min(values)
    _, text, _ = run(capsys, file, "--compare", "--budget", "1")
    assert "does not fit" in text and "m-etf" in text


def test_a_bad_file_ends_with_1_and_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, said in (('{"schema": 1}', "'schema'"), ("{", "is no JSON"), ("", "is no JSON")):
        path = tmp_path / "bad.json"
        path.write_text(text)
        status, out, err = run(capsys, path, "--json")
        assert status == 1 and said in json.loads(out)["error"] and said in err


def test_what_lacks_memory_says_how_much(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [{**node, "memory_bytes": 2e8} for node in BRANCHES["nodes"]]
    file.write_text(json.dumps({**BRANCHES, "nodes": nodes}))
    status, out, _ = run(capsys, file, "--strategy", "heft", "--json")
    document = json.loads(out)
    assert status == 1 and sum(document["short_bytes"].values()) > 0 and document["kind"] == "Infeasible"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--axis", "height"], "--axis: not for"),
        (["--shape", "x=1", "--verify"], "--shape, --verify"),
        (["--no-fusion"], "--no-fusion"),
        (["--strategy", "brute"], "'brute'"),
        (["--objective", "speed"], "'speed'"),
    ],
)
def test_what_makes_no_sense_here_is_refused(
    file: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    status, _, err = run(capsys, file, *options)
    assert status == 2 and said in err


def test_a_long_search_says_how_good_the_best_is(monkeypatch: pytest.MonkeyPatch) -> None:
    said, heard = list[str](), Event()

    def note(text: str) -> None:
        said.append(text)
        heard.set()

    values: list[float] = []
    monkeypatch.setattr(long_search, "note", note)
    monkeypatch.setattr(long_search, "SILENT_S", 0.0)
    with long_search.said_now_and_then(placement._news("moirai", "latency", 60.0, values)):
        assert heard.wait(60)
    assert said[0].startswith("moirai has searched") and said[0].endswith("60 s at most")
    monkeypatch.setattr(long_search, "REMINDER_S", 0.0)
    with long_search.said_now_and_then(placement._news("moirai", "throughput", 60.0, values)):
        values += [0.012, 0.01]
        while not any("the best so far: 100/s" in text for text in said):
            heard.clear()
            assert heard.wait(60)


def test_control_c_ends_a_long_search_at_once(tmp_path: Path) -> None:
    """CP-SAT would take the signal for itself and end one of its searches only."""
    pytest.importorskip("ortools", reason="moirai needs OR-tools, of the extra [exact]")
    path = tmp_path / "w.json"
    path.write_text(json.dumps(workload_document(draw_workload("cells", Random(5), 140, 4))))
    command = from_terminal("plan", str(path), "--strategy", "moirai", "--budget", "600")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as plan:
        assert plan.stderr is not None
        said = [""]
        while "has searched" not in said[-1]:
            said.append(plan.stderr.readline())
            assert plan.poll() is None, "".join([*said, plan.stderr.read()])
        plan.send_signal(signal.SIGINT)
        assert plan.wait(120) == -signal.SIGINT
