"""Which steps an installation takes, by what is there: tables."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from edgepart.cli.service.plan import installation, set_option, uninstallation, unit_for, warnings, why_hidden
from edgepart.cli.service.situation import Enrolment, Places, Situation, Wish
from edgepart.cli.service.steps import Execute, Remove, Write
from edgepart.planner.errors import UsageError
from tests.cli.service.conftest import empty

PATHS = Places()
FIRST, OTHER = Enrolment("n1", "aa" * 32, True), Enrolment("n2", "aa" * 32, False)
INIT, JOIN = Wish(makes_cluster=True), Wish(token="EP1-x", fingerprint="aa" * 32)
EMPTY = empty()
TEXTS = {
    PATHS.unit: "the unit",
    PATHS.sysusers: "the user",
    PATHS.tmpfiles: "the folder",
    PATHS.config: '#peer = ["a:1"]\n',
    PATHS.environment: "the environment",
}
COMPLETE = replace(
    EMPTY,
    texts=TEXTS,
    linked=True,
    owns_link=True,
    has_user=True,
    has_state=True,
    member=FIRST,
    is_enabled=True,
    is_active=True,
    running_version="0.2.0",
)


def whats(box: Situation, wish: Wish) -> list[str]:
    return [step.what for step in installation(box, wish)]


def test_on_an_empty_box_everything_is_made_in_this_order() -> None:
    assert whats(EMPTY, INIT) == [
        "writing /etc/sysusers.d/edgepart.conf",
        "writing /etc/tmpfiles.d/edgepart.conf",
        "writing /etc/systemd/system/edgepart-agent.service",
        "writing /etc/edgepart/agent.toml",
        "writing /etc/edgepart/edgepart.env",
        "linking /usr/local/bin/edgepart to /opt/edgepart/bin/edgepart",
        "making the user edgepart",
        "making the folder /var/lib/edgepart",
        "trying /opt/edgepart/bin/edgepart as edgepart",
        "making a cluster",
        "having systemd read its files again",
        "having it start with this box",
        "starting the agent",
    ]


@pytest.mark.parametrize("wish", [Wish(), INIT])
def test_a_complete_box_needs_nothing(wish: Wish) -> None:
    assert installation(COMPLETE, wish) == []
    assert installation(replace(COMPLETE, member=OTHER), JOIN) == []


@pytest.mark.parametrize(
    ("box", "steps"),
    [
        (replace(COMPLETE, running_version="0.1.0"), ["having systemd read", "starting the agent anew"]),
        (replace(COMPLETE, running_version=""), []),
        (replace(COMPLETE, is_active=False), ["starting the agent"]),
        (replace(COMPLETE, is_enabled=False), ["having it start with this box"]),
        (
            replace(COMPLETE, linked=False),
            ["linking /usr/local/bin/edgepart to", "having", "starting the agent anew"],
        ),
        (
            replace(COMPLETE, texts=TEXTS | {PATHS.unit: "an older unit"}),
            [
                "writing /etc/systemd/system/edgepart-agent.service",
                "having systemd read",
                "starting the agent anew",
            ],
        ),
    ],
)
def test_what_is_missing_is_made(box: Situation, steps: list[str]) -> None:
    found = whats(box, Wish())
    assert len(found) == len(steps) and all(map(str.startswith, found, steps)), found


def test_files_of_a_package_are_not_written_again() -> None:
    packaged = {PATHS.packaged[path]: text for path, text in TEXTS.items() if path in PATHS.packaged}
    found = whats(replace(EMPTY, texts=packaged, linked=True), INIT)
    assert found[:3] == [
        "writing /etc/edgepart/agent.toml",
        "writing /etc/edgepart/edgepart.env",
        "making the user edgepart",
    ]
    older = packaged | {PATHS.packaged[PATHS.unit]: "for another program"}
    assert whats(replace(EMPTY, texts=older), INIT)[0] == f"writing {PATHS.unit}"


def test_settings_of_the_owner_stay_but_for_what_was_asked_for() -> None:
    box = replace(COMPLETE, texts=TEXTS | {PATHS.config: 'name = "mine"\n#peer = ["a:1"]\n'})
    assert installation(box, Wish()) == []
    step = installation(box, Wish(settings={"peer": ["b:2"]}))[0]
    assert isinstance(step, Write) and step.text == 'name = "mine"\npeer = ["b:2"]\n'


def test_a_token_and_settings_for_joining_reach_the_command_and_no_list_of_processes() -> None:
    wish = replace(JOIN, name="pi-b", settings={"peer": ["a:1", "b:2"], "mqtt": "mqtt://h"})
    (step,) = [step for step in installation(EMPTY, wish) if step.what == "joining the cluster"]
    assert isinstance(step, Execute) and step.stdin == "EP1-x"
    assert " ".join(step.command) == (
        "runuser -u edgepart -- /opt/edgepart/bin/edgepart join - --state /var/lib/edgepart "
        "--peer a:1 --peer b:2 --mqtt mqtt://h --name pi-b --json"
    )
    assert "EP1-x" not in repr(step)


@pytest.mark.parametrize(
    ("box", "wish", "message"),
    [
        (replace(EMPTY, has_systemd=False), INIT, "systemd does not run here.*edgepart agent"),
        (replace(EMPTY, is_root=False), INIT, "only root may do this: sudo /opt/edgepart/bin/edgepart"),
        (replace(EMPTY, missing_tools=("runuser",)), INIT, "the commands runuser are not here"),
        (replace(EMPTY, hidden="/home/x is hidden"), INIT, "/home/x is hidden"),
        (
            replace(EMPTY, taken=("*:7433",)),
            INIT,
            r"listens on \*:7433 .*sport = :7433.*/etc/edgepart/agent.toml",
        ),
        (replace(EMPTY, wrong_settings="agent.toml, line 2: no"), INIT, "agent.toml, line 2: no"),
        (
            replace(EMPTY, damage="the identity is damaged"),
            Wish(),
            "nothing was changed: the identity is damaged",
        ),
        (EMPTY, Wish(), "in no cluster yet: give --init on the first box"),
        (replace(COMPLETE, member=OTHER), INIT, "has joined cluster aaaaaaaaaaaaaaaa already.*--purge"),
        (COMPLETE, Wish(token="t", fingerprint="bb" * 32), "the token is for another one"),
        (
            replace(EMPTY, taken=("*:1",), hidden="h"),
            Wish(),
            "(?s)nothing was changed: \n  - h\n  - another .*\n  - this",
        ),
    ],
)
def test_what_is_in_the_way_is_said_before_anything_is_changed(
    box: Situation, wish: Wish, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        installation(box, wish)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/opt/edgepart/bin/edgepart", None),
        ("/homes/edgepart", None),
        (
            "/home/pi/edgepart/bin/edgepart",
            "is in /home, which the service does not see; install edgepart where",
        ),
        ("/root/bin/edgepart", "is in /root,"),
        ("/tmp/edgepart", "is in /tmp,"),
        ("/opt/my programs/edgepart", "mean something to systemd"),
        ("/opt/50%/edgepart", "mean something to systemd"),
    ],
)
def test_where_the_service_cannot_see_a_program(path: str, why: str | None) -> None:
    found = why_hidden(Path(path))
    assert (found is None) if why is None else (found is not None and why in found)


def test_the_unit_starts_the_program_that_installs_it() -> None:
    text = (Path(__file__).parents[3] / "systemd/edgepart-agent.service").read_text()
    line = "ExecStart=/srv/bin/edgepart agent --config /etc/edgepart/agent.toml $EDGEPART_OPTIONS"
    assert line in unit_for(text, Path("/srv/bin/edgepart")).splitlines()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('#peer = ["a:1"]\n#x = 1\n', 'peer = ["b:2"]\n#x = 1\n'),
        ('peer=["a:1", "c:3"] # old\n', 'peer = ["b:2"]\n'),
        ("# peers = many\n", '# peers = many\n\npeer = ["b:2"]\n'),
        ("", 'peer = ["b:2"]\n'),
    ],
)
def test_an_option_is_set_in_its_line(text: str, expected: str) -> None:
    assert set_option(text, "peer", ["b:2"]) == expected
    assert tomllib.loads(expected) == {"peer": ["b:2"]}


def test_a_value_over_several_lines_is_left_to_its_owner() -> None:
    with pytest.raises(UsageError, match=r'several lines; write peer = \["b:2"\] there yourself'):
        set_option('peer = [\n  "a:1",\n]\n', "peer", ["b:2"])


def test_uninstalling_keeps_identity_and_settings_and_purging_does_not() -> None:
    steps = uninstallation(COMPLETE, purge=False)
    assert [step.path for step in steps if isinstance(step, Remove)] == [
        PATHS.unit,
        PATHS.sysusers,
        PATHS.tmpfiles,
        PATHS.link,
    ]
    assert isinstance(steps[0], Execute) and steps[0].command[:3] == ("systemctl", "disable", "--now")
    purging = uninstallation(COMPLETE, purge=True)
    extra = {step.path for step in purging if isinstance(step, Remove)} - {
        step.path for step in steps if isinstance(step, Remove)
    }
    assert extra == {PATHS.settings, PATHS.state}
    assert ("userdel", "edgepart") in {step.command for step in purging if isinstance(step, Execute)}


def test_there_is_nothing_to_uninstall_on_an_empty_box_and_only_root_may_try() -> None:
    assert uninstallation(EMPTY, purge=True) == []
    with pytest.raises(UsageError, match="only root may do this"):
        uninstallation(replace(COMPLETE, is_root=False), purge=False)


def test_who_removes_the_ca_key_is_warned() -> None:
    assert "Without a copy" in " ".join(warnings(COMPLETE, purge=True))
    assert "Without a copy" not in " ".join(warnings(replace(COMPLETE, member=OTHER), purge=True))
    assert warnings(COMPLETE, purge=False) == []
