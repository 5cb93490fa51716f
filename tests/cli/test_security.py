"""`revoke`, `credential`, `ca`, and how `join` is given its token."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from edgepart.agent.admission import joining
from edgepart.agent.security import identity, issued
from tests.agent.security.test_identity import NOW, admit
from tests.cli.test_cli import Edgepart, edgepart

__all__ = ["edgepart"]

PASSPHRASE = "correct horse battery"


@pytest.fixture
def state(edgepart: Edgepart, tmp_path: Path) -> Path:
    assert edgepart("init", "--state", str(tmp_path / "a"))[0] == 0
    return tmp_path / "a"


def document(result: tuple[int, str, str]) -> Any:
    assert result[0] == 0, result
    return json.loads(result[1])


def test_a_box_that_is_gone_is_revoked_by_name(edgepart: Edgepart, state: Path) -> None:
    folder, old = state / "identity", identity.load(state).admin
    issued.add(folder, issued.IssuedEntry("1" * 16, "pi-b", "t", NOW))
    told = document(edgepart("revoke", "pi-b", "--state", str(state), "--json"))
    assert told == {"revoked": ["1" * 16], "all_revoked": ["1" * 16], "told": False}
    assert identity.load(state).admin != old
    status, out, _ = edgepart("revoke", "pi-b", "--state", str(state))
    assert status == 0 and "No agent runs here now" in out
    listed = document(edgepart("ca", "list", "--state", str(state), "--json"))
    assert listed["issued"][0]["revoked"] and listed["revoked"] == ["1" * 16]
    assert "pi-b" in edgepart("ca", "list", "--state", str(state))[1]
    assert edgepart("revoke", "pi-z", "--state", str(state))[0] == 2
    assert edgepart("revoke", identity.load(state).node_id, "--state", str(state))[0] == 2


def test_the_credential_is_shown_and_rotated(edgepart: Edgepart, state: Path, tmp_path: Path) -> None:
    where = ("--state", str(state))
    old = document(edgepart("credential", "show", *where, "--json"))["credential"]
    assert edgepart("credential", "show", *where)[1] == old + "\n"
    status, out, err = edgepart("credential", "rotate", *where)
    new = document(edgepart("credential", "show", *where, "--json"))["credential"]
    assert status == 0 and new != old and new not in out + err
    admit(identity.load(state), tmp_path / "b")
    status, _, err = edgepart("credential", "rotate", "--state", str(tmp_path / "b"))
    assert status == 2 and "holds no CA key" in err


def test_the_cas_key_goes_out_comes_in_and_leaves(
    edgepart: Edgepart, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, words, other = tmp_path / "copy", tmp_path / "words", tmp_path / "b"
    words.write_text(PASSPHRASE + "\n")
    asked = ("--passphrase-file", str(words))
    assert document(edgepart("ca", "export", str(copy), "--state", str(state), *asked, "--json"))[
        "file"
    ] == str(copy)
    admit(identity.load(state), other)
    monkeypatch.setenv("EDGEPART_PASSPHRASE", PASSPHRASE)
    assert edgepart("ca", "import", str(copy), "--state", str(other))[0] == 0
    assert edgepart("ca", "drop", str(copy), "--state", str(state))[0] == 0
    assert identity.load(other).is_issuer and not identity.load(state).is_issuer
    monkeypatch.setenv("EDGEPART_PASSPHRASE", "not that one at all")
    assert edgepart("ca", "import", str(copy), "--state", str(state))[0] == 1
    monkeypatch.delenv("EDGEPART_PASSPHRASE")
    status, _, err = edgepart("ca", "import", str(copy), "--state", str(state))
    assert status == 2 and "--passphrase-file" in err
    assert not identity.load(state).is_issuer


@pytest.mark.parametrize("way", ["stdin", "environment"])
def test_a_token_need_not_stand_in_the_command_line(
    edgepart: Edgepart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    given: list[str] = []

    def join(token: str, *rest: object, **_: object) -> identity.Identity:
        given.append(token.strip())
        return identity.create_cluster(tmp_path / "joined", NOW)

    monkeypatch.setattr(joining, "join", join)
    if way == "stdin":
        monkeypatch.setattr("sys.stdin", io.StringIO("EP1-secret\nmore\n"))
        result = edgepart("join", "-", "--state", str(tmp_path / "x"), "--json")
    else:
        monkeypatch.setenv("EDGEPART_TOKEN", "EP1-secret")
        result = edgepart("join", "--state", str(tmp_path / "x"), "--json")
    assert document(result)["node"] and given == ["EP1-secret"]
    assert "secret" not in result[1] + result[2]


def test_a_wrong_token_is_not_repeated(edgepart: Edgepart, tmp_path: Path) -> None:
    status, out, err = edgepart("join", "EP1-secret", "--state", str(tmp_path / "x"))
    assert status == 2 and "secret" not in (out + err).replace("<secret>", "")
