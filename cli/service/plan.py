"""Which steps an installation takes, given what is there. Rules: no door."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from edgepart.cli.service.situation import CONF, UNIT, USER, WRITTEN_FOR, Situation, Wish
from edgepart.cli.service.steps import Execute, Remove, Step, Symlink, Write
from edgepart.planner.errors import UsageError

AS_USER = ("runuser", "-u", USER, "--")
TOOLS = ("systemctl", "systemd-sysusers", "systemd-tmpfiles", "runuser")
"""The commands that an installation runs, besides edgepart itself."""
HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
"""Folders that the unit file hides from the service (ProtectHome, PrivateTmp)."""
SPECIAL = re.compile(r"[^\w@+,./-]")
"""Characters that mean something to systemd in a command line."""
MAKING, JOINING = "making a cluster", "joining the cluster"
RELOAD = ("systemctl", "daemon-reload")
ELSEWHERE = "install edgepart where it can: sudo python3 -m venv /opt/edgepart && sudo /opt/edgepart/bin/pip install WHEEL"


def unit_for(text: str, executable: Path) -> str:
    """The unit file for a program elsewhere than it ships for."""
    return text.replace(WRITTEN_FOR, str(executable))


def set_option(text: str, key: str, value: str | list[str]) -> str:
    """The text of agent.toml with another value of an option. Raises UsageError if the file is written in a way that this
    does not understand.

    >>> set_option('# Peers.\\n#peer = ["a:1"]\\n', "peer", ["b:2"])
    '# Peers.\\npeer = ["b:2"]\\n'
    """
    entry = f"{key} = {json.dumps(value)}"
    line = re.compile(rf"^#?[ \t]*{re.escape(key)}[ \t]*=.*$", re.MULTILINE)
    changed, count = line.subn(lambda _: entry, text, count=1)
    if not count:
        changed = f"{text.rstrip()}\n\n{entry}\n".lstrip()
    if not _says(changed, key, value):
        raise UsageError(f"agent.toml: {key} is written over several lines; write {entry} there yourself")
    return changed


def _says(text: str, key: str, value: str | list[str]) -> bool:
    try:
        return bool(tomllib.loads(text)[key] == value)
    except tomllib.TOMLDecodeError:
        return False  # The line that was changed was part of a longer value.


def why_hidden(executable: Path) -> str | None:
    """Why the service would not see a file: the unit file hides the place, or systemd would misread the path."""
    if SPECIAL.search(str(executable)):
        return f"{executable} has characters in its path that mean something to systemd; {ELSEWHERE}"
    for folder in HIDDEN:
        if executable.is_relative_to(folder):
            return f"{executable} is in {folder}, which the service does not see; {ELSEWHERE}"
    return None


def obstacles(box: Situation, wish: Wish) -> Iterator[str]:
    """Why an installation could not be finished. Each says what to do."""
    if not box.has_systemd:
        yield (
            "systemd does not run here, as in most containers. Run `edgepart init` or `edgepart join`, and then `edgepart "
            "agent` under what starts programs here; docs/install.md has containers"
        )
        return
    if not box.is_root:
        yield f"only root may do this: sudo {box.executable} service install ..."
        return
    if box.missing_tools:
        yield f"the commands {', '.join(box.missing_tools)} are not here: install systemd's package completely"
    if box.hidden is not None:
        yield box.hidden
    for address in box.taken:
        port = address.rpartition(":")[2]
        yield (
            f"another program listens on {address} (`ss -ltnp 'sport = :{port}'` names it): stop it, or give another "
            f"address in {box.places.config}"
        )
    if box.wrong_settings is not None:
        yield box.wrong_settings
    if box.damage is not None:
        yield box.damage
    yield from _obstacles_of_identity(box, wish)


def _obstacles_of_identity(box: Situation, wish: Wish) -> Iterator[str]:
    member, leave = box.member, "to leave that cluster for good: edgepart service uninstall --purge"
    if member is None and box.damage is None and not (wish.makes_cluster or wish.token):
        yield "this box is in no cluster yet: give --init on the first box, and --join TOKEN on each other one"
    if member is not None and wish.makes_cluster and not member.is_issuer:
        yield f"this box has joined cluster {member.fingerprint[:16]} already; {leave}"
    if member is not None and wish.fingerprint not in (None, member.fingerprint):
        yield f"this box is in cluster {member.fingerprint[:16]}, and the token is for another one; {leave}"


def installation(box: Situation, wish: Wish) -> list[Step]:
    """The steps to a box that runs the agent as a service; [] if it does. Raises UsageError if they could not be
    finished."""
    if found := list(obstacles(box, wish)):
        listed = found[0] if len(found) == 1 else "".join(f"\n  - {each}" for each in found)
        raise UsageError(f"the service cannot be installed, and nothing was changed: {listed}")
    files = list(_files(box, wish))
    return [
        *files,
        *_account(box),
        *_identity(box, wish),
        *_start(box, changed=bool(files) or box.running_version not in ("", box.version)),
    ]


def _files(box: Situation, wish: Wish) -> Iterator[Step]:
    places, shipped = box.places, box.shipped
    for path, text in (
        (places.sysusers, shipped.sysusers),
        (places.tmpfiles, shipped.tmpfiles),
        (places.unit, shipped.unit),
    ):
        there = box.texts.get(path, box.texts.get(places.packaged[path]))
        if there != text:
            yield Write(f"writing {path}", path, text, undo=(RELOAD,) if path == places.unit else ())
    config = box.texts.get(places.config, shipped.config)
    for key, value in wish.settings.items():
        config = set_option(config, key, value)
    if box.texts.get(places.config) != config:
        yield Write(f"writing {places.config}", places.config, config)
    if places.environment not in box.texts:
        yield Write(f"writing {places.environment}", places.environment, shipped.environment, 0o600)
    if not box.linked:
        yield Symlink(f"linking {places.link} to {box.executable}", places.link, box.executable)


def _account(box: Situation) -> Iterator[Step]:
    state = str(box.places.state)
    if not box.has_user:
        yield Execute(f"making the user {USER}", ("systemd-sysusers", CONF), undo=(("userdel", USER),))
    if not box.has_state:
        make = ("systemd-tmpfiles", "--create", CONF)
        yield Execute(f"making the folder {state}", make, undo=(("rm", "-rf", state),))
    if not box.has_user or box.member is None:
        yield Execute(f"trying {box.executable} as {USER}", (*AS_USER, str(box.executable), "--version"))


def _identity(box: Situation, wish: Wish) -> Iterator[Step]:
    if box.member is not None:
        return
    state = str(box.places.state)
    name = ("--name", wish.name) if wish.name else ()
    undo = (("rm", "-rf", f"{state}/identity", f"{state}/name"),)
    if wish.makes_cluster:
        command = (*AS_USER, str(box.executable), "init", "--state", state, *name, "--json")
        yield Execute(MAKING, command, undo)
    else:
        how = tuple(word for key, value in wish.settings.items() for word in _words(key, value))
        command = (*AS_USER, str(box.executable), "join", "-", "--state", state, *how, *name, "--json")
        yield Execute(JOINING, command, undo, wish.token)


def _words(key: str, value: str | list[str]) -> Iterator[str]:
    for each in value if isinstance(value, list) else [value]:
        yield f"--{key}"
        yield each


def _start(box: Situation, *, changed: bool) -> Iterator[Step]:
    why = ("journalctl", "--unit", UNIT, "--lines", "8", "--output", "cat", "--no-pager")
    if changed:
        yield Execute("having systemd read its files again", RELOAD)
    if not box.is_enabled:
        yield Execute(
            "having it start with this box", ("systemctl", "enable", "--quiet", UNIT), _undo("disable")
        )
    if not box.is_active:
        yield Execute("starting the agent", ("systemctl", "start", UNIT), _undo("stop"), explain=why)
    elif changed:
        yield Execute("starting the agent anew", ("systemctl", "restart", UNIT), explain=why)


def _undo(verb: str) -> tuple[tuple[str, ...], ...]:
    return (("systemctl", verb, "--quiet", UNIT),)


def uninstallation(box: Situation, *, purge: bool) -> list[Step]:
    """The steps to a box without the service; with `purge`, also without its settings, its identity, its models and its
    user. [] if there is nothing to remove. Raises UsageError if they could not be finished."""
    if not box.is_root:
        raise UsageError(
            f"only root may do this, and nothing was changed: sudo {box.executable} service uninstall"
        )
    places, texts = box.places, box.texts
    has_unit = places.unit in texts or places.packaged[places.unit] in texts
    steps: list[Step] = []
    if box.has_systemd and (box.is_active or box.is_enabled) and has_unit:
        steps.append(Execute("stopping the agent", ("systemctl", "disable", "--now", "--quiet", UNIT)))
    if purge and box.has_user:
        steps.append(Execute(f"removing the user {USER}", ("userdel", USER)))
    own = [path for path in (places.unit, places.sysusers, places.tmpfiles) if path in texts]
    steps += [Remove(f"removing {path}", path) for path in own]
    if places.unit in own and box.has_systemd:
        steps.append(Execute("having systemd read its files again", RELOAD))
    if box.owns_link:
        steps.append(Remove(f"removing {places.link}", places.link))
    if purge and any(path in texts for path in (places.config, places.environment)):
        steps.append(Remove(f"removing {places.settings}", places.settings))
    if purge and box.has_state:
        steps.append(Remove(f"removing {places.state}: identity, models and deployments", places.state))
    return steps


def warnings(box: Situation, *, purge: bool) -> list[str]:
    """What a person should know before the service is removed."""
    found = []
    if purge and box.member is not None and box.member.is_issuer:
        found.append(
            f"This box holds the key that lets boxes into cluster {box.member.fingerprint[:16]}. Without a copy "
            "(edgepart ca export) nobody can join any more, and the cluster ends within a year."
        )
    if purge and box.member is not None:
        found.append("To have its work moved away first, and the others forget it: edgepart remove NAME.")
    return found
