"""`edgepart service`: what a person types and sees, on a box without systemd and root (conftest.py), where only the agent
itself does not run."""

from __future__ import annotations

import io
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgepart
from edgepart.agent.security import identity, tokens
from edgepart.cli import query
from edgepart.cli.main import main
from edgepart.cli.service import commands, host
from edgepart.planner.errors import Unavailable
from tests.cli.service.conftest import FakeMachine

Service = Callable[..., tuple[int, str, str]]


@pytest.fixture
def service(fake: FakeMachine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Service:
    """Runs `edgepart service ...`; gives its exit status, stdout and stderr."""
    for name in list(os.environ):
        if name.startswith("EDGEPART_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(commands, "PLACES", fake.places)
    monkeypatch.setattr(commands, "MEMBER_S", 0.3)
    monkeypatch.setattr(commands, "LOOK_S", 0.05)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(host, "_has_user", fake.places.state.exists)
    monkeypatch.setattr(host, "_hidden", lambda path: None)
    monkeypatch.setattr(host, "_taken", lambda config: ((), None))
    members: list[dict[str, str]] = []

    def fetch(target: Any, path: str) -> Any:
        if not Path(f"{fake.log}.active").exists():
            raise Unavailable("no agent runs")
        made = identity.load(fake.places.state)
        own = {"node": made.node_id, "name": "pi-a", "state": "alive"}
        return {"version": edgepart.__version__, "members": [own, *members]}

    for module in (query, host):
        monkeypatch.setattr(module, "fetch", fetch)
    monkeypatch.setattr(commands, "target_of", lambda agent, state: None)

    def run(*arguments: str, others: int = 0) -> tuple[int, str, str]:
        members[:] = [{"node": str(n), "name": f"pi-{n}", "state": "alive"} for n in range(others)]
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["service", *arguments])
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_from_an_empty_box_to_a_member_and_back(service: Service, fake: FakeMachine) -> None:
    fake.make_identities_indeed()
    before = fake.files()
    status, out, _ = service("status")
    assert status == 1 and "is not installed" in out
    status, out, err = service("install", "--init", "--name", "pi-a")
    assert status == 0, err
    made = identity.load(fake.places.state)
    assert f"is a member of cluster {made.fingerprint[:16]}. Members now: pi-a." in out
    line = next(line for line in out.splitlines() if "--join" in line)
    assert tokens.parse(line.split()[-1]).fingerprint == made.fingerprint
    assert (fake.places.state / "name").read_text() == "pi-a"
    assert err.splitlines()[0] == f"writing {fake.places.sysusers}"

    status, out, err = service("install", "--init")
    assert (status, "Nothing was to be done" in out, "--join" in out) == (0, True, False)
    assert err == "waiting until this box is a member\n"

    assert "The agent runs, and starts with this box.\nmembers   pi-a (alive)" in service("status")[1]
    assert service("uninstall", "--yes")[0] == 0
    assert identity.load(fake.places.state).node_id == made.node_id
    assert service("install")[0] == 0
    status, _, err = service("uninstall", "--purge", "--yes")
    assert status == 0 and "Without a copy (edgepart ca export)" in err
    assert {path for path, text in fake.files().items() if text} == {
        path for path, text in before.items() if text
    }
    assert "There is nothing to remove." in service("uninstall", "--purge")[1]


def test_documents_for_programs(service: Service, fake: FakeMachine) -> None:
    document = json.loads(service("install", "--init", "--json")[1])
    made = identity.load(fake.places.state)
    assert (document["node"], document["members"]) == (made.node_id, ["pi-a"])
    assert (
        tokens.parse(document["token"]).fingerprint == made.fingerprint
        and "making a cluster" in document["steps"]
    )
    told = json.loads(service("status", "--json", others=1)[1])
    assert told["enabled"] and told["active"] and told["program"].endswith("/bin/edgepart")
    assert [member["name"] for member in told["members"]] == ["pi-a", "pi-0"]


def test_without_a_yes_nothing_is_removed(
    service: Service, fake: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    service("install", "--init")
    before = fake.files()
    monkeypatch.setattr("sys.stdin", io.StringIO())
    status, _, err = service("uninstall", "--purge")
    assert status == 1 and "identity, models and deployments" in err and "Go on? [y/N]" in err
    assert fake.files() == before


def test_a_box_that_finds_no_other_member_is_installed_and_says_so(
    service: Service, fake: FakeMachine
) -> None:
    service("install", "--init")
    text = tokens.create(fake.places.state, ttl_s=60, uses=1, now=time.time())
    status, _, err = service("install", "--join", text)
    assert status == 3 and "is installed and runs" in err and "it sees no other member" in err
    assert service("install", "--join", text, others=1)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--init", "--join", "EP1-x"), "--init and --join exclude each other"),
        (("--join", "EP1-x"), "that is no join token"),
        ((), "give --init on the first box"),
        (("--init", "--name", "-x"), "--name '-x'"),
        (("--init", "--mqtt", "http://x"), "--mqtt"),
        (("--init", "--mqtt-ca", "ca.pem"), "need --mqtt"),
    ],
)
def test_wrong_usage_changes_nothing(
    arguments: tuple[str, ...], message: str, service: Service, fake: FakeMachine
) -> None:
    before = fake.files()
    status, _, err = service("install", *arguments)
    assert status == 2 and message in err
    assert fake.files() == before


def test_a_failed_start_is_undone_and_ends_with_1(service: Service, fake: FakeMachine) -> None:
    before = fake.files()
    fake.fail("systemctl?start*")
    status, _, err = service("install", "--init")
    assert status == 1 and "error: starting the agent failed" in err and "this box is as it was" in err
    assert fake.files() == before


def test_the_ports_of_the_settings_have_to_be_free(tmp_path: Path) -> None:
    settings = tmp_path / "agent.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings.write_text(f'listen = "127.0.0.1:0"\nhttp = "127.0.0.1:{port}"\n')
        assert host._taken(settings) == ((f"127.0.0.1:{port}",), None)
    assert host._taken(settings) == ((), None)
    settings.write_text("listen = 7433")
    found, wrong = host._taken(settings)
    assert found == () and wrong is not None and "line 1: listen is a whole number" in wrong


def test_a_program_behind_a_closed_folder_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(host, "why_hidden", lambda path: None)
    monkeypatch.setattr("sys.executable", "/usr/bin/env")
    monkeypatch.setattr(edgepart, "__file__", "/usr/lib/edgepart/__init__.py")
    found = host._hidden(closed / "edgepart")
    assert (
        found is not None and f"because of the mode of {closed}" in found
    ) or "because of the mode of" in str(found)
    assert host._hidden(Path("/usr/bin/env")) is None
