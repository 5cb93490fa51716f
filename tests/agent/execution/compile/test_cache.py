"""The folder of compiled segments: what is in it is trusted only as it was written, where it was made, and while there is
room."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepart.agent.execution.compile.cache import Compiled, CompiledEntry, entry_key

HERE = "onnxruntime 1 on this processor"


def put(compiled: Compiled, name: str, *weights: bytes) -> str:
    """An entry of that name with these weights; its key."""
    held = {compiled.put_weight(memoryview(data)): len(data) for data in weights}
    key = entry_key(name, {"x"}, HERE)
    compiled.put(key, CompiledEntry(HERE, frozenset({"x"}), name.encode(), held))
    return key


def files(root: Path) -> set[str]:
    return {path.name for path in root.glob("*/*")}


def test_what_was_put_comes_back_also_in_another_process(tmp_path: Path) -> None:
    key = put(Compiled(tmp_path, 1 << 20), "a", b"one", b"two")
    found = Compiled(tmp_path, 1 << 20).get(key, HERE)
    assert found is not None
    assert (found.model, found.native, sorted(found.weights.values())) == (b"a", frozenset({"x"}), [3, 3])
    for digest in found.weights:
        assert (tmp_path / "weights" / digest).read_bytes() in (b"one", b"two")


def test_keys_differ_by_segment_ports_and_where() -> None:
    keys = {
        entry_key(name, ports, where)
        for name in ("a", "b")
        for ports in ((), ("x",), ("x", "y"))
        for where in (HERE, "elsewhere")
    }
    assert len(keys) == 12


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [cut_short, flip, Path.unlink, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("folder", ["entries", "weights"])
def test_what_is_damaged_is_thrown_away_and_can_be_made_again(
    tmp_path: Path, folder: str, damage: Callable[[Path], object]
) -> None:
    key = put(Compiled(tmp_path, 1 << 20), "a", b"weight")
    (path,) = (tmp_path / folder).iterdir()
    damage(path)
    later = Compiled(tmp_path, 1 << 20)
    assert later.get(key, HERE) is None
    assert not (tmp_path / "entries" / key).exists()
    assert later.get(put(later, "a", b"weight"), HERE) is not None


def test_an_entry_of_another_processor_is_thrown_away(tmp_path: Path) -> None:
    """As if a disk was moved, and the keys were the same."""
    compiled = Compiled(tmp_path, 1 << 20)
    key = put(compiled, "a", b"weight")
    assert compiled.get(key, "onnxruntime 1 on another processor") is None
    assert compiled.get(key, HERE) is None


def test_what_was_used_longest_ago_makes_room_and_weights_go_with_their_last_entry(tmp_path: Path) -> None:
    compiled = Compiled(tmp_path, 11_000)
    shared = bytes(4000)
    keys = [put(compiled, name, shared, name.encode() * 2000) for name in "abc"]
    assert compiled.make_room() == 0
    for age, key in enumerate(keys):
        os.utime(tmp_path / "entries" / key, ns=(age, age))
    assert compiled.get(keys[0], HERE) is not None  # now the latest
    put(compiled, "d", b"d" * 1000)
    assert compiled.make_room() == 1
    assert [compiled.get(key, HERE) is None for key in keys] == [False, True, False]
    put(compiled, "e", b"e" * 9000)
    assert compiled.make_room() == 3
    assert len(files(tmp_path)) == 2


def test_what_a_killed_process_left_goes_and_nothing_is_kept_without_room(tmp_path: Path) -> None:
    compiled = Compiled(tmp_path, 0)
    key = put(compiled, "a", b"weight")
    (tmp_path / ".making-1").mkdir()
    (tmp_path / ".making-1" / "model.onnx").write_bytes(b"half")
    (tmp_path / "weights" / ".new-2").write_bytes(b"half")
    (tmp_path / "entries" / ".new-3").write_bytes(b"half")
    assert compiled.make_room() >= 1
    assert compiled.get(key, HERE) is None
    assert files(tmp_path) == set() and not (tmp_path / ".making-1").exists()


def test_a_weight_that_is_a_file_already_is_that_file(tmp_path: Path) -> None:
    compiled = Compiled(tmp_path / "compiled", 1 << 20)
    digest = compiled.put_weight(memoryview(b"weight"))
    blob = tmp_path / digest
    blob.write_bytes(b"weight")
    compiled.weight_path(digest).unlink()
    assert compiled.put_weight(memoryview(b"weight"), blob) == digest
    assert compiled.weight_path(digest).samefile(blob)
    other = compiled.put_weight(memoryview(b"another"), blob)
    assert compiled.weight_path(other).read_bytes() == b"another"
