"""`edgepart service install`, `status` and `uninstall`: the commands, and what they say."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from edgepart.agent.options import AgentOptions
from edgepart.cli.options import (
    Json,
    Mqtt,
    MqttCa,
    MqttPasswordFile,
    Name,
    Peers,
    broker_of,
)
from edgepart.cli.output import note, print_json, say
from edgepart.cli.service.situation import UNIT, Places, Situation, Wish
from edgepart.client.target import AgentTarget, target_of
from edgepart.planner.errors import EdgepartError, StillGoing, Unavailable, UsageError

MEMBER_S = 60.0
"""The most seconds that the box may take to become a member, or to find the others."""
LOOK_S = 0.5
MOST_TOKEN = 4096
"""The most characters of a token that are read from standard input."""
PLACES = Places()

service = typer.Typer(
    help="Run this box's agent as a service of systemd: install, look at it, uninstall.", no_args_is_help=True
)

Init = Annotated[bool, typer.Option("--init", help="Make a cluster whose first member is this box.")]
Token = Annotated[
    str | None,
    typer.Option(
        "--join",
        metavar="TOKEN",
        envvar="EDGEPART_TOKEN",
        help="Join the cluster that issued this token. With - it is read from standard input, which keeps it out of the "
        "list of processes.",
        show_default=False,
    ),
]


@service.command()
def install(
    init: Init = False,
    join: Token = None,
    peer: Peers = None,
    mqtt: Mqtt = None,
    mqtt_password_file: MqttPasswordFile = None,
    mqtt_ca: MqttCa = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Have systemd run the agent: make user, folders and files, join, start, and see that this box is a member.

    Nothing is changed if it could not be finished, and what was done is undone if a step fails. What is there stays,
    so that the same command also repairs an installation. After an upgrade it starts the agent anew.
    """
    from edgepart.cli.service import host, plan
    from edgepart.cli.service.carrying_out import carry_out

    settings: dict[str, Any] = {
        "peer": peer,
        "mqtt": mqtt,
        "mqtt-password-file": mqtt_password_file and str(mqtt_password_file.absolute()),
        "mqtt-ca": mqtt_ca and str(mqtt_ca.absolute()),
    }
    broker_of(mqtt, mqtt_password_file, mqtt_ca)
    AgentOptions(PLACES.state, name)  # raises UsageError for a name that is none
    wish = _wish(init, join, name, {key: value for key, value in settings.items() if value})
    box = host.look(PLACES, host.program())
    steps = plan.installation(box, wish)
    printed = carry_out(steps, PLACES.state, note)
    member = host.look(PLACES, box.executable).member
    if member is None:
        raise UsageError(
            f"{PLACES.state} holds no identity although the agent was started; see journalctl -u {UNIT}"
        )
    others = _await_membership(member.node, alone=member.is_issuer and not wish.token)
    token = json.loads(printed[plan.MAKING])["token"] if plan.MAKING in printed else None
    if as_json:
        done = {
            "steps": [step.what for step in steps],
            "cluster": member.fingerprint[:16],
            "node": member.node,
        }
        print_json({**done, "token": token, "members": others})
        return
    _report(box, member.fingerprint[:16], others, token, changed=bool(steps))


def _wish(init: bool, join: str | None, name: str | None, settings: dict[str, Any]) -> Wish:
    from edgepart.agent.security import tokens

    if init and join:
        raise UsageError("--init and --join exclude each other: --init is for the first box alone")
    if join == "-":
        join = sys.stdin.readline(MOST_TOKEN)
    fingerprint = tokens.parse(join).fingerprint if join else None
    return Wish(init, join, fingerprint, name, settings)


def _await_membership(node: str, *, alone: bool) -> list[str]:
    """The names of the members that are alive, once this box is one of them, and, unless it may be alone, another is too.
    Raises StillGoing if that takes too long."""
    from edgepart.cli.query import fetch

    note("waiting until this box is a member")
    until, why = time.monotonic() + MEMBER_S, "its agent does not answer"
    while time.monotonic() < until:
        try:
            document = fetch(target_of(None, PLACES.state), "/api/status")
        except EdgepartError as error:
            why = str(error)
        else:
            alive = {
                member["node"]: member["name"] for member in document["members"] if member["state"] == "alive"
            }
            if node in alive and (alone or len(alive) > 1):
                return sorted(alive.values())
            why = "it sees no other member" if node in alive else "it is not alive in its own view"
        time.sleep(LOOK_S)
    raise StillGoing(
        f"the service is installed and runs, but after {MEMBER_S:.0f} s this box is no member: {why}. "
        f"`sudo edgepart doctor --state {PLACES.state}` says what to do"
    )


def _report(box: Situation, cluster: str, members: list[str], token: str | None, *, changed: bool) -> None:
    others = f" Members now: {', '.join(members)}."
    begin = (
        "The agent runs as a service" if changed else "Nothing was to be done: the agent runs as a service"
    )
    say(f"{begin}, and this box is a member of cluster {cluster}.{others}")
    if token is not None:
        say("\nOn each other box, within 24 hours (the token is secret; 16 boxes may use it):\n")
        say(f"  sudo edgepart service install --join {token}")
    say(f"\nSettings: {box.places.config} (after a change: sudo systemctl restart edgepart-agent)")
    say(f"Deploy:   sudo edgepart deploy MODEL --state {box.places.state}")
    say("Look:     edgepart service status")


@service.command()
def status(as_json: Json = False) -> None:
    """Say whether the service is installed, runs, and is a member. Exits with 1 if it does not run."""
    from edgepart.cli.service import host

    box = host.look(PLACES, host.program())
    unit = next((path for path in (PLACES.unit, PLACES.packaged[PLACES.unit]) if path in box.texts), None)
    document: dict[str, Any] = {
        "unit": str(unit) if unit else None,
        "enabled": box.is_enabled,
        "active": box.is_active,
        "program": _program_in(box.texts[unit]) if unit else None,
        "settings": str(PLACES.config) if PLACES.config in box.texts else None,
        "state": str(PLACES.state) if box.has_state else None,
        "wrong_settings": box.wrong_settings,
        "members": _members() if box.is_active else None,
    }
    if as_json:
        print_json(document)
    else:
        _show(document, box)
    if not box.is_active:
        raise typer.Exit(1)


def _program_in(unit: str) -> str:
    """The program that a unit file starts."""
    return shlex.split(
        next(line for line in unit.splitlines() if line.startswith("ExecStart=")).partition("=")[2]
    )[0]


def _members() -> list[dict[str, str]] | None:
    """The members as this box's agent sees them; None if it does not answer. Everybody may read them from this machine."""
    from edgepart.cli.query import fetch

    try:
        document = fetch(_target(), "/api/status")
    except EdgepartError:
        return None
    return [{key: member[key] for key in ("name", "state")} for member in document["members"]]


def _target() -> AgentTarget:
    """The service's agent: as it wrote down for root, and where it is by default for everybody else."""
    try:
        return target_of(None, PLACES.state)
    except (PermissionError, Unavailable, UsageError):
        return target_of("127.0.0.1:8433", PLACES.state)


def _show(document: dict[str, Any], box: Situation) -> None:
    if document["unit"] is None:
        say(
            "The service is not installed: sudo edgepart service install --init, or --join TOKEN, installs it."
        )
        return
    runs = "runs" if document["active"] else "does not run (journalctl -u edgepart-agent says why)"
    starts = "starts with this box" if document["enabled"] else "does not start with this box"
    say(f"The agent {runs}, and {starts}.")
    if document["active"]:
        members = document["members"]
        listed = ", ".join(f"{each['name']} ({each['state']})" for each in members or ())
        say(f"members   {listed}" if members else "members   unknown: the agent does not answer")
    for label, key in (
        ("program", "program"),
        ("unit", "unit"),
        ("settings", "settings"),
        ("state", "state"),
    ):
        say(f"{label:<9} {document[key] or 'none'}")
    if box.wrong_settings:
        say(f"\nThe settings cannot be used: {box.wrong_settings}")


@service.command()
def uninstall(
    purge: Annotated[
        bool,
        typer.Option(
            "--purge", help="Remove the settings, this box's identity, its models and the user as well."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Stop the agent and remove the service. The program stays; the identity and the settings too, without --purge."""
    from edgepart.cli.service import host, plan
    from edgepart.cli.service.carrying_out import carry_out

    box = host.look(PLACES, host.program())
    steps = plan.uninstallation(box, purge=purge)
    if not steps:
        say("There is nothing to remove.")
        return
    for text in plan.warnings(box, purge=purge):
        note(text)
    if not yes:
        note("This will be done:\n" + "\n".join(f"  {step.what}" for step in steps))
        typer.confirm("Go on?", abort=True, err=True)
    carry_out(steps, PLACES.state, note)
    kept = Path(PLACES.state)
    say("The service is removed." if purge else f"The service is removed; {kept} and {PLACES.settings} stay.")
    if PLACES.packaged[PLACES.unit] in box.texts:
        say("The program belongs to a package: sudo apt remove edgepart")
