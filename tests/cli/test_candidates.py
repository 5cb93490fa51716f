"""deploy --share, share, promote and undeploy --candidate as a person types them, and candidates in status and models."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from edgepart.agent.api.deployed_model import DeployedCandidate, DeployedModel, DeployedVersion
from edgepart.agent.api.model_card import CandidateCard
from edgepart.cli.candidate_text import candidate_text
from tests.agent.http.conftest import Served, served
from tests.agent.http.fakes import add_model
from tests.cli.test_cli import Edgepart, edgepart, member
from tests.waiting import eventually

__all__ = ["edgepart", "member", "served"]

DIGEST = hashlib.sha256(add_model()).hexdigest()
TRIAL = CandidateCard("add.candidate", "2", 10, False, "")
DROP = """
figures   edgepart status
more      edgepart share add PERCENT
take it   edgepart promote add
drop it   edgepart undeploy add --candidate
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "new.onnx"
    path.write_bytes(add_model())
    return path


def test_a_candidate_is_deployed(edgepart: Edgepart, member: Path, served: Served, model: Path) -> None:
    state = ("--name", "add", "--state", str(member))
    status, out, _ = edgepart("deploy", str(model), "--share", "25", *state)
    said = "add: version 2, the candidate, answers 25 % of the requests, on pi-a.\n"
    assert (status, out) == (0, said + DROP)
    assert served.node.trials["add"].share == 25
    status, out, _ = edgepart("deploy", str(model), "--shadow", *state)
    assert out.startswith("add: version 2, the candidate, gets a copy of each request, on pi-a.\n")
    assert edgepart("deploy", str(model), "--shadow", "--no-wait", *state)[1].startswith(
        "add: the candidate is accepted"
    )
    document = json.loads(edgepart("deploy", str(model), "--share", "5", "--json", *state)[1])
    assert (document["name"], document["candidate_of"], document["share"]) == ("add", "add", 5)


def test_the_same_candidate_is_not_sent_again(
    edgepart: Edgepart, member: Path, served: Served, model: Path
) -> None:
    served.node.trials["add"] = TRIAL
    served.node.described["add"] = DeployedModel(
        "add", DeployedVersion(1, "a" * 64, {}), (), DeployedCandidate(2, DIGEST, {"bindings": 2}, 10, False)
    )
    state = ("--name", "add", "--state", str(member))
    status, out, _ = edgepart("deploy", str(model), "--bindings", "2", "--share", "40", *state)
    assert (status, out) == (0, "add: version 2, the candidate, answers 40 % of the requests from now on.\n")
    assert served.node.deployed == {} and served.node.trials["add"].share == 40
    assert edgepart("deploy", str(model), "--share", "50", *state)[0] == 0
    assert served.node.deployed.keys() == {"add.candidate"}, "with other options it is another one"


def test_its_share_changes_and_it_is_promoted_or_given_up(
    edgepart: Edgepart, member: Path, served: Served
) -> None:
    served.node.trials["add"] = TRIAL
    state = ("--state", str(member))
    assert edgepart("share", "add", "60", *state)[:2] == (
        0,
        "add: version 2, the candidate, answers 60 % of the requests from now on.\n",
    )
    assert "gets a copy of each request" in edgepart("share", "add", "--shadow", *state)[1]
    assert json.loads(edgepart("share", "add", "5", "--json", *state)[1])["candidate"]["share"] == 5
    assert edgepart("promote", "add", *state)[:2] == (0, "add is version 2 now, served by pi-a.\n")
    served.node.trials["add"] = replace(TRIAL, version="3")
    assert edgepart("promote", "add", "--no-wait", *state)[0] == 0
    eventually(lambda: "add" not in served.node.trials)
    served.node.trials["add"] = replace(TRIAL, version="4")
    said = "Version 4, the candidate of add, is undeployed; add serves on.\n"
    assert edgepart("undeploy", "add", "--candidate", *state)[:2] == (0, said)
    assert "add" in served.node.sessions


@pytest.mark.parametrize(
    ("typed", "status", "why"),
    [
        (("share", "add"), 2, "give the percentage, or --shadow"),
        (("share", "add", "5", "--shadow"), 2, "exclude each other"),
        (("share", "add", "101"), 2, "Usage:"),
        (("share", "add", "5"), 2, "'add' has no candidate"),
        (("promote", "add"), 2, "'add' has no candidate"),
        (("undeploy", "add", "--candidate"), 2, "'add' has no candidate"),
        (("share", "none", "5"), 1, "no deployment 'none'"),
    ],
)
def test_what_cannot_be_done_says_why(
    edgepart: Edgepart, member: Path, typed: tuple[str, ...], status: int, why: str
) -> None:
    found, _, err = edgepart(*typed, "--state", str(member))
    assert found == status and why in " ".join(err.split())


def test_status_and_models_say_how_it_goes(edgepart: Edgepart, member: Path, served: Served) -> None:
    served.node.trials["add"] = replace(TRIAL, answers=1, serving_answers=9)
    for command in ("status", "models"):
        out = " ".join(edgepart(command, "--state", str(member))[1].split())
        assert (
            "add: version 2, the candidate, answers 10 % of the requests; it has answered 1 of 10 through"
            in out
        )
    listed = json.loads(edgepart("status", "--json", "--state", str(member))[1])["deployments"]
    assert next(card for card in listed if card["name"] == "add")["candidate"]["share"] == 10


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({}, "net: version 2, the candidate, answers 10 % of the requests."),
        (
            {"trouble": "computing a plan."},
            "net: version 2, the candidate, answers 10 % of the requests; it does not answer now: computing a plan.",
        ),
        (
            {"answers": 20, "mean_s": 0.012, "serving_answers": 180, "serving_mean_s": 0.011, "fallbacks": 2}
            | {"last_failure": "no room."},
            "net: version 2, the candidate, answers 10 % of the requests; it has answered 20 of 200 through this agent; "
            "version 2 takes 12 ms on average, and version 1 11 ms; version 1 answered 2 in its place (no room).",
        ),
        (
            {"share": 0, "shadow": True, "answers": 8, "mean_s": 0.02, "compared": 8, "different": 2}
            | {
                "largest_difference": 0.125,
                "copy_errors": 1,
                "last_failure": "it crashed",
                "copies_dropped": 4,
            },
            "net: version 2, the candidate, gets a copy of each request; of 8 copies 2 (25 %) have another choice, and "
            "numbers differ by 12 % at most; version 2 takes 20 ms on average; copies that it could not answer: 1 (it "
            "crashed); requests without a copy, as too many were under way: 4.",
        ),
    ],
)
def test_in_words(seen: dict[str, object], said: str) -> None:
    card = {"name": "net", "version": "1", "candidate": asdict(replace(TRIAL, **seen))}  # type: ignore[arg-type]
    assert candidate_text(card) == said
    assert candidate_text(card | {"candidate": None}) == ""
