"""Steps are carried out in turn, and a step that fails leaves the box as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgepart.cli.service.carrying_out import carry_out
from edgepart.cli.service.plan import installation, uninstallation
from edgepart.cli.service.situation import Wish
from edgepart.cli.service.steps import Execute, Remove, Step, Symlink, Write
from edgepart.planner.errors import HostError
from tests.cli.service.conftest import FakeMachine, empty

INIT = Wish(makes_cluster=True)


def quiet(text: str) -> None:
    del text


def test_each_step_is_told_before_it_begins_and_commands_are_called_in_turn(fake: FakeMachine) -> None:
    steps = installation(empty(fake.places), INIT)
    told: list[str] = []
    printed = carry_out(steps, fake.places.state, told.append)
    assert told == [step.what for step in steps]
    assert '"token": "EP1-' in printed["making a cluster"]
    assert fake.called() == [
        "systemd-sysusers edgepart.conf",
        "systemd-tmpfiles --create edgepart.conf",
        "runuser -u edgepart edgepart --version",
        "runuser -u edgepart edgepart init",
        "systemctl daemon-reload",
        "systemctl enable --quiet edgepart-agent.service",
        "systemctl start edgepart-agent.service",
    ]
    assert fake.places.environment.stat().st_mode & 0o777 == 0o600
    assert fake.places.unit.read_text() == "the unit" and fake.places.unit.stat().st_mode & 0o777 == 0o644
    assert fake.places.link.readlink() == Path("/opt/edgepart/bin/edgepart")


@pytest.mark.parametrize(
    "failing",
    [
        "systemd-sysusers*",
        "systemd-tmpfiles*",
        "systemctl?daemon-reload",
        "systemctl?enable*",
        "systemctl?start*",
    ],
)
def test_a_step_that_fails_leaves_the_box_as_it_was(failing: str, fake: FakeMachine) -> None:
    fake.places.settings.mkdir(parents=True)
    fake.places.config.write_text('name = "mine"\n#peer = ["a:1"]\n')
    fake.places.config.chmod(0o640)
    before = fake.files()
    peers = Wish(makes_cluster=True, settings={"peer": ["b:2"]})
    box = replace(empty(fake.places), texts={fake.places.config: fake.places.config.read_text()})
    steps = installation(box, peers)
    fake.fail(failing)
    with pytest.raises(HostError, match="no luck"):
        carry_out(steps, fake.places.state, quiet)
    assert fake.files() == before
    assert fake.places.config.stat().st_mode & 0o777 == 0o640
    assert not Path(f"{fake.log}.active").exists() and not Path(f"{fake.log}.enabled").exists()


def test_a_start_that_fails_says_what_the_agent_said_and_is_undone_backwards(fake: FakeMachine) -> None:
    steps = installation(empty(fake.places), INIT)
    fake.fail("systemctl?start*")
    with pytest.raises(
        HostError, match=r"(?s)starting the agent failed: .*status 7: no luck\nthe agent said why"
    ) as raised:
        carry_out(steps, fake.places.state, quiet)
    assert "this box is as it was" in str(raised.value)
    assert fake.called()[-6:] == [
        "systemctl start edgepart-agent.service",
        "journalctl --unit edgepart-agent.service --lines 8 --output cat --no-pager",
        "systemctl stop --quiet edgepart-agent.service",
        "systemctl disable --quiet edgepart-agent.service",
        "userdel edgepart",
        "systemctl daemon-reload",
    ]


def test_what_cannot_be_undone_is_named(fake: FakeMachine) -> None:
    steps = installation(empty(fake.places), INIT)
    fake.fail("systemctl?start*|userdel*")
    with pytest.raises(
        HostError, match=r"Not all .* undone: making the user edgepart \(userdel edgepart ended with status 7"
    ):
        carry_out(steps, fake.places.state, quiet)
    assert not fake.places.unit.exists()


def test_a_command_that_is_not_there_fails_like_any_other(fake: FakeMachine) -> None:
    file = fake.places.root / "etc/new/file"
    steps: list[Step] = [
        Write("writing", file, "text"),
        Symlink("linking", file.with_name("link"), file),
        Execute("running", ("no-such-command",)),
    ]
    before = fake.files()
    with pytest.raises(HostError, match=r"running failed: .*no-such-command"):
        carry_out(steps, fake.places.state, quiet)
    assert fake.files() == before


def test_a_file_that_cannot_be_written_fails_like_any_other(fake: FakeMachine) -> None:
    (fake.places.root / "etc").write_text("no folder")
    steps: list[Step] = [
        Write("writing", fake.places.root / "first", "text"),
        Write("more", fake.places.unit, "text"),
    ]
    with pytest.raises(HostError, match=r"(?s)more failed: .*is undone: this box is as it was"):
        carry_out(steps, fake.places.state, quiet)
    assert not (fake.places.root / "first").exists()


def test_a_link_does_not_replace_what_is_there(fake: FakeMachine) -> None:
    file = fake.places.root / "file"
    file.write_text("somebody's")
    with pytest.raises(HostError, match="linking failed"):
        carry_out([Symlink("linking", file, Path("/opt/x"))], fake.places.state, quiet)
    assert file.read_text() == "somebody's"


def test_files_folders_and_links_are_removed(fake: FakeMachine) -> None:
    folder, file, link = (fake.places.root / name for name in ("folder", "file", "link"))
    (folder / "inner").mkdir(parents=True)
    (folder / "inner/file").write_text("x")
    file.write_text("x")
    link.symlink_to(folder)
    steps = [Remove("", link), Remove("", file), Remove("", folder)]
    carry_out(steps, fake.places.state, quiet)
    assert {path.name for path in fake.places.root.iterdir()} == {"run", "var"}
    assert uninstallation(empty(fake.places), purge=True) == []
