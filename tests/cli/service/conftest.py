"""A box to install on, without systemd and without root: a folder that stands for the root of its files, and commands that
write down how they were called."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgepart.agent.security import identity, tokens
from edgepart.cli.service.situation import Places, Shipped, Situation

SYSTEM = ("systemctl", "systemd-sysusers", "systemd-tmpfiles", "userdel", "journalctl")
HERE = Places()
FAKE = """\
#!/bin/sh
echo "$(basename "$0") $*" >> {log}
case "$(basename "$0") $*" in {failing}) echo "no luck" >&2; exit 7;; esac
case "$*" in
  is-active*) test -e {log}.active;;
  is-enabled*) test -e {log}.enabled;;
  start*) touch {log}.active;;
  stop*) rm -f {log}.active;;
  enable*) touch {log}.enabled;;
  disable*) rm -f {log}.enabled; case "$*" in *--now*) rm -f {log}.active;; esac;;
  --create*) mkdir -p {state};;
  --unit*) echo "the agent said why";;
esac
"""
AS_USER = """\
#!/bin/sh
echo "runuser $1 $2 edgepart $5" >> {log}
case $5 in init) cp -r {made}/identity {state}; echo '{{"token": "{token}"}}';; esac
"""
"""Makes the identity that a test session made once; the next makes one by the real command, which takes longer."""
AS_USER_INDEED = """\
#!/bin/sh
echo "runuser $1 $2 edgepart $5" >> {log}
shift 4
exec {python} -m edgepart "$@"
"""


@dataclass
class FakeMachine:
    """The folder and the commands."""

    places: Places
    log: Path
    commands: Path

    def fail(self, pattern: str = "nothing") -> None:
        """Let the commands that match the shell's pattern fail from now on."""
        for name in SYSTEM:
            text = FAKE.format(log=self.log, failing=pattern, state=self.places.state)
            _program(self.commands / name, text)

    def make_identities_indeed(self) -> None:
        """Let the command that makes an identity be the real one."""
        _program(self.commands / "runuser", AS_USER_INDEED.format(log=self.log, python=sys.executable))

    def called(self) -> list[str]:
        """How the commands were called since this was asked last, without questions that change nothing."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line for line in lines if " is-" not in line]

    def files(self) -> dict[str, str]:
        """All files below the root, with their texts; folders have none."""
        root = self.places.root
        return {
            str(path.relative_to(root)): path.read_text() if path.is_file() else ""
            for path in sorted(root.rglob("*"))
        }


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A state directory with an identity, and a token for its cluster."""
    state = tmp_path_factory.mktemp("made")
    identity.create_cluster(state, time.time())
    return state, tokens.create(state, ttl_s=3600, uses=16, now=time.time())


@pytest.fixture
def fake(tmp_path: Path, made: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    places, commands = Places(tmp_path / "root"), tmp_path / "bin"
    (places.root / "run/systemd/system").mkdir(parents=True)
    places.state.parent.mkdir(parents=True)
    commands.mkdir()
    box = FakeMachine(places, tmp_path / "log", commands)
    box.fail()
    text = AS_USER.format(log=box.log, made=made[0], state=places.state, token=made[1])
    _program(commands / "runuser", text)
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    return box


def empty(places: Places = HERE) -> Situation:
    """A box on which nothing is installed and nothing is in the way."""
    return Situation(
        places=places,
        executable=Path("/opt/edgepart/bin/edgepart"),
        shipped=Shipped("the unit", "the user", "the folder", '#peer = ["a:1"]\n', "the environment"),
        is_root=True,
        has_systemd=True,
        version="0.2.0",
    )
