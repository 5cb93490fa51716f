"""`edgepart init`, `join` and `token`: who is in the cluster. These work on the state directory; no agent
need run."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from edgepart.agent.options import AgentOptions
from edgepart.agent.wire.address import parse_address
from edgepart.cli.options import (
    Json,
    Mqtt,
    MqttCa,
    MqttPasswordFile,
    State,
    broker_of,
    state_of,
)
from edgepart.cli.output import console, print_json, say, table
from edgepart.planner.errors import UsageError

Name = Annotated[
    str | None, typer.Option("--name", help="What to call this device.", show_default="its host name")
]

MOST_TOKEN = 4096
"""Characters that are read of a token."""

token = typer.Typer(
    help="Tokens let devices in: make, list and revoke them where `edgepart init` was run.",
    no_args_is_help=True,
)


def init(state: State = None, name: Name = None, as_json: Json = False) -> None:
    """Make a cluster, with this device as its first member."""
    from edgepart.agent.security import identity, tokens

    folder = state_of(state)
    _check_name(folder, name)
    now = time.time()
    made = identity.create_cluster(folder, now)
    remember_name(folder, name)
    text = tokens.create(folder, ttl_s=tokens.INIT_TTL_S, uses=tokens.INIT_USES, now=now)
    if as_json:
        print_json({"cluster": made.fingerprint[:16], "fingerprint": made.fingerprint, "token": text})
        return
    say(f"Made cluster {made.fingerprint[:16]}, with this device ({made.node_id}) as its first member.")
    hours = tokens.INIT_TTL_S / 3600
    say(
        f"\nOn each other device, within {hours:.0f} hours (the token is a secret; it lets {tokens.INIT_USES} in):\n"
    )
    say(f"  edgepart join {text}")
    say(
        "\nWhere others use that device as well: `edgepart join -`, which reads the token from standard input."
    )
    say("\nThen start the agent on every device:\n\n  edgepart agent")


def join(
    secret: Annotated[
        str,
        typer.Argument(
            metavar="TOKEN",
            envvar="EDGEPART_TOKEN",
            show_envvar=True,
            help="From `edgepart init` or `edgepart token create`; -: read from standard input, where nobody sees it who "
            "lists processes.",
        ),
    ],
    state: State = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer", metavar="HOST:PORT", help="A member's address, where mDNS finds none. Repeatable."
        ),
    ] = None,
    mqtt: Mqtt = None,
    mqtt_password_file: MqttPasswordFile = None,
    mqtt_ca: MqttCa = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Make this device a member of the cluster that TOKEN is from."""
    from edgepart.agent.admission import joining
    from edgepart.agent.security import tokens

    if secret == "-":
        secret = sys.stdin.readline(MOST_TOKEN)
    os.environ.pop("EDGEPART_TOKEN", None)  # no child of ours needs it
    folder = state_of(state)
    peers = [parse_address(text, option="--peer") for text in peer or ()]
    _check_name(folder, name)
    broker = broker_of(mqtt, mqtt_password_file, mqtt_ca)
    called = name or socket.gethostname().partition(".")[0]
    if broker is None:
        made = joining.join(secret, folder, peers, called)
    else:
        from edgepart.agent.mqtt.carrier import Visit

        with Visit(broker, tokens.parse(secret).fingerprint) as visit:
            made = joining.join(secret, folder, peers, called, find=visit.find, reach=visit.dial)
    remember_name(folder, name)
    if as_json:
        print_json({"cluster": made.fingerprint[:16], "fingerprint": made.fingerprint, "node": made.node_id})
        return
    say(f"This device is now member {made.node_id} of cluster {made.fingerprint[:16]}.")
    say("Start its agent:\n\n  edgepart agent")


@token.command()
def create(
    state: State = None,
    ttl: Annotated[str, typer.Option("--ttl", help="How long it is good for: 90s, 30m, 24h, 7d.")] = "1h",
    uses: Annotated[int, typer.Option("--uses", min=1, help="How many devices it lets in.")] = 1,
    as_json: Json = False,
) -> None:
    """Print a new token; its secret is seen only now."""
    from edgepart.agent.security import tokens

    now = time.time()
    ttl_s = parse_duration(ttl)
    text = tokens.create(state_of(state), ttl_s=ttl_s, uses=uses, now=now)
    if as_json:
        print_json({"token": text, "expires_at": now + ttl_s, "uses": uses})
        return
    say(f"edgepart join {text}")


@token.command("list")
def list_(state: State = None, as_json: Json = False) -> None:
    """Show the tokens that are kept; secrets are not."""
    from edgepart.agent.security import tokens

    now = time.time()
    cards = tokens.listed(state_of(state))
    if as_json:
        print_json(
            {
                "tokens": [
                    {
                        "id": card.token_id,
                        "created_at": card.created_at,
                        "expires_at": card.expires_at,
                        "uses": card.uses,
                        "usable": card.refusal(now) is None,
                    }
                    for card in cards
                ]
            }
        )
        return
    if not cards:
        say("No tokens. Make one with `edgepart token create`.")
        return
    rows = [
        (
            card.token_id,
            str(card.uses),
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(card.expires_at)),
            card.refusal(now) or "good",
        )
        for card in cards
    ]
    console().print(table(("token", "uses left", "expires", "state"), rows, right=("uses left",)))


@token.command()
def revoke(
    token_id: Annotated[
        str, typer.Argument(metavar="ID", help="From `edgepart token list`, or a whole token.")
    ],
    state: State = None,
    as_json: Json = False,
) -> None:
    """Let nobody in by this token any more; who is in stays."""
    from edgepart.agent.security import tokens

    tokens.revoke(state_of(state), token_id)
    if as_json:
        print_json({"revoked": token_id.rpartition("-")[2].partition(".")[0]})
    else:
        say("Revoked. Devices that came in by it stay members.")


def parse_duration(text: str, option: str = "--ttl") -> float:
    """Seconds of "90s", "30m", "24h" or "7d". UsageError.

    >>> parse_duration("24h")
    86400.0
    """
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smhd])", text.strip())
    if not found or float(found[1]) == 0:
        raise UsageError(f"{option} {text!r}: give a number and s, m, h or d, such as 30m")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


def remember_name(state: Path, name: str | None) -> None:
    """Keeps the device's name for `edgepart agent`, which is often started by systemd with no options."""
    from edgepart.agent.storage.atomic_files import write_atomic

    if name is not None:
        write_atomic(state / "name", name.encode())


def remembered_name(state: Path) -> str | None:
    try:
        return (state / "name").read_text()
    except FileNotFoundError:
        return None


def _check_name(state: Path, name: str | None) -> None:
    AgentOptions(state, name)
