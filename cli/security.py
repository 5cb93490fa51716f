"""`edgepart revoke`, `credential` and `ca`: decide who may be in the cluster, and who may manage it. They work on the state
directory; a running agent notices the change within a second."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from edgepart.cli.options import Agent, Json, State, state_of
from edgepart.cli.output import console, print_json, say, table
from edgepart.client.target import target_of
from edgepart.planner.errors import EdgepartError, UsageError

PASSPHRASE = "EDGEPART_PASSPHRASE"
SPREAD_S = 5.0
"""Seconds that `revoke` waits for this device's agent to notice the change."""

credential = typer.Typer(
    help="The management credential: it allows deploying and undeploying, and access from other machines.",
    no_args_is_help=True,
)
ca = typer.Typer(
    help="The CA's key: it admits, renews and revokes devices. Keep a copy of it elsewhere.",
    no_args_is_help=True,
)

PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        help=f"A file with the passphrase. {PASSPHRASE} may hold the passphrase instead.",
        show_default="asked for",
    ),
]


def revoke(
    names: Annotated[
        list[str],
        typer.Argument(metavar="DEVICE...", help="The names or node ids of devices, present or gone."),
    ],
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Exclude devices for good, and renew the management credential, which they know. Run this where the CA's key is."""
    from edgepart.agent.security import charter_file, identity, issued

    folder = state_of(state)
    me = identity.load(folder)
    members = _members(agent, folder)
    nodes = [issued.find(issued.read(me.directory), members, name) for name in names]
    held = charter_file.revoke(folder, nodes, time.time())
    running = bool(members) and _is_noticed(agent, folder, nodes)
    if as_json:
        print_json({"revoked": nodes, "all_revoked": sorted(held.revoked), "told": running})
        return
    say(f"Revoked {', '.join(nodes)}, for good. A device that comes back has to join with a new token.")
    say(f"The management credential was renewed; it is in {me.directory / 'admin'} on every member.")
    if running:
        say("This device's agent has ended its links to them, and informs all members that it reaches.")
    else:
        say("No agent runs here now. The members learn about it once this device's agent is started.")


def _members(agent: str | None, folder: Path) -> dict[str, str]:
    """The members' names by node id; {} if no agent runs."""
    from edgepart.cli.query import fetch

    try:
        document = fetch(target_of(agent, folder).alone, "/api/status")
    except EdgepartError:
        return {}
    return {member["node"]: member["name"] for member in document["members"]}


def _is_noticed(agent: str | None, folder: Path, nodes: list[str]) -> bool:
    from edgepart.cli.query import fetch

    until = time.monotonic() + SPREAD_S
    while time.monotonic() < until:
        try:
            security: dict[str, Any] = fetch(target_of(agent, folder).alone, "/api/status").get(
                "security", {}
            )
        except EdgepartError:
            return False
        if set(nodes) <= set(security.get("revoked", ())):
            return True
        time.sleep(0.1)
    return False


@credential.command()
def show(state: State = None, as_json: Json = False) -> None:
    """Print the credential. Anyone who has it can deploy."""
    from edgepart.agent.security import identity

    me = identity.load(state_of(state))
    if as_json:
        print_json({"credential": me.admin})
    else:
        typer.echo(me.admin)


@credential.command()
def rotate(state: State = None, as_json: Json = False) -> None:
    """Make a new credential for the whole cluster; the old one stops working. Run this where the CA's key is."""
    from edgepart.agent.security import charter_file, identity

    folder = state_of(state)
    charter_file.rotate(folder)
    where = str(identity.load(folder).directory / "admin")
    if as_json:
        print_json({"credential_file": where})
    else:
        say(
            f"The new credential is in {where}, and on each member as soon as the news reaches it (`credential show`)."
        )


@ca.command("list")
def list_(state: State = None, as_json: Json = False) -> None:
    """List the devices that this device has admitted."""
    from edgepart.agent.security import identity, issued

    me = identity.load(state_of(state))
    entries, out = issued.read(me.directory), me.revoked_nodes()
    if as_json:
        rows = [
            {"node": e.node, "name": e.name, "token": e.token, "at": e.at_s, "revoked": e.node in out}
            for e in entries
        ]
        print_json({"issued": rows, "revoked": sorted(out)})
        return
    if not entries:
        say("This device has admitted no other device.")
        return
    shown = [
        (
            e.node,
            e.name or "-",
            e.token,
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(e.at_s)),
            "revoked" if e.node in out else "in",
        )
        for e in entries
    ]
    console().print(table(("node", "name then", "token", "let in", "state"), shown))


@ca.command()
def export(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write the copy.")],
    state: State = None,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Write a copy of the CA's key, encrypted with a passphrase. Keep it away from this device."""
    from edgepart.agent.security import ca_key_file

    made = ca_key_file.export(state_of(state), target, passphrase_of(passphrase_file, twice=True))
    if as_json:
        print_json({"file": str(target), "fingerprint": made.fingerprint})
    else:
        say(f"{target} holds the key of cluster {made.fingerprint[:16]}; only the passphrase opens it.")


@ca.command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A file from `edgepart ca export`.")],
    state: State = None,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Give this member the CA's key, so that it too can admit, renew and revoke devices."""
    from edgepart.agent.security import ca_key_file

    made = ca_key_file.bring(state_of(state), source, passphrase_of(passphrase_file))
    if as_json:
        print_json({"fingerprint": made.fingerprint, "node": made.node_id})
    else:
        say("This device holds the CA's key now. Its tokens work wherever its agent can be reached.")


@ca.command()
def drop(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="A copy of the key, from `edgepart ca export`.")
    ],
    state: State = None,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Delete the CA's key from this device, once FILE has proved to be a copy of it."""
    from edgepart.agent.security import ca_key_file

    made = ca_key_file.drop(state_of(state), source, passphrase_of(passphrase_file))
    if as_json:
        print_json({"fingerprint": made.fingerprint, "node": made.node_id})
    else:
        say(
            "This device no longer has the CA's key. Unless another member has it, nobody can join, and no "
            "certificate is renewed."
        )


def passphrase_of(file: Path | None, *, twice: bool = False) -> str:
    """The passphrase, from the file, the environment or the terminal; never from the command line, which others can see.
    Raises UsageError if there is none."""
    if file is not None:
        try:
            return file.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--passphrase-file {file}: cannot be read ({error})") from error
    if given := os.environ.get(PASSPHRASE):
        return given
    if not sys.stdin.isatty():
        raise UsageError(f"give a passphrase: --passphrase-file FILE, or {PASSPHRASE}")
    return str(typer.prompt("Passphrase", hide_input=True, confirmation_prompt=twice))
