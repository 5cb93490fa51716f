"""`edgepart trace`, in process, against a real server with a fake node."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from edgepart.planner.errors import RequestError, Unavailable
from tests.agent.http.conftest import ADMIN, Served, served
from tests.cli.test_cli import Edgepart, edgepart, member
from tests.cli.tracing.test_trace_records import as_traced, simulated

__all__ = ["edgepart", "member", "served"]


@pytest.fixture
def traced(served: Served) -> dict[str, Any]:
    """What the node hands over: a simulated request on two devices."""
    served.node.trace_document = as_traced(simulated(1, 2)[0])
    return served.node.trace_document


def test_a_trace_is_written_and_summarised(
    edgepart: Edgepart, served: Served, member: Path, traced: dict[str, Any], tmp_path: Path
) -> None:
    output = tmp_path / "out.json"
    status, out, err = edgepart(
        "trace", "add", "-o", str(output), "-n", "3", "--draw", "--state", str(member)
    )
    assert status == 0, err
    assert "The median request took" in out and "Critical path" in out and "d1" in out
    assert "clocks agree within" in out and "# compute" in out
    activities = [
        line.split("  ")[0] for line in out.splitlines() if re.match(r"(compute|copy|send|wait) ", line)
    ]
    assert activities == ["compute", "copy", "send", "wait"]
    assert {"predicted to compute", "predicted to wait"} <= set(re.findall("predicted to [a-z]+", out))
    events = json.loads(output.read_text())["traceEvents"]
    assert {"compute", "send", "receive", "wait"} <= {event.get("cat") for event in events}
    assert [path.name for path in tmp_path.iterdir() if ".part" in path.name] == []


def test_its_summary_as_a_document(
    edgepart: Edgepart, served: Served, member: Path, traced: dict[str, Any]
) -> None:
    status, out, err = edgepart("trace", "add", "-n", "2", "--state", str(member), "--json")
    assert status == 0, err
    found = json.loads(out)
    assert found["output"] == "trace.json" and Path("trace.json").exists()
    assert found["requests"] == {"sent": 2, "lost": 0, "traced": 1}
    request = found["request"]
    assert [one["device"] for one in request["devices"]] == ["d0", "d1", None]
    assert sum(request["devices"][0]["seconds"].values()) == pytest.approx(request["seconds"])
    assert {leg["kind"] for leg in request["critical_path"]} >= {"compute", "message"}


def test_others_requests_are_watched(
    edgepart: Edgepart, served: Served, member: Path, traced: dict[str, Any]
) -> None:
    status, out, err = edgepart("trace", "add", "--watch", "0.1", "--state", str(member), "--json")
    assert status == 0, err
    assert json.loads(out)["requests"]["sent"] == 0 and served.node.traced_s == 0.1


def test_nothing_was_asked_meanwhile(
    edgepart: Edgepart, member: Path, traced: dict[str, Any], tmp_path: Path
) -> None:
    for part in traced["devices"]:
        part["spans"] = []
    traced["missing"]["pi-c"] = "its edgepart (0.1.0) cannot record"
    status, out, err = edgepart("trace", "add", "--watch", "0.1", "--draw", "--state", str(member))
    assert status == 0, err
    assert "No request of photos was answered" in out and "pi-c is missing" in out


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["nobody"], 1, "no deployment 'nobody'"),
        (["a b"], 2, "a b"),
        (["add", "-o", "no/such/folder/t.json"], 2, "--output no/such/folder/t.json"),
        (["add", "-o", "."], 2, "is a folder"),
        (["add", "--watch", "1", "-n", "3"], 2, "--watch sends no requests"),
        (["add", "--watch", "1", "-i", "x=y.npy"], 2, "--watch sends no requests"),
        (["add", "-i", "nothing.npy"], 2, "nothing.npy"),
        (["add", "--watch", "0"], 2, "--watch"),
        (["add", "-n", "0"], 2, "--requests"),
        ([], 2, "Missing argument"),
    ],
)
def test_wrong_usage(
    edgepart: Edgepart, served: Served, member: Path, arguments: list[str], status: int, text: str
) -> None:
    got, out, err = edgepart("trace", *arguments, "--state", str(member))
    assert (got, text in err) == (status, True), err
    assert out == "" and served.node.traced_s == 0.0  # nothing was asked of the cluster
    assert not list(Path.cwd().glob("*trace.json*")) and not list(Path.cwd().glob(".*.part"))


def test_an_existing_file_is_kept_when_the_trace_fails(
    edgepart: Edgepart, served: Served, member: Path
) -> None:
    Path("trace.json").write_text("of yesterday")
    served.node.failure = Unavailable("a trace is being taken already, by node b")
    status, _, err = edgepart("trace", "add", "--watch", "0.1", "--state", str(member))
    assert status == 1 and "by node b" in err
    assert Path("trace.json").read_text() == "of yesterday"


def test_what_no_agent_handed_over_is_an_error(edgepart: Edgepart, served: Served, member: Path) -> None:
    status, _, err = edgepart("trace", "add", "-n", "1", "--state", str(member))
    assert status == 1 and "no trace of 'add' is being taken" in err
    served.node.trace_document = {"other": "version"}
    status, _, err = edgepart("trace", "add", "-n", "1", "--state", str(member))
    assert status == 1 and "cannot be read" in err
    assert not Path("trace.json").exists()


def test_requests_that_are_lost_are_told_after_the_trace(
    edgepart: Edgepart,
    served: Served,
    member: Path,
    traced: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, calls = served.node.infer, 0

    async def sometimes(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RequestError("the fourth is bad")
        return await real(*arguments, **named)

    monkeypatch.setattr(served.node, "infer", sometimes)
    status, out, err = edgepart("trace", "add", "-n", "3", "--state", str(member))
    assert status == 1 and "1 of 3 requests" in err and "the fourth is bad" in err
    assert "written to trace.json" in out and Path("trace.json").exists()


# The management API


def test_only_admins_may_trace(served: Served) -> None:
    for method in ("POST", "DELETE"):
        assert served.ask(method, "/api/models/add/trace").status == 401
        wrong = {"Authorization": "Bearer wrong"}
        assert served.ask(method, "/api/models/add/trace", headers=wrong).status == 401
    assert served.node.traced_s == 0.0


def test_the_api(served: Served) -> None:
    path = "/api/models/add/trace"
    begun = served.ask("POST", path, headers=ADMIN)
    assert begun.status == 200 and begun.json()["devices"] == ["pi-a"] and served.node.traced_s == 60.0
    assert served.ask("POST", f"{path}?seconds=2.5", headers=ADMIN).status == 200
    assert served.node.traced_s == 2.5
    for text in ("x", "", "1e"):
        assert served.ask("POST", f"{path}?seconds={text}", headers=ADMIN).status == 400
    assert served.ask("DELETE", path, headers=ADMIN).status == 400
    served.node.trace_document = {"model": "add"}
    assert served.ask("DELETE", path, headers=ADMIN).json() == {"model": "add"}
    assert served.ask("POST", "/api/models/nobody/trace", headers=ADMIN).status == 404
    assert served.ask("GET", path, headers=ADMIN).status == 405


def test_a_body_is_ignored(served: Served) -> None:
    assert served.ask("POST", "/api/models/add/trace", b"x" * 1000, ADMIN).status == 200
    assert served.node.traced_s == 60.0
