"""`edgepart init`, `join` and `token`: make a cluster and its members. They work on the state directory; no agent needs to
run."""

from __future__ import annotations

import os
import shlex
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
    Name,
    Peers,
    State,
    broker_of,
    parse_duration,
    remember_name,
    state_of,
)
from edgepart.cli.output import console, print_json, say, table

MOST_TOKEN = 4096
"""The most characters of a token that are read from standard input."""

token = typer.Typer(
    help="Make, list and revoke the tokens with which devices join. Run it where `edgepart init` was run.",
    no_args_is_help=True,
)


def _state_option(state: Path | None) -> str:
    """The option that names the state directory in a command for people; "" if they named none."""
    return f" --state {shlex.quote(str(state))}" if state else ""


def init(state: State = None, name: Name = None, as_json: Json = False) -> None:
    """Make a cluster whose first member is this device."""
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
    say(f"Made cluster {made.fingerprint[:16]}. This device ({made.node_id}) is its first member.")
    hours = tokens.INIT_TTL_S / 3600
    say(
        f"\nOn each other device, within {hours:.0f} hours (the token is secret; {tokens.INIT_USES} devices may use it):\n"
    )
    say(f"  edgepart join {text}")
    say("\nOn a device that others use as well, `edgepart join -` reads the token from standard input.")
    here = f" (here with{_state_option(state)})" if state else ""
    say(f"\nThen start the agent on every device{here}:\n\n  edgepart agent")


def join(
    secret: Annotated[
        str,
        typer.Argument(
            metavar="TOKEN",
            envvar="EDGEPART_TOKEN",
            show_envvar=True,
            help="A token from `edgepart init` or `edgepart token create`. With - it is read from standard input, "
            "which keeps it out of process lists.",
        ),
    ],
    state: State = None,
    peer: Peers = None,
    mqtt: Mqtt = None,
    mqtt_password_file: MqttPasswordFile = None,
    mqtt_ca: MqttCa = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Make this device a member of the cluster that issued TOKEN."""
    from edgepart.agent.admission import joining
    from edgepart.agent.security import tokens

    if secret == "-":
        secret = sys.stdin.readline(MOST_TOKEN)
    os.environ.pop("EDGEPART_TOKEN", None)  # no child process needs it
    folder = state_of(state)
    peers = [parse_address(text, option="--peer") for text in peer or ()]
    _check_name(folder, name)
    broker = broker_of(mqtt, mqtt_password_file, mqtt_ca)
    called = name or socket.gethostname().partition(".")[0]
    if broker is None:
        made = joining.join(secret, folder, peers, called)
    else:
        from edgepart.agent.mqtt.carrier import JoinerCarrier

        with JoinerCarrier(broker, tokens.parse(secret).fingerprint) as visit:
            made = joining.join(secret, folder, peers, called, find=visit.find, reach=visit.dial)
    remember_name(folder, name)
    if as_json:
        print_json({"cluster": made.fingerprint[:16], "fingerprint": made.fingerprint, "node": made.node_id})
        return
    say(f"This device is now member {made.node_id} of cluster {made.fingerprint[:16]}.")
    say(f"Start its agent:\n\n  edgepart agent{_state_option(state)}")


@token.command()
def create(
    state: State = None,
    ttl: Annotated[str, typer.Option("--ttl", help="How long the token is valid: 90s, 30m, 24h, 7d.")] = "1h",
    uses: Annotated[int, typer.Option("--uses", min=1, help="How many devices may join with it.")] = 1,
    as_json: Json = False,
) -> None:
    """Print a new token. Its secret is not shown again."""
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
    """List the tokens, without their secrets, which are not stored."""
    from edgepart.agent.security import tokens

    now = time.time()
    cards = tokens.list_tokens(state_of(state))
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
        str, typer.Argument(metavar="ID", help="An id from `edgepart token list`, or a whole token.")
    ],
    state: State = None,
    as_json: Json = False,
) -> None:
    """Refuse this token from now on. Devices that joined with it stay members."""
    from edgepart.agent.security import tokens

    tokens.revoke(state_of(state), token_id)
    if as_json:
        print_json({"revoked": token_id.rpartition("-")[2].partition(".")[0]})
    else:
        say("Revoked. Devices that joined with it stay members.")


def _check_name(state: Path, name: str | None) -> None:
    AgentOptions(state, name)
