"""`edgepart revoke`, `credential` and `ca`: putting devices out, and who may. These work on the state directory; a running
agent notices within a second."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from edgepart.cli.options import Agent, Json, State, state_of, target_of
from edgepart.cli.output import console, print_json, say, table
from edgepart.planner.errors import EdgepartError, UsageError

PASSPHRASE = "EDGEPART_PASSPHRASE"
SPREAD_S = 5.0
"""How long `revoke` waits for this device's agent to notice."""

credential = typer.Typer(
    help="The management credential: what deploys, undeploys, and opens agents to other machines.",
    no_args_is_help=True,
)
ca = typer.Typer(
    help="The CA's key: with it devices are let in, renewed and revoked. Keep a copy of it elsewhere.",
    no_args_is_help=True,
)

PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        help=f"Holds the passphrase; or set {PASSPHRASE}.",
        show_default="asked for",
    ),
]


def revoke(
    names: Annotated[
        list[str],
        typer.Argument(metavar="DEVICE...", help="Names or node ids, of members or of boxes that are gone."),
    ],
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Put devices out for good, and renew the management credential, which they know. Run it where the CA's key is."""
    from edgepart.agent.security import charter_file, identity, issued

    folder = state_of(state)
    me = identity.load(folder)
    members = _members(agent, folder)
    nodes = [issued.find(issued.read(me.directory), members, name) for name in names]
    held = charter_file.revoke(folder, nodes, time.time())
    running = bool(members) and _noticed(agent, folder, nodes)
    if as_json:
        print_json({"revoked": nodes, "all_revoked": sorted(held.revoked), "told": running})
        return
    say(f"Revoked {', '.join(nodes)}, for ever: what comes back joins anew, by a new token.")
    say(f"The management credential was renewed; it is in {me.directory / 'admin'} on every member.")
    if running:
        say("This device's agent has ended its links to them, and tells all members that it reaches.")
    else:
        say("No agent runs here now: members learn it when this device's agent is started.")


def _members(agent: str | None, folder: Path) -> dict[str, str]:
    """Names by node id, as the agent sees them; {} where none runs."""
    from edgepart.cli.query import fetch

    try:
        document = fetch(target_of(agent, folder), "/api/status")
    except EdgepartError:
        return {}
    return {member["node"]: member["name"] for member in document["members"]}


def _noticed(agent: str | None, folder: Path, nodes: list[str]) -> bool:
    from edgepart.cli.query import fetch

    until = time.monotonic() + SPREAD_S
    while time.monotonic() < until:
        try:
            security: dict[str, Any] = fetch(target_of(agent, folder), "/api/status").get("security", {})
        except EdgepartError:
            return False
        if set(nodes) <= set(security.get("revoked", ())):
            return True
        time.sleep(0.1)
    return False


@credential.command()
def show(state: State = None, as_json: Json = False) -> None:
    """Print it. Whoever sees it can deploy."""
    from edgepart.agent.security import identity

    me = identity.load(state_of(state))
    if as_json:
        print_json({"credential": me.admin})
    else:
        typer.echo(me.admin)


@credential.command()
def rotate(state: State = None, as_json: Json = False) -> None:
    """Make a new one for the whole cluster; the old one opens nothing any more. Run it where the CA's key is."""
    from edgepart.agent.security import charter_file, identity

    folder = state_of(state)
    charter_file.rotate(folder)
    where = str(identity.load(folder).directory / "admin")
    if as_json:
        print_json({"credential_file": where})
    else:
        say(
            f"The new credential is in {where}, and on each member as soon as it is told (`credential show`)."
        )


@ca.command("list")
def list_(state: State = None, as_json: Json = False) -> None:
    """Show whom this device has let in."""
    from edgepart.agent.security import identity, issued

    me = identity.load(state_of(state))
    entries, out = issued.read(me.directory), me.revoked()
    if as_json:
        rows = [
            {"node": e.node, "name": e.name, "token": e.token, "at": e.at_s, "revoked": e.node in out}
            for e in entries
        ]
        print_json({"issued": rows, "revoked": sorted(out)})
        return
    if not entries:
        say("This device has let nobody in.")
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
    """Write a copy of the CA's key, sealed with a passphrase. Keep it away from this device."""
    from edgepart.agent.security import ca_key_file

    made = ca_key_file.export(state_of(state), target, passphrase_of(passphrase_file, twice=True))
    if as_json:
        print_json({"file": str(target), "fingerprint": made.fingerprint})
    else:
        say(f"{target} holds the key of cluster {made.fingerprint[:16]}; it opens with the passphrase only.")


@ca.command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="From `edgepart ca export`.")],
    state: State = None,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Give this member the CA's key, so that it too lets devices in, renews and revokes."""
    from edgepart.agent.security import ca_key_file

    made = ca_key_file.bring(state_of(state), source, passphrase_of(passphrase_file))
    if as_json:
        print_json({"fingerprint": made.fingerprint, "node": made.node_id})
    else:
        say(
            "This device holds the CA's key now. Tokens that it makes are good where its agent can be reached."
        )


@ca.command()
def drop(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A copy, from `edgepart ca export`.")],
    state: State = None,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Take the CA's key from this device, once FILE has proved to be a copy of it."""
    from edgepart.agent.security import ca_key_file

    made = ca_key_file.drop(state_of(state), source, passphrase_of(passphrase_file))
    if as_json:
        print_json({"fingerprint": made.fingerprint, "node": made.node_id})
    else:
        say(
            "The CA's key is gone from here. Nobody joins, and no certificate is renewed, where no other member has it."
        )


def passphrase_of(file: Path | None, *, twice: bool = False) -> str:
    """From the file, the environment or the terminal; never from the command line, which others see. UsageError."""
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
