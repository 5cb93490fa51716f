"""Files that are whole or not there: every crash, fault and full disk, on a disk in memory; some on a real one."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import binary, integers

from edgepart.agent.storage import atomic_files
from edgepart.planner.errors import UsageError
from tests.agent.storage.crashdisk import Crash, CrashDisk

PATH, OLD, NEW = "/state/term.json", b'{"term": 1}\n', b'{"term": 22, "incarnation": 3}\n'


@contextmanager
def on(disk: CrashDisk) -> Iterator[CrashDisk]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomic_files, "os", disk)
        yield disk


def disk_with(old: bytes | None, chunk: int = 1 << 30) -> CrashDisk:
    disk = CrashDisk(["/", "/state"])
    disk.chunk = chunk
    if old is not None:
        disk.put(PATH, old)
    return disk


def calls(old: bytes | None, new: bytes, chunk: int) -> int:
    with on(disk_with(old, chunk)) as disk:
        atomic_files.write_atomic(Path(PATH), new)
    assert disk.read(PATH) == new
    assert list(disk.folders["/state"].names) == ["term.json"]
    return len(disk.calls)


def outcomes(disk: CrashDisk, new: bytes) -> tuple[set[bytes | None], bool]:
    """What may be there after a crash at the point that `disk` says, and whether the write had returned by then."""
    returned = False
    with on(disk), suppress(Crash):
        atomic_files.write_atomic(Path(PATH), new)
        returned = True
    return set(disk.after_crash(PATH)), returned


@pytest.mark.parametrize("old", [OLD, None, b""])
@pytest.mark.parametrize("chunk", [1, 7, 1 << 30])
def test_a_crash_between_any_two_calls_leaves_the_old_or_the_new(old: bytes | None, chunk: int) -> None:
    seen: set[bytes | None] = set()
    for point in range(calls(old, NEW, chunk) + 1):
        disk = disk_with(old, chunk)
        disk.crash_before = point
        found, returned = outcomes(disk, NEW)
        assert found <= {old, NEW}
        assert not returned or found == {NEW}
        seen |= found
    assert seen == {old, NEW}


@pytest.mark.parametrize("missing", ["file", "folder"])
def test_the_law_notices_a_flush_that_is_missing(missing: str) -> None:
    bad = 0
    for point in range(calls(OLD, NEW, 7) + 1):
        disk = disk_with(OLD, 7)
        disk.crash_before, disk.no_flush = point, (missing,)
        found, returned = outcomes(disk, NEW)
        bad += not found <= {OLD, NEW} or (returned and found != {NEW})
    assert bad


@given(binary(max_size=60), binary(max_size=60), integers(1, 64))
def test_a_disk_that_is_full_at_any_byte_leaves_the_old(old: bytes, new: bytes, chunk: int) -> None:
    for room in range(len(new)):
        with on(disk_with(old, chunk)) as disk:
            disk.room = room
            with pytest.raises(OSError) as caught:
                atomic_files.write_atomic(Path(PATH), new)
            assert caught.value.errno == errno.ENOSPC
            assert disk.read(PATH) == old
            assert set(disk.after_crash(PATH)) == {old}
            assert list(disk.folders["/state"].names) == ["term.json"], "something is left that takes room"
            disk.room = len(new)
            atomic_files.write_atomic(Path(PATH), new)
        assert set(disk.after_crash(PATH)) == {new}


@pytest.mark.parametrize("fault", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_any_call_that_fails_is_told_and_tears_nothing(fault: int) -> None:
    for point in range(calls(OLD, NEW, 7)):
        disk = disk_with(OLD, 7)
        disk.fail_at, disk.fault = point, fault
        with on(disk):
            with pytest.raises(OSError) as caught:
                atomic_files.write_atomic(Path(PATH), NEW)
            assert caught.value.errno == fault
        assert set(disk.after_crash(PATH)) <= {OLD, NEW}
        assert disk.read(PATH) in (OLD, NEW)


def test_a_file_in_folders_that_are_not_there_yet() -> None:
    with on(CrashDisk(["/"])) as disk:
        atomic_files.write_atomic(Path("/a/b/name"), NEW)
    assert set(disk.after_crash("/a/b/name")) == {NEW}


def test_a_real_disk_that_takes_so_many_bytes_and_no_more(tmp_path: Path) -> None:
    """Every limit in one process; a file may not grow beyond it."""
    text = """
import pathlib, resource, signal, sys
from edgepart.agent.storage.atomic_files import write_atomic
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path, old, new = pathlib.Path(sys.argv[1]) / "f", b"old" * 3, b"new" * 40
write_atomic(path, old)
for limit in range(len(new) + 1):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        write_atomic(path, new)
    except OSError:
        assert limit < len(new) and path.read_bytes() == old, limit
    else:
        assert limit == len(new) and path.read_bytes() == new, limit
    assert [p.name for p in path.parent.iterdir()] == ["f"]
print("done")
"""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path)], timeout=60, capture_output=True, text=True
    )
    assert done.stdout == "done\n", done.stderr


def test_what_is_made_is_its_owners_only(tmp_path: Path) -> None:
    atomic_files.write_atomic(tmp_path / "a" / "b" / "f", b"x")
    assert stat.S_IMODE((tmp_path / "a" / "b" / "f").stat().st_mode) == 0o600
    assert (
        stat.S_IMODE((tmp_path / "a").stat().st_mode)
        == stat.S_IMODE((tmp_path / "a/b").stat().st_mode)
        == 0o700
    )


def test_what_is_damaged_is_kept_under_another_name_and_only_the_last(tmp_path: Path) -> None:
    for content in (b"first", b"second"):
        (tmp_path / "f").write_bytes(content)
        assert atomic_files.set_aside(tmp_path / "f") == tmp_path / "f.damaged"
        assert not (tmp_path / "f").exists()
    assert (tmp_path / "f.damaged").read_bytes() == b"second"


def test_what_cannot_be_set_aside_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"bad")
    (tmp_path / "f.damaged" / "x").mkdir(parents=True)
    with pytest.raises(UsageError, match="cannot be set aside"):
        atomic_files.set_aside(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == b"bad"


def test_only_what_a_crash_left_long_ago_is_swept_away(tmp_path: Path) -> None:
    fresh, old, other = (tmp_path / name for name in (".new-fresh", ".new-old", "file"))
    for path in (fresh, old, other):
        path.write_bytes(b"x")
    for path in (old, other):
        os.utime(path, (0, 0))
    atomic_files.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new-fresh", "file"]


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\x00", b"[" * 100_000])
def test_what_is_no_json_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(UsageError, match="f is damaged"):
        atomic_files.read_json(tmp_path / "f")
    assert atomic_files.read_json(tmp_path / "none") is None
