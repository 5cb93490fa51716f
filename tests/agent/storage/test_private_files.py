"""Files under identity/: whole, private, and readable by the agent's user when root has written them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgepart.agent.security import charter_file, identity, tokens
from edgepart.agent.storage.private_files import write_private
from tests.agent.security.test_identity import NOW

USER = 12345


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user, which only root may")
def test_what_root_writes_for_an_agent_belongs_to_the_agents_user(tmp_path: Path) -> None:
    identity.create_cluster(tmp_path, NOW)
    folder = tmp_path / "identity"
    for path in (folder, *folder.iterdir()):
        os.chown(path, USER, USER)
    tokens.create(tmp_path, ttl_s=60, uses=1, now=NOW)
    charter_file.revoke(tmp_path, ["0" * 16], NOW)
    found = {path.name: path.stat() for path in folder.iterdir()}
    assert {"tokens.json", "charter.json", "admin"} <= found.keys()
    assert {(stat.st_uid, stat.st_gid, stat.st_mode & 0o777) for stat in found.values()} == {
        (USER, USER, 0o600)
    }


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    write_private(tmp_path / "x", b"one")
    with (tmp_path / "x").open("rb") as reader:
        write_private(tmp_path / "x", b"two")
        assert reader.read() == b"one"
    assert (tmp_path / "x").read_bytes() == b"two" and (tmp_path / "x").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
