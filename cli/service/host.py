"""Host: looks at what an installation finds on this machine. Door: reads files, runs commands that change nothing, and
tries whether ports are free."""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import edgepart
from edgepart.agent.net.endpoints import bind
from edgepart.agent.options import HTTP_PORT, LISTEN_PORT
from edgepart.agent.security import identity
from edgepart.agent.wire.address import Address, format_address, parse_address
from edgepart.cli.agent_command import agent
from edgepart.cli.config.config_file import read
from edgepart.cli.config.option_list import options_of
from edgepart.cli.query import fetch
from edgepart.cli.service.plan import ELSEWHERE, TOOLS, unit_for, why_hidden
from edgepart.cli.service.situation import UNIT, USER, Enrolment, Places, Shipped, Situation
from edgepart.client.target import target_of
from edgepart.planner.errors import EdgepartError, Unavailable, UsageError

ANSWER_S = 30.0
"""The most seconds that systemd may take to say how the service is."""


def program() -> Path:
    """The console script of the environment that this runs in."""
    beside = Path(sys.prefix) / "bin" / "edgepart"
    return beside if beside.exists() else Path(shutil.which("edgepart") or sys.argv[0]).absolute()


def shipped(executable: Path) -> Shipped:
    """The files that ship with the product, the unit for this program."""
    folder = files("edgepart") / "systemd"
    return Shipped(
        unit_for((folder / UNIT).read_text(), executable),
        (folder / "sysusers.d" / "edgepart.conf").read_text(),
        (folder / "tmpfiles.d" / "edgepart.conf").read_text(),
        (folder / "agent.toml").read_text(),
        (folder / "edgepart.env").read_text(),
    )


def look(places: Places, executable: Path) -> Situation:
    """What is on this machine. Changes nothing."""
    systemd = (places.root / "run/systemd/system").is_dir()
    active = systemd and _says_yes("systemctl", "is-active", "--quiet", UNIT)
    member, damage = _member(places.state)
    taken, wrong = ((), None) if active else _taken(places.config)
    packaged = places.packaged
    paths = (*packaged, *packaged.values(), places.config, places.environment)
    linked = os.path.lexists(places.link)
    return Situation(
        places=places,
        executable=executable,
        shipped=shipped(executable),
        is_root=os.geteuid() == 0,
        has_systemd=systemd,
        missing_tools=tuple(tool for tool in TOOLS if shutil.which(tool) is None),
        hidden=_hidden(executable),
        taken=taken,
        wrong_settings=wrong,
        damage=damage,
        texts={path: path.read_text() for path in paths if path.is_file() and os.access(path, os.R_OK)},
        linked=linked or shutil.which("edgepart") is not None,
        owns_link=places.link.is_symlink() and places.link.readlink() == executable,
        has_user=_has_user(),
        has_state=places.state.is_dir(),
        member=member,
        is_enabled=systemd and _says_yes("systemctl", "is-enabled", "--quiet", UNIT),
        is_active=active,
        version=edgepart.__version__,
        running_version=_running_version(places.state) if active else "",
    )


def _member(state: Path) -> tuple[Enrolment | None, str | None]:
    """The identity in the state directory, and why it cannot be used."""
    if not os.access(state, os.X_OK) or not (state / "identity").exists():
        return None, None
    try:
        made = identity.load(state)
    except UsageError as error:
        return None, str(error)
    return Enrolment(made.node_id, made.fingerprint, made.is_issuer), None


def _taken(config: Path) -> tuple[tuple[str, ...], str | None]:
    """The addresses of the agent on which another program listens, and why its settings cannot be used."""
    values = {"listen": f"*:{LISTEN_PORT}", "http": f"127.0.0.1:{HTTP_PORT}"}
    try:
        if config.exists():
            values |= read(config, options_of(agent))
        wanted = [
            parse_address(str(values[key]), option=f"{config}: {key}", default_port=port)
            for key, port in (("listen", LISTEN_PORT), ("http", HTTP_PORT))
        ]
    except UsageError as error:
        return (), str(error)
    tcp = wanted if values.get("transport") != "mqtt" else wanted[1:]
    return tuple(
        format_address((host or "*", port)) for host, port in tcp if not _can_listen((host, port))
    ), None


def _can_listen(address: Address) -> bool:
    """Whether nobody else listens there. An address that this machine does not have is left to the agent to complain of."""
    try:
        bind(address).close()
    except Unavailable as error:
        return getattr(error.__cause__, "errno", None) != errno.EADDRINUSE
    return True


def _hidden(executable: Path) -> str | None:
    """Why the service's user cannot run the program, judged by the places of its files and their modes."""
    interpreter, package = Path(sys.executable), Path(edgepart.__file__).parent
    for path in (executable, interpreter, interpreter.resolve(), package.resolve()):
        if (why := why_hidden(path)) is not None:
            return why
        for each in (*reversed(path.parents), path):
            if each.exists() and (each.stat().st_mode & 0o5) != 0o5:
                return f"{path} cannot be read by the user {USER}, because of the mode of {each}; {ELSEWHERE}"
    return None


def _has_user() -> bool:
    try:
        pwd.getpwnam(USER)
    except KeyError:
        return False
    return True


def _running_version(state: Path) -> str:
    """The version of the agent that runs with this state directory; "" if it does not answer."""
    try:
        return str(fetch(target_of(None, state), "/api/status")["version"])
    except (EdgepartError, PermissionError):
        return ""


def _says_yes(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=ANSWER_S).returncode == 0
    except FileNotFoundError:
        return False
