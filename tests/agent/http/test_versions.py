"""Model versions as clients of HTTP meet them: in the Open Inference Protocol, in management, and in metrics."""

from __future__ import annotations

from typing import Any

import pytest

from edgepart.agent.gateway.triton_metrics import MOST_VERSIONS
from tests.agent.http.conftest import ADMIN, Served

ADD: dict[str, Any] = {
    "inputs": [{"name": name, "datatype": "FP32", "shape": [2, 3], "data": [1] * 6} for name in "ab"]
}
MODEL = "/v2/models/add"


def test_the_version_that_serves_is_asked_by_its_number(served: Served) -> None:
    served.node.numbers["add"] = "3"
    assert served.ask("GET", MODEL).json()["versions"] == ["3"]
    for path in (MODEL, f"{MODEL}/versions/3"):
        assert served.ask("GET", path).json()["name"] == "add"
        assert served.ask("GET", f"{path}/ready").status == 200
        assert served.ask("GET", f"{path}/config").json()["backend"] == "onnxruntime"
        assert served.ask("POST", f"{path}/infer", ADD).json()["model_version"] == "3"
    index = {entry["name"]: entry["version"] for entry in served.ask("GET", "/v2/models").json()}
    assert (index["add"], index["same-float"]) == ("3", "1")


@pytest.mark.parametrize("version", ["2", "4", "03", "latest", "x" * 900])
@pytest.mark.parametrize(
    ("method", "rest"), [("GET", ""), ("GET", "/ready"), ("GET", "/config"), ("POST", "/infer")]
)
def test_a_version_that_does_not_serve_is_not_found(
    served: Served, version: str, method: str, rest: str
) -> None:
    served.node.numbers["add"] = "3"
    reply = served.ask(method, f"{MODEL}/versions/{version}{rest}", ADD if method == "POST" else None)
    assert reply.status == 404
    assert reply.json()["error"] == f"'add' serves version '3' only, not {version[:80]!r}"


def test_an_answer_of_another_version_than_the_one_asked_for_is_not_returned(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next version took over while the request waited."""
    card = served.node.model("add")
    served.node.numbers["add"] = "2"
    monkeypatch.setattr(served.node, "model", lambda name: card)
    reply = served.ask("POST", f"{MODEL}/versions/1/infer", ADD)
    assert (reply.status, reply.json()["error"]) == (404, "'add' serves version '2' only, not '1'")
    assert served.ask("POST", f"{MODEL}/infer", ADD).json()["model_version"] == "2"


def test_a_rollback_streams_its_progress_and_its_result(served: Served) -> None:
    served.node.numbers["add"] = "3"
    reply = served.ask("POST", "/api/deployments/add/rollback?to=2", headers=ADMIN)
    assert b"planning" in reply.body.splitlines()[0]
    assert reply.body.splitlines()[-1].startswith(b'{"result": {"name": "add", "version": "2"')
    assert served.ask("GET", MODEL).json()["versions"] == ["2"]
    accepted = served.ask("POST", "/api/deployments/add/rollback?wait=0", headers=ADMIN)
    assert (accepted.status, accepted.json()["result"]["state"]) == (202, "accepted")
    refused = served.ask("POST", "/api/deployments/add/rollback?to=9", headers=ADMIN)
    assert b"version 9 is not kept" in refused.body.splitlines()[-1]
    told = served.ask("GET", "/api/events").json()["events"][-1]
    assert told["text"] == "rolling back add failed" and "version 9 is not kept" in told["why"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("add/rollback", {}, 401),
        ("none/rollback", ADMIN, 404),
        ("add/rollback?to=", ADMIN, 400),
        ("add/rollback?to=-1", ADMIN, 400),
        ("add/rollback?to=%C2%B2", ADMIN, 400),
        ("add/rollback?to=99999999999", ADMIN, 400),
    ],
)
def test_a_rollback_that_cannot_be_meant(
    served: Served, path: str, headers: dict[str, str], status: int
) -> None:
    assert served.ask("POST", f"/api/deployments/{path}", headers=headers).status == status


def test_what_is_deployed_is_told_as_users_gave_it(served: Served) -> None:
    served.node.numbers["add"] = "2"
    found = {one["name"]: one for one in served.ask("GET", "/api/deployments").json()["deployments"]}
    assert found["add"] == {
        "name": "add",
        "now": {"version": 2, "model": "0" * 64, "options": {}},
        "kept": [],
        "candidate": None,
    }
    assert found.keys() == {card.name for card in served.node.models()}


def test_requests_are_counted_by_version_and_old_versions_are_forgotten(served: Served) -> None:
    for number in range(1, MOST_VERSIONS + 3):
        served.node.numbers["add"] = str(number)
        assert served.ask("POST", f"{MODEL}/infer", ADD).status == 200
    assert served.ask("POST", f"{MODEL}/infer", {"inputs": []}).status == 400
    lines = served.ask("GET", "/metrics").body.decode().splitlines()
    last = MOST_VERSIONS + 2
    assert f'nv_inference_request_success{{model="add",version="{last}"}} 1.0' in lines
    assert f'nv_inference_request_failure{{model="add",version="{last}"}} 1.0' in lines
    assert f'edgepart_model_version{{model="add"}} {last}.0' in lines
    counted = [line for line in lines if line.startswith('nv_inference_request_success{model="add"')]
    assert len(counted) == MOST_VERSIONS and not any('version="2"' in line for line in counted)
