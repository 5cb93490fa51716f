"""Options that several commands share, and the things that they name: the state directory, a broker, a duration.

Door: it reads the state directory and the environment, and opens no connection.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from edgepart.agent.mqtt.broker import Broker, parse_broker
from edgepart.agent.options import state_folder
from edgepart.cli.agent import MQTT_PASSWORD
from edgepart.cli.completion import complete_deployment
from edgepart.planner.errors import UsageError
from edgepart.planner.plans.reduced_precision import KINDS
from edgepart.planner.vocabulary import WEIGHTS

State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        envvar="EDGEPART_STATE",
        show_envvar=True,
        help="The folder with this device's identity and data.",
        show_default="the user's state folder",
    ),
]
Agent = Annotated[
    str | None,
    typer.Option(
        "--agent",
        envvar="EDGEPART_AGENT",
        show_envvar=True,
        metavar="URL[,URL...]",
        help="The agent to talk to, and others for when it is gone.",
        show_default="this machine's",
    ),
]
TransferDtype = Annotated[
    str,
    typer.Option(
        "--transfer-dtype",
        metavar="|".join(KINDS),
        help="Round the values that devices send each other. This sends fewer bytes; answers may differ by more than 1e-4.",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(WEIGHTS),
        autocompletion=lambda: list(WEIGHTS),
        help="Make the model smaller before it is sent: the weights of its products become whole numbers of 8 or 4 bits.",
        show_default="as they are",
    ),
]
Operators = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.py",
        help="Divide operators and functions that this Python file describes with edgepart.tdl. It is run here only.",
        show_default="they run whole",
    ),
]
Name = Annotated[
    str | None, typer.Option("--name", help="The name of this device.", show_default="its host name")
]
Input = Annotated[
    list[str] | None,
    typer.Option(
        "--input", "-i", metavar="[NAME=]FILE", help="A .npy, .npz or .json file, or a picture. Repeatable."
    ),
]
Deadline = Annotated[
    float, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="The time limit of each request.")
]
Picture = Annotated[
    str,
    typer.Option(
        metavar="KEY=VALUE,...",
        help="How a picture becomes an input: order=bgr, mean=R/G/B, std=R/G/B, range=255, fit=stretch, size=WxH.",
        show_default="what the input's shape tells, and ImageNet's means",
    ),
]
Seed = Annotated[int, typer.Option(help="The seed of the random inputs that are used without --input.")]
DeployedName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The deployment's name, as `edgepart models` shows it.",
        autocompletion=complete_deployment,
    ),
]
StatePairs = Annotated[
    list[str] | None,
    typer.Option(
        "--state-pair",
        metavar="OUTPUT=INPUT",
        help="An output that is an input of the next step, if its name does not say so. Repeatable.",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="TOKENS",
        help="The most tokens of a sequence, for a decoder with caches of keys and values. Steps have one token.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Peers = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="HOST:PORT",
        help="The address of a member, for networks where multicast DNS finds none. Repeatable.",
    ),
]
Mqtt = Annotated[
    str | None,
    typer.Option(
        "--mqtt",
        envvar="EDGEPART_MQTT",
        show_envvar=True,
        metavar="URL",
        help="An MQTT broker through which members find each other: mqtt://[USER@]HOST[:PORT], or mqtts:// for TLS.",
    ),
]
MqttPasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--mqtt-password-file",
        help="A file with the broker's password. EDGEPART_MQTT_PASSWORD may hold the password instead.",
        show_default="no password",
    ),
]
MqttCa = Annotated[
    Path | None,
    typer.Option(
        "--mqtt-ca",
        help="A PEM file with the CA that signed the broker's certificate.",
        show_default="the system's",
    ),
]


def read_pairs(state_pair: Sequence[str] | None, *, no_states: bool) -> tuple[tuple[str, str], ...] | None:
    """The pairs of --state-pair, () for --no-states, and None if names are to say which states there are. Raises
    UsageError."""
    from edgepart.planner.model.states import parse_pair

    if no_states and state_pair:
        raise UsageError("--no-states and --state-pair exclude each other")
    return tuple(map(parse_pair, state_pair)) if state_pair else () if no_states else None


def state_of(given: Path | None) -> Path:
    """The state directory: the one given, or the default of this user."""
    return state_folder(os.environ, given)


def broker_of(
    url: str | None, password_file: Path | None, ca: Path | None, option: str = "--mqtt"
) -> Broker | None:
    """The broker that the options and the environment describe; None without a URL, which `option` gives. Raises UsageError
    if they are wrong."""
    if url is None:
        if password_file is not None or ca is not None:
            raise UsageError(f"--mqtt-password-file and --mqtt-ca need {option}")
        return None
    password = os.environ.get(MQTT_PASSWORD) or None
    if password_file is not None:
        try:
            password = password_file.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--mqtt-password-file {password_file}: cannot be read ({error})") from error
    if ca is not None and not ca.is_file():
        raise UsageError(f"--mqtt-ca {ca}: there is no such file")
    return parse_broker(url, password=password, ca=ca and ca.absolute(), option=option)


def parse_duration(text: str, option: str = "--ttl") -> float:
    """The seconds of a duration such as "90s", "30m", "24h" or "7d". Raises UsageError, which names `option`.

    >>> parse_duration("24h")
    86400.0
    """
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smhd])", text.strip())
    if not found or float(found[1]) == 0:
        raise UsageError(f"{option} {text!r}: give a number and s, m, h or d, such as 30m")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


def remember_name(state: Path, name: str | None) -> None:
    """Stores the device's name for `edgepart agent`, which systemd often starts without options."""
    from edgepart.agent.storage.atomic_files import write_atomic

    if name is not None:
        write_atomic(state / "name", name.encode())


def recall_name(state: Path) -> str | None:
    """The name that `remember_name` stored; None if there is none."""
    try:
        return (state / "name").read_text()
    except FileNotFoundError:
        return None
