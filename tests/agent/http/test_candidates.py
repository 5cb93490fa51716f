"""Candidates as clients of HTTP meet them: deployed, asked by their number, given another share, promoted, and counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgepart.agent.api.model_card import CandidateCard
from tests.agent.http.conftest import ADMIN, Served
from tests.agent.http.fakes import add_model
from tests.agent.http.test_http import form

ADD: dict[str, Any] = {
    "inputs": [{"name": name, "datatype": "FP32", "shape": [2, 3], "data": [1] * 6} for name in "ab"]
}
TRIAL = CandidateCard("add.candidate", "2", 10, False, "")


@pytest.fixture
def tried(served: Served) -> Served:
    """`add` has a candidate."""
    served.node.trials["add"] = TRIAL
    served.node.sessions["add.candidate"] = served.node.sessions["add"]
    served.node.numbers["add.candidate"] = "2"
    return served


def test_the_candidate_is_asked_by_its_number_and_answers_under_the_parents_name(tried: Served) -> None:
    model = "/v2/models/add"
    assert tried.ask("GET", model).json()["versions"] == ["1", "2"]
    assert tried.ask("GET", f"{model}/versions/2").json()["name"] == "add"
    for version in ("1", "2"):
        answer = tried.ask("POST", f"{model}/versions/{version}/infer", ADD).json()
        assert (answer["model_name"], answer["model_version"]) == ("add", version)
        assert tried.ask("GET", f"{model}/versions/{version}/ready").status == 200
    assert tried.node.drawn == [False, False], "who names a version gets that one"
    tried.ask("POST", f"{model}/infer", ADD)
    assert tried.node.drawn[-1] is True
    reply = tried.ask("POST", f"{model}/versions/3/infer", ADD)
    why = "'add' serves version '1' only, with the candidate '2', not '3'"
    assert (reply.status, reply.json()["error"]) == (404, why)
    tried.node.unready["add.candidate"] = "computing a plan"
    assert tried.ask("GET", f"{model}/versions/2/ready").status == 503
    assert tried.ask("GET", f"{model}/ready").status == 200


def test_a_candidate_is_deployed_beside_what_serves(served: Served) -> None:
    body, headers = form(("file", "new.onnx", add_model()))
    reply = served.ask("POST", "/api/deployments/add/candidate?share=25", body, headers)
    assert reply.body.splitlines()[-1].startswith(b'{"result": {"name": "add.candidate"')
    trial = served.node.trials["add"]
    assert (trial.share, trial.shadow) == (25, False)
    assert served.node.deployed["add.candidate"][0] == {"new.onnx": add_model()}
    served.ask("POST", "/api/deployments/add/candidate?shadow=1", body, headers)
    assert served.node.trials["add"].shadow


def test_a_share_changes_and_a_candidate_is_promoted_or_given_up(tried: Served) -> None:
    reply = tried.ask("POST", "/api/deployments/add/share?share=40", headers=ADMIN).json()
    assert (reply["name"], reply["candidate"]["share"]) == ("add", 40)
    reply = tried.ask("POST", "/api/deployments/add/share?shadow=1", headers=ADMIN).json()
    assert reply["candidate"]["shadow"] is True
    reply = tried.ask("POST", "/api/deployments/add/promote", headers=ADMIN)
    assert b"planning" in reply.body.splitlines()[0]
    assert reply.body.splitlines()[-1].startswith(b'{"result": {"name": "add", "version": "2"')
    tried.node.trials["add"] = replace(TRIAL, version="3")
    reply = tried.ask("DELETE", "/api/deployments/add/candidate", headers=ADMIN)
    assert reply.json() == {"discarded": "add", "version": "3"} and tried.node.trials == {}


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "add/share?share=10", {}, 401),
        ("POST", "add/promote", {}, 401),
        ("DELETE", "add/candidate", {}, 401),
        ("POST", "add/candidate?share=10", {}, 401),
        ("POST", "none/share?share=10", ADMIN, 404),
        ("POST", "none/candidate?share=10", ADMIN, 404),
        ("POST", "add/share", ADMIN, 400),
        ("POST", "add/candidate", ADMIN, 400),
        ("POST", "add/share?share=101", ADMIN, 400),
        ("POST", "add/share?share=-1", ADMIN, 400),
        ("POST", "add/share?share=%C2%B2", ADMIN, 400),
        ("POST", "add/share?share=5&shadow=1", ADMIN, 400),
        ("POST", "same-float/share?share=10", ADMIN, 400),
        ("POST", "same-float/promote", ADMIN, 400),
        ("DELETE", "same-float/candidate", ADMIN, 400),
        ("POST", "add", ADMIN, 400),
        ("POST", "x.candidate", ADMIN, 400),
    ],
)
def test_what_cannot_be_meant_changes_nothing(
    tried: Served, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    assert tried.ask(method, f"/api/deployments/{path}", headers=headers).status == status
    assert tried.node.trials == {"add": TRIAL} and tried.node.deployed == {}
    events = [event for _, event in tried.node.event_log.after(0).entries]
    assert events == [], "it is no deployment that failed"


def test_what_was_seen_of_a_candidate_is_counted(tried: Served) -> None:
    seen = replace(
        TRIAL,
        serving_answers=90,
        serving_mean_s=0.5,
        answers=10,
        mean_s=0.25,
        fallbacks=3,
        compared=8,
        different=2,
        largest_difference=0.125,
        copy_errors=1,
        copies_dropped=4,
    )
    tried.node.trials["add"] = seen
    text = tried.ask("GET", "/metrics").body.decode()
    found = {
        line.split("{")[0].removeprefix("edgepart_candidate_"): float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith("edgepart_candidate_") and '{model="add"}' in line
    }
    assert found == {
        "version": 2,
        "share_ratio": 0.1,
        "shadow": 0,
        "ready": 1,
        "largest_difference_ratio": 0.125,
        "answers_total": 10,
        "seconds_total": 2.5,
        "serving_answers_total": 90,
        "serving_seconds_total": 45,
        "fallbacks_total": 3,
        "compared_total": 8,
        "different_total": 2,
        "copy_errors_total": 1,
        "copies_dropped_total": 4,
    }
