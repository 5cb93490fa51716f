"""Options that several commands share, and where they lead: the state directory, an agent's URL, the
credential.

Door: it reads the state directory and the environment; no network.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from edgepart.agent.mqtt.broker import Broker, parse_broker
from edgepart.agent.options import state_folder
from edgepart.cli.agent import MQTT_PASSWORD
from edgepart.planner.errors import Unavailable, UsageError
from edgepart.planner.json_text import parse_json
from edgepart.planner.plans.reduced_precision import KINDS

State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        envvar="EDGEPART_STATE",
        show_envvar=True,
        help="Folder of this device's identity and store.",
        show_default="the user's state folder",
    ),
]
Agent = Annotated[
    str | None,
    typer.Option(
        "--agent",
        envvar="EDGEPART_AGENT",
        show_envvar=True,
        metavar="URL",
        help="The agent to talk to.",
        show_default="this machine's",
    ),
]
TransferDtype = Annotated[
    str,
    typer.Option(
        "--transfer-dtype",
        metavar="|".join(KINDS),
        help="Round what travels from device to device: fewer bytes, and answers that differ more than 1e-4.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


Mqtt = Annotated[
    str | None,
    typer.Option(
        "--mqtt",
        envvar="EDGEPART_MQTT",
        show_envvar=True,
        metavar="URL",
        help="A broker where members find each other: mqtt://[USER@]HOST[:PORT], or mqtts:// for TLS.",
    ),
]
MqttPasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--mqtt-password-file",
        help="Holds the broker's password; or set EDGEPART_MQTT_PASSWORD.",
        show_default="no password",
    ),
]
MqttCa = Annotated[
    Path | None,
    typer.Option("--mqtt-ca", help="The CA (PEM) of the broker's certificate.", show_default="the system's"),
]


def check_there(model: Path) -> None:
    """UsageError where there is no model of that path."""
    if not model.is_file():
        raise UsageError(f"there is no model {str(model)!r}; give the path of an .onnx file")


def state_of(given: Path | None) -> Path:
    return state_folder(os.environ, given)


def broker_of(url: str | None, password_file: Path | None, ca: Path | None) -> Broker | None:
    """The broker that the options and the environment name. UsageError."""
    if url is None:
        if password_file is not None or ca is not None:
            raise UsageError("--mqtt-password-file and --mqtt-ca are of use with --mqtt only")
        return None
    password = os.environ.get(MQTT_PASSWORD) or None
    if password_file is not None:
        try:
            password = password_file.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--mqtt-password-file {password_file}: cannot be read ({error})") from error
    if ca is not None and not ca.is_file():
        raise UsageError(f"--mqtt-ca {ca}: there is no such file")
    return parse_broker(url, password=password, ca=ca and ca.absolute())


@dataclass(frozen=True)
class AgentTarget:
    """An agent to talk to, and what opens it."""

    url: str
    """Without a slash at the end."""
    state: Path

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine, where reading and inference need no credential."""
        try:
            host = urlsplit(self.url).hostname or ""
            return host == "localhost" or ip_address(host).is_loopback
        except ValueError:
            return False

    def credential(self) -> str:
        """The cluster's admin credential. UsageError where this machine is no member."""
        from edgepart.agent.security import identity

        return identity.load(self.state).admin


def target_of(agent: str | None, state: Path | None) -> AgentTarget:
    """The agent named, or the one that runs on this machine. UsageError, or Unavailable where none runs."""
    folder = state_of(state)
    if agent is not None:
        url = urlsplit(agent if "//" in agent else f"http://{agent}")
        if url.scheme not in ("http", "https") or not url.hostname or url.path not in ("", "/"):
            raise UsageError(f"--agent {agent!r}: give a URL such as http://127.0.0.1:8433")
        return AgentTarget(f"{url.scheme}://{url.netloc}", folder)
    announced = folder / "agent.json"
    try:
        url_text = parse_json(announced.read_text())["http"]
    except FileNotFoundError:
        raise Unavailable(
            f"no agent runs with state {folder}: start one with `edgepart agent --state {folder}`, or name "
            "another's URL with --agent"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{announced} cannot be read ({error}); name the agent's URL with --agent"
        ) from error
    return AgentTarget(str(url_text).rstrip("/"), folder)
