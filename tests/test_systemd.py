"""systemd accepts the unit file, which is as restricted as it claims; systemd itself need not run."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "systemd"
UNIT = FOLDER / "edgepart-agent.service"
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(ANALYZE), *arguments], capture_output=True, text=True, timeout=60)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Return the unit with a program that exists, because `verify` looks for it."""
    made = tmp_path / UNIT.name
    made.write_text(UNIT.read_text().replace("/opt/edgepart/bin/edgepart", sys.executable))
    return made


@needs_systemd
def test_systemd_takes_every_line(unit: Path) -> None:
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(unit))
    assert done.returncode == 0, done.stderr
    assert unit.name not in done.stderr  # an unknown key is only a warning


@needs_systemd
def test_verify_would_notice_a_mistake(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("Restart=always", "Restart=sometimes\nProtectEverything=yes"))
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(unit))
    assert "ProtectEverything" in done.stderr
    assert "sometimes" in done.stderr


@needs_systemd
def test_the_exposure_is_low(unit: Path) -> None:
    done = analyze("security", "--offline=true", "--threshold=20", str(unit))
    assert done.returncode == 0, done.stdout[-500:] + done.stderr


ALLOWED = re.compile(r"^SystemCallFilter=(?!~|@)(.*)$", re.MULTILINE)


def test_the_filter_lets_through_what_the_agent_calls() -> None:
    """Without setpriority no model was ever deployed by a service; without sched_setaffinity ONNX Runtime warns."""
    allowed = {name for line in ALLOWED.findall(UNIT.read_text()) for name in line.split()}
    assert allowed == {"sched_setaffinity", "setpriority"}


def test_what_the_agent_relies_on() -> None:
    """Settings that are easily lost in further hardening; the loss of each has broken an agent somewhere."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text())
    service = dict(parser["Service"])
    assert service["Type"] == "notify"
    assert service["StateDirectory"] == "edgepart"
    assert "AF_NETLINK" in service["RestrictAddressFamilies"]
    assert service["ProcSubset"] == "all"
    assert service["ExecStart"].split()[1] == "agent"
    assert (FOLDER / "sysusers.d" / "edgepart.conf").read_text().splitlines()[1].split()[1] == service["User"]
