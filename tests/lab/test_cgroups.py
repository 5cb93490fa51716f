"""Control groups of both versions, on folders that look like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import cgroups
from tests.lab.cgroups import Groups
from tests.lab.hosts import LabError


@pytest.fixture
def one(tmp_path: Path) -> Path:
    for controller in ("memory", "cpu"):
        (tmp_path / controller).mkdir()
        (tmp_path / controller / "cgroup.procs").touch()
    return tmp_path


@pytest.fixture
def two(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    return tmp_path


def test_version_one_has_a_folder_for_each_controller(one: Path) -> None:
    groups = Groups("elab1-0", one)
    groups.limit_memory("pi", 1 << 20)
    groups.limit_cpu("pi", 0.25)
    assert (one / "memory/elab1-0/pi/memory.limit_in_bytes").read_text() == "1048576"
    assert (one / "cpu/elab1-0/pi/cpu.cfs_quota_us").read_text() == "25000"
    assert (one / "cpu/elab1-0/pi/cpu.cfs_period_us").read_text() == "100000"
    assert groups.of("pi") == [one / "cpu/elab1-0/pi", one / "memory/elab1-0/pi"]
    groups.limit_cpu("pi", None)
    assert (one / "cpu/elab1-0/pi/cpu.cfs_quota_us").read_text() == "-1"


def test_swap_is_limited_where_there_is_any(one: Path) -> None:
    swap = one / "memory/elab1-0/pi/memory.memsw.limit_in_bytes"
    swap.parent.mkdir(parents=True)
    swap.touch()
    Groups("elab1-0", one).limit_memory("pi", 4096)
    assert swap.read_text() == "4096"


def test_version_two_has_one_for_all(two: Path) -> None:
    groups = Groups("elab1-0", two)
    groups.limit_memory("pi", 1 << 20)
    groups.limit_cpu("pi", 1.5)
    assert (two / "elab1-0/pi/memory.max").read_text() == "1048576"
    assert (two / "elab1-0/pi/cpu.max").read_text() == "150000 100000"
    assert (two / "cgroup.subtree_control").read_text() == "+cpu"  # the kernel adds it to +memory
    assert (two / "elab1-0/cgroup.subtree_control").exists()
    assert groups.of("pi") == [two / "elab1-0/pi"]
    groups.limit_cpu("pi", None)
    assert (two / "elab1-0/pi/cpu.max").read_text() == "max 100000"


def test_processes_are_taken_into_the_groups_that_there_are(one: Path) -> None:
    groups = Groups("elab1-0", one)
    groups.limit_cpu("pi", 1)
    groups.take_in("pi", [12])
    assert (one / "cpu/elab1-0/pi/cgroup.procs").read_text() == "12"
    assert not (one / "memory/elab1-0").exists()


def test_a_system_that_cannot_limit_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="limits memory here"):
        Groups("elab1-0", tmp_path).limit_memory("pi", 1 << 20)


def test_removed_are_the_labs_own(one: Path) -> None:
    for lab in ("elab1-0", "elab1-1"):
        (one / "memory" / lab / "pi").mkdir(parents=True)
    groups = Groups("elab1-0", one)
    groups.remove()
    groups.remove()
    assert [path.name for path in (one / "memory").iterdir() if path.is_dir()] == ["elab1-1"]


def test_a_group_that_stays_is_said_so(one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "GONE_S", -1.0)
    stays = one / "memory/elab1-0/pi"
    stays.mkdir(parents=True)
    (stays / "file").touch()
    with pytest.raises(LabError, match="cannot be removed"):
        Groups("elab1-0", one).remove()
