"""What the system does not tell is unknown, and nothing ends for it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil
import pytest

from edgepart.agent.doctor import checkup
from edgepart.agent.host import process_memory, system
from edgepart.agent.measure import probe
from edgepart.agent.net import interfaces

FAULTS = [
    PermissionError(13, "Permission denied"),
    RuntimeError("no such line"),
    NotImplementedError(),
    KeyError("x"),
]


def refuse(error: Exception) -> object:
    def read(*_: object, **__: object) -> object:
        raise error

    return read


@pytest.fixture(params=FAULTS, ids=lambda error: type(error).__name__)
def silent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that tells nothing."""
    for name in ("net_if_stats", "net_if_addrs", "virtual_memory", "swap_memory"):
        monkeypatch.setattr(psutil, name, refuse(request.param))
    monkeypatch.setattr(os, "sched_getaffinity", refuse(request.param))
    monkeypatch.setattr(Path, "read_text", refuse(PermissionError(13, "Permission denied")))
    monkeypatch.setattr(shutil, "disk_usage", refuse(request.param))
    monkeypatch.setattr(system, "_told", set())


def test_whatever_cannot_be_read_is_unknown(
    silent: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert all(one.up and not one.name for one in interfaces.interfaces())
    assert isinstance(interfaces.local_addresses("0.0.0.0"), tuple)
    assert system.cores() >= 1
    assert system.resident_bytes() > 1 << 20
    assert probe.available_memory_bytes() >= 1
    assert probe.device_kind()
    process_memory.give_back_files(Path("/"))
    told = {check.name: check for check in checkup.check_box(tmp_path, 1)}
    assert told["disk"].level == checkup.NOTE and "does not say" in told["disk"].text
    assert caplog.text.count("its addresses") == 1, "it is said once"


def test_work_goes_on_where_no_priority_can_be_lowered(
    silent: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "nice", refuse(PermissionError(1, "Operation not permitted")))
    system.lower_priority(5)
    assert "how to give work a lower priority" in caplog.text


def test_where_no_interface_is_told_those_addresses_count_that_lead_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil, "net_if_addrs", refuse(OSError(1, "Operation not permitted")))
    monkeypatch.setattr(system, "outgoing_addresses", lambda: ["10.1.2.3", "fd00::7"])
    assert interfaces.local_addresses("0.0.0.0") == ("10.1.2.3",)
    assert interfaces.local_addresses("::") == ("10.1.2.3", "fd00::7")


@pytest.mark.parametrize("line", ["", "0", "0:", "nonsense", "4:memory", "0::/a"])
def test_a_control_group_that_cannot_be_read_is_no_limit(tmp_path: Path, line: str) -> None:
    own = tmp_path / "cgroup"
    own.write_text(line + "\n")
    assert probe.available_memory_bytes(tmp_path, own) > 1


def test_temporary_files_go_to_the_agents_folder_where_no_other_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    system.have_temporary_folder(tmp_path)
    assert os.environ["TMPDIR"] == str(tmp_path / "none"), "there is another"
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [os.environ["TMPDIR"]])
    system.have_temporary_folder(tmp_path)
    assert tempfile.gettempdir() == str(tmp_path)
