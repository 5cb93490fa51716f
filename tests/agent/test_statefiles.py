"""State files over a restart, damaged ones, and one agent per directory."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from edgepart.agent.control import Deployment, Version
from edgepart.agent.messages import DeployOptions
from edgepart.agent.statefiles import StateFiles
from edgepart.planner.errors import UsageError

ENTRY = Deployment("net", "0" * 64, 5, DeployOptions(shapes={"x": (1, 3)}, devices=("a",)), Version(3, "n"))


def test_everything_is_there_again_after_a_restart(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    assert (files.term, files.incarnation, files.deployments(), files.members()) == (0, 0, (), {})
    files.keep(term=7)
    files.keep(incarnation=3)
    files.keep_deployments([ENTRY])
    files.keep_members({"b": ("1.2.3.4:5",), "a": ()})
    again = StateFiles(tmp_path)
    assert (again.term, again.incarnation, again.deployments()) == (7, 3, (ENTRY,))
    assert again.members() == {"a": (), "b": ("1.2.3.4:5",)}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_the_agents_addresses_are_there_while_it_runs(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    files.announce("pi", "127.0.0.1:1", "http://127.0.0.1:2")
    assert f'"pid": {os.getpid()}' in (tmp_path / "agent.json").read_text()
    files.withdraw()
    files.withdraw()
    assert not (tmp_path / "agent.json").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', '{"term": "7"}', '{"term": null}', '{"term": 1.5}'])
def test_damaged_counts_are_named_and_stay_as_they_are(tmp_path: Path, text: str) -> None:
    """A smaller term than one that was used would let old plans run."""
    (tmp_path / "term.json").write_text(text)
    with pytest.raises(UsageError, match=r"term\.json is damaged"):
        StateFiles(tmp_path)
    assert (tmp_path / "term.json").read_text() == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is damaged"),
        ("\xff\x00", "is damaged"),
        ("[]", "expected dict"),
        ("{}", "format None"),
        ('{"format": 1, "deployments": {}}', "expected list"),
        ('{"format": 1, "deployments": [{"name": 5}]}', r"deployments\[0\]"),
    ],
)
def test_damaged_deployments_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "deployments.json").write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=words) as caught:
        StateFiles(tmp_path).deployments()
    assert str(tmp_path / "deployments.json") in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "5", '{"a": 5}', '{"a": "1.2.3.4:5"}', '{"a": null}'])
def test_damaged_hints_are_named_and_hold_up_nothing(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cluster.json").write_text(text)
    assert StateFiles(tmp_path).members() == {}
    assert str(tmp_path / "cluster.json") in caplog.text


def test_one_agent_per_directory(tmp_path: Path) -> None:
    held = StateFiles(tmp_path).lock()
    with pytest.raises(UsageError, match=r"runs on .* already; stop it"):
        StateFiles(tmp_path).lock()
    os.close(held)
    os.close(StateFiles(tmp_path).lock())


def test_a_killed_agent_leaves_no_lock(tmp_path: Path) -> None:
    text = (
        "import os, pathlib, sys; from edgepart.agent.statefiles import StateFiles; "
        "StateFiles(pathlib.Path(sys.argv[1])).lock(); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", text, str(tmp_path)], timeout=60)
    assert done.returncode == -9
    os.close(StateFiles(tmp_path).lock())
