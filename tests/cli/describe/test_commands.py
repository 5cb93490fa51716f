"""apply, diff and export as a person types them, against a real server with a fake node."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgepart.agent.api.deployed_model import DeployedCandidate, DeployedModel, DeployedVersion
from tests.agent.http.conftest import Served, served
from tests.agent.http.fakes import NO_ROOM, add_model
from tests.cli.test_cli import Edgepart, edgepart, member

__all__ = ["edgepart", "member", "served"]

DIGEST = hashlib.sha256(add_model()).hexdigest()


class Terminal(io.StringIO):
    """What a person types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def described(tmp_path: Path, served: Served) -> Path:
    """A file that describes one deployment that is there (add, version 2) and one that is not (new)."""
    folder = tmp_path / "described"
    folder.mkdir()
    (folder / "add.onnx").write_bytes(add_model())
    file = folder / "cluster.yaml"
    file.write_text("deployments:\n  add: {model: add.onnx, bindings: 2}\n  new: {model: add.onnx}\n")
    served.node.sessions = {name: served.node.sessions[name] for name in ("add", "same-float")}
    served.node.described["add"] = DeployedModel(
        "add",
        DeployedVersion(2, DIGEST, {"bindings": 2}),
        (DeployedVersion(1, "a" * 64, {"axis": "height"}),),
    )
    return file


def test_what_differs_is_deployed_and_the_rest_is_left_alone(
    edgepart: Edgepart, member: Path, served: Served, described: Path
) -> None:
    state = ("--state", str(member))
    status, out, _ = edgepart("diff", str(described), *state)
    assert (status, served.node.deployed) == (5, {})
    assert [line.split() for line in out.splitlines()[2:]] == [
        ["new", "deploy", "it", "is", "not", "deployed"],
        ["add", "unchanged"],
    ]
    assert edgepart("apply", str(described), "--dry-run", *state)[0] == 0
    assert not served.node.deployed
    status, out, _ = edgepart("apply", str(described), *state)
    assert status == 0 and out.splitlines()[-1] == "Done: new."
    assert served.node.deployed.keys() == {"new"}
    described.write_text("deployments:\n  add: {model: add.onnx, bindings: 2}\n")
    status, out, _ = edgepart("apply", str(described), *state)
    assert (status, out.splitlines()[-1]) == (0, "Nothing to do: all that is described is deployed so.")
    assert json.loads(edgepart("diff", str(described), "--json", *state)[1]) == {
        "changes": [],
        "unchanged": ["add"],
    }


def test_a_kept_version_is_rolled_back_to_and_needs_no_file(
    edgepart: Edgepart, member: Path, served: Served, described: Path
) -> None:
    described.write_text(f"deployments: {{add: {{digest: 'sha256:{'a' * 64}', axis: height}}}}")
    status, out, _ = edgepart("apply", str(described), "--state", str(member), "--json")
    assert status == 0
    (change,) = json.loads(out)["changes"]
    assert (change["name"], change["change"], change["to"]) == ("add", "roll back", 1)
    assert "bindings: 2 -> as usual" in change["why"]
    assert served.node.numbers == {"add": "1"} and not served.node.deployed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("deployments:\n  add: {model: none.onnx}", "there is no model"),
        ("deployments:\n  add: {model: add.onnx, digest: " + "0" * 64 + "}", "and not sha256:000"),
        (
            "deployments:\n  add: {digest: " + "b" * 64 + "}",
            "cluster.yaml:2:8: add: no deployment of that name",
        ),
        (
            "deployments:\n  new: {digest: " + DIGEST + "}",
            "cluster.yaml:2:8: new: no deployment of that name",
        ),
        ("deployments:\n  new: {model: add.onnx}\n  bad: {model: add.onnx, devices: [nobody]}", "nobody"),
        ("deployments:\n  new: {model: add.onnx}\n  bad: {model: add.onnx, shape: {q: [1]}}", "'q'"),
        ("deployments:\n  new: {model: add.onnx}\n  bad: {model: add.onnx, keep: -1}", "cluster.yaml:3:32: "),
        ("deployments:\n  new: {model: add.onnx}\n  bad: {model: ftp://x/y}", "cluster.yaml:3:16: "),
    ],
)
def test_a_file_with_a_fault_changes_nothing(
    edgepart: Edgepart, member: Path, served: Served, described: Path, text: str, why: str
) -> None:
    described.write_text(text)
    status, _, err = edgepart("apply", str(described), "--state", str(member))
    assert status in (1, 2)
    assert why in err and "Traceback" not in err
    assert not served.node.deployed


def test_a_file_that_cannot_be_read(edgepart: Edgepart, member: Path, described: Path) -> None:
    for path in (described.parent, described.with_name("none.yaml")):
        status, _, err = edgepart("apply", str(path), "--state", str(member))
        assert status == 2 and "cannot be read" in err
    described.write_bytes(b"\xff\xfe\xff")
    assert edgepart("diff", str(described), "--state", str(member))[0] == 2


def test_what_is_not_described_goes_only_with_prune_and_after_a_question(
    edgepart: Edgepart, member: Path, served: Served, described: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ("--state", str(member))
    described.write_text("deployments:\n  add: {model: add.onnx, bindings: 2}\n")
    assert edgepart("apply", str(described), *state)[0] == 0
    assert "same-float" in served.node.sessions
    assert edgepart("diff", str(described), "--prune", *state)[0] == 5
    status, _, err = edgepart("apply", str(described), "--prune", *state)
    assert status == 2 and "--prune would undeploy same-float: add --yes" in err
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert edgepart("apply", str(described), "--prune", *state)[0] == 1
    assert "same-float" in served.node.sessions
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    status, out, _ = edgepart("apply", str(described), "--prune", *state)
    assert status == 0 and "Undeploy same-float? [y/N]" in out
    assert served.node.sessions.keys() == {"add"}


def test_a_change_that_fails_ends_the_work_and_says_what_is_left(
    edgepart: Edgepart, member: Path, served: Served, described: Path
) -> None:
    described.write_text("deployments:\n  m: {model: add.onnx}\n  n: {model: add.onnx}\n")
    served.node.failure = NO_ROOM
    status, _, err = edgepart("apply", str(described), "--state", str(member))
    assert status == 1
    assert "done before m: nothing; not begun: n. Applying again goes on from here" in err
    assert "pi-a lacks 12 bytes" in err


def test_what_is_deployed_is_printed_as_a_description(
    edgepart: Edgepart, member: Path, served: Served, described: Path
) -> None:
    status, out, _ = edgepart("export", "--state", str(member))
    assert status == 0
    assert out == (
        f"deployments:\n  add:\n    digest: sha256:{DIGEST}\n    bindings: 2\n"
        f"  same-float:\n    digest: sha256:{'0' * 64}\n"
    )
    described.write_text(out)
    assert edgepart("diff", str(described), "--prune", "--state", str(member))[0] == 0


def test_a_described_candidate_is_sent_beside_what_serves(
    edgepart: Edgepart, member: Path, served: Served, described: Path
) -> None:
    state = ("--state", str(member))
    add = "deployments:\n  add: {model: add.onnx, bindings: 2, candidate: {model: add.onnx, %s}}\n"
    described.write_text(add % "share: 30")
    status, out, _ = edgepart("apply", str(described), *state)
    assert status == 0 and "deploy candidate   it gets 30 % of the requests" in out
    assert served.node.deployed.keys() == {"add.candidate"} and served.node.trials["add"].share == 30
    there = served.node.described["add"]
    trial = DeployedCandidate(3, DIGEST, {}, 30, False)
    served.node.described["add"] = replace(there, candidate=trial)
    assert edgepart("diff", str(described), *state)[0] == 0
    exported = edgepart("export", *state)[1]
    assert "    candidate:\n" in exported and "      share: 30\n" in exported
    described.write_text(add % "shadow: true")
    status, out, _ = edgepart("apply", str(described), *state)
    assert "change share" in out and served.node.trials["add"].shadow
    described.write_text("deployments:\n  add: {model: add.onnx}\n")
    status, out, _ = edgepart("apply", str(described), *state)
    assert "promote" in out and served.node.numbers["add"] == "2" and served.node.trials == {}
    described.write_text(
        f"deployments: {{add: {{model: add.onnx, axis: width, candidate: {{digest: '{DIGEST}', share: 5}}}}}}"
    )
    status, _, err = edgepart("apply", str(described), *state)
    assert status == 2 and "its model has to be sent again" in err


@pytest.mark.parametrize(
    ("candidate", "why"),
    [
        ("{model: add.onnx}", "give 'share' (percent of the requests) or 'shadow': true"),
        ("{model: add.onnx, share: 1, shadow: true}", "exclude each other"),
        ("{model: add.onnx, share: 1.5}", "a whole number of percent"),
        ("{model: add.onnx, share: true}", "a whole number of percent"),
        ("{model: add.onnx, share: 101}", "from 0 to 100"),
        ("{share: 1}", "give 'model'"),
        ("{model: add.onnx, share: 1, candidate: {}}", "there is no such key"),
        ("add.onnx", "expected keys and values"),
    ],
)
def test_a_candidate_with_a_fault_changes_nothing(
    edgepart: Edgepart, member: Path, served: Served, described: Path, candidate: str, why: str
) -> None:
    described.write_text(f"deployments:\n  add: {{model: add.onnx, bindings: 2, candidate: {candidate}}}\n")
    status, _, err = edgepart("apply", str(described), "--state", str(member))
    assert status == 2 and why in " ".join(err.split()) and f"{described}:2:" in err
    assert served.node.deployed == {} and served.node.trials == {}


def test_rollback(edgepart: Edgepart, member: Path, served: Served) -> None:
    served.node.numbers["add"] = "3"
    status, out, _ = edgepart("rollback", "add", "--to", "2", "--state", str(member))
    assert (status, out) == (0, "add is version 2 again, served by pi-a.\n")
    assert served.node.numbers["add"] == "2"
    assert edgepart("rollback", "add", "--no-wait", "--state", str(member))[0] == 0
    status, _, err = edgepart("rollback", "add", "--to", "9", "--state", str(member))
    assert status == 2 and "version 9 is not kept" in err
    assert edgepart("rollback", "none", "--state", str(member))[0] == 1
    assert edgepart("rollback", "add", "--to", "0", "--state", str(member))[0] == 2


def test_the_versions_of_a_model_are_shown(
    edgepart: Edgepart, member: Path, served: Served, monkeypatch: Any
) -> None:
    from dataclasses import replace

    cards = [
        replace(card, version="3", next_version="4", kept_versions=("3", "2"))
        for card in served.node.models()
    ]
    monkeypatch.setattr(served.node, "models", lambda: cards[:1])
    out = edgepart("models", "--state", str(member))[1]
    assert out.splitlines()[0].endswith("serving, version 3; version 4 is on its way; kept for a rollback: 2")
