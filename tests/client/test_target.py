"""Which agents are asked at first, and what they are shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgepart.agent.security import identity
from edgepart.client.target import AgentTarget, announced_in, target_of
from edgepart.planner.errors import Unavailable, UsageError

HERE, REMOTE = "http://127.0.0.1:1", "http://pi-b:1"


def announce(state: Path, http: object, members: object = ()) -> None:
    (state / "agent.json").write_text(json.dumps({"http": http}))
    (state / "http.json").write_text(json.dumps({"members": members}))


def test_the_agent_here_comes_first_and_then_those_that_it_knew(tmp_path: Path) -> None:
    announce(tmp_path, HERE + "/", [REMOTE, HERE, "nonsense", 7])
    target = target_of(None, tmp_path)
    assert target.urls == (HERE, REMOTE) and target.is_local
    assert target.alone.urls == target.alone.urls_now() == (HERE,)
    announce(tmp_path, "http://127.0.0.1:2", [])
    assert target.urls_now() == ("http://127.0.0.1:2",)
    (tmp_path / "agent.json").unlink()
    assert target.urls_now() == (HERE, REMOTE), "what was known last"


def test_members_behind_other_loopbacks_do_not_count(tmp_path: Path) -> None:
    announce(tmp_path, "http://192.0.2.1:1", [HERE, REMOTE])
    assert target_of(None, tmp_path).urls == ("http://192.0.2.1:1", REMOTE)


@pytest.mark.parametrize("hints", ["", "[]", '{"members": 7}', '{"members": {"a": 1}}', "[" * 100_000])
def test_hints_that_cannot_be_read_are_none(hints: str, tmp_path: Path) -> None:
    announce(tmp_path, HERE)
    (tmp_path / "http.json").write_text(hints)
    assert target_of(None, tmp_path).urls == (HERE,)


def test_an_agent_that_is_not_there_or_not_readable_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no agent runs with state"):
        announced_in(tmp_path)
    for http in (None, 7, "nonsense url"):
        announce(tmp_path, http)
        with pytest.raises(UsageError, match=r"agent\.json cannot be read"):
            announced_in(tmp_path)


def test_the_user_names_several_agents(tmp_path: Path) -> None:
    announce(tmp_path, "http://127.0.0.1:9")
    target = target_of(f"{REMOTE}, pi-c:2", tmp_path)
    assert target.urls == target.urls_now() == (REMOTE, "http://pi-c:2") and not target.is_local


def test_only_other_machines_are_shown_the_credential(tmp_path: Path) -> None:
    target = AgentTarget(REMOTE, tmp_path)
    assert target.credential_for(REMOTE) is None, "an agent that is open to all wants none"
    with pytest.raises(
        UsageError, match=f"only members of its cluster may ask {REMOTE} .*run the command on a member"
    ):
        target.credential()
    secret = identity.create_cluster(tmp_path, 0.0).admin
    assert target.credential_for(REMOTE) == target.credential() == secret
    assert target.credential_for(HERE) is None
    assert AgentTarget(REMOTE, tmp_path, secret="given").credential_for(REMOTE) == "given"
    (tmp_path / "identity" / "node.pem").write_text("damaged")
    with pytest.raises(UsageError, match="cannot be used"):
        target.credential_for(REMOTE)
