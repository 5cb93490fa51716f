"""State files over a restart, damaged ones, and one agent per directory."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import DataObject, booleans, data, integers, sampled_from
from pytest import TempPathFactory

from edgepart.agent import state_files
from edgepart.agent.cluster.membership.election import MAX_TERM, term_round
from edgepart.agent.cluster.state.cards import MeasuredDevice, write_card
from edgepart.agent.cluster.state.deployments import TooNew
from edgepart.agent.state_files import StateFiles
from edgepart.agent.storage.atomic_files import write_atomic
from edgepart.agent.wire.control import DRAINED, Deployment, Drain, Prepare, Version
from edgepart.agent.wire.inference import DeployOptions, Epoch
from edgepart.planner.devices.cluster import Device, Link
from edgepart.planner.errors import UsageError

ENTRY = Deployment("net", "0" * 64, 5, DeployOptions(shapes={"x": (1, 3)}, devices=("a",)), Version(3, "n"))

ORDER = Prepare(
    3,
    "net",
    Version(1, "n"),
    Epoch(3, 1),
    b"plan",
    (("a", "0" * 16),),
    "1" * 64,
    ("0" * 16,),
    0.1,
    {"x": (1, 3)},
)

DRAIN = Drain("0" * 16, "pi", DRAINED, Version(2, "n"))


def test_everything_is_there_again_after_a_restart(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    assert (files.term, files.incarnation, files.deployments(), files.members()) == (0, 0, (), {})
    files.keep(term=7)
    files.keep(incarnation=3)
    files.keep_deployments([ENTRY])
    files.keep_members({"b": ("1.2.3.4:5",), "a": ()})
    files.keep_urls(["http://b:1", "http://a:1"])
    assert json.loads((tmp_path / "http.json").read_text()) == {"members": ["http://a:1", "http://b:1"]}
    again = StateFiles(tmp_path)
    assert (again.term, again.incarnation, again.deployments()) == (7, 3, (ENTRY,))
    assert again.members() == {"a": (), "b": ("1.2.3.4:5",)}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_the_agents_addresses_are_there_while_it_runs(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    files.announce("pi", "127.0.0.1:1", "http://127.0.0.1:2")
    assert f'"pid": {os.getpid()}' in (tmp_path / "agent.json").read_text()
    files.withdraw()
    files.withdraw()
    assert not (tmp_path / "agent.json").exists()


BAD_COUNTS = [
    "",
    "{",
    "[]",
    '"x"',
    '{"term": "7"}',
    '{"term": null}',
    '{"term": 1.5}',
    '{"term": -1}',
    '{"term": true}',
]


@pytest.mark.parametrize("text", [*BAD_COUNTS, '{"term": 9007199254740992}'])
def test_who_lost_its_term_takes_one_beyond_any(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A smaller term than one that was used would let old plans run."""
    (tmp_path / "term.json").write_text(text)
    files = StateFiles(tmp_path, lambda: 1.8e9)
    assert 2**24 < term_round(files.term) < term_round(MAX_TERM)
    assert (tmp_path / "term.json.damaged").read_text() == text
    assert files.damaged and str(tmp_path / "term.json") in caplog.text
    files.keep(incarnation=1)
    assert StateFiles(tmp_path).term == files.term


def test_without_a_clock_a_lost_term_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "term.json").write_text("{")
    with pytest.raises(UsageError, match=r"term\.json is damaged .*set the clock"):
        StateFiles(tmp_path, lambda: 120.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is damaged"),
        ("\xff\x00", "is damaged"),
        ("[]", "expected dict"),
        ("{}", "format None"),
        ('{"format": 1, "deployments": {}}', "expected list"),
        ('{"format": 1, "deployments": [{"name": 5}]}', r"deployments\[0\]"),
    ],
)
def test_damaged_deployments_are_named_and_kept_aside(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "deployments.json").write_text(text, encoding="latin-1")
    files = StateFiles(tmp_path)
    assert files.deployments() == ()
    assert re.search(words, files.damaged[0]) and str(tmp_path / "deployments.json") in files.damaged[0]
    assert (tmp_path / "deployments.json.damaged").read_text(encoding="latin-1") == text
    assert StateFiles(tmp_path).deployments() == ()


def test_a_file_of_a_later_version_is_left_as_it_is(tmp_path: Path) -> None:
    for name, read in (("deployments", StateFiles.deployments), ("drains", StateFiles.drains)):
        path = tmp_path / f"{name}.json"
        path.write_text(text := f'{{"format": 2, "{name}": []}}')
        with pytest.raises(UsageError, match="update edgepart"):
            read(StateFiles(tmp_path))
        assert path.read_text() == text


@given(data=data())
def test_a_flipped_bit_or_a_cut_is_named(data: DataObject, tmp_path_factory: TempPathFactory) -> None:
    """But for hints, of which some may be wrong. Never an error that nobody foresaw."""
    folder = tmp_path_factory.mktemp("state")
    files = StateFiles(folder, lambda: 1.8e9)
    files.keep(term=7)
    files.keep_deployments([ENTRY])
    files.keep_drains([DRAIN])
    files.keep_members({"b": ("1.2.3.4:5",)})
    files.keep_profiles([])
    files.keep_plan("net", ORDER)
    name = data.draw(sampled_from(["term", "deployments", "drains", "cluster", "profiles", "plans/net"]))
    whole = bytearray((folder / f"{name}.json").read_bytes())
    at = data.draw(integers(0, len(whole) - 1))
    if data.draw(booleans()):
        whole[at] ^= 1 << data.draw(integers(0, 7))
    else:
        del whole[at:]
    (folder / f"{name}.json").write_bytes(whole)
    try:
        again = StateFiles(folder, lambda: 1.8e9)
        found = (again.deployments(), again.drains(), again.term)
        again.members(), again.profiles()
        assert again.plans() in ((ORDER,), ()) and (again.plans() or name == "plans/net")
    except TooNew:
        return
    aside = folder / f"{name}.json.damaged"
    assert bool(again.damaged) == aside.exists()
    assert again.damaged or found == ((ENTRY,), (DRAIN,), 7)


class Full:
    """A disk that is full until it has room again."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.full = True
        self.wrote: list[str] = []
        self._write = write_atomic
        patch.setattr(state_files, "write_atomic", self)

    def __call__(self, path: Path, content: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.wrote.append(path.name)
        self._write(path, content)


def test_on_a_full_disk_all_is_in_memory_and_is_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = StateFiles(tmp_path)
    assert files.keep(term=3) and not files.trouble
    disk = Full(monkeypatch)
    for term in (4, 5):
        assert not files.keep(term=term)
    assert not files.keep_deployments([ENTRY])
    files.announce("pi", "127.0.0.1:1", "http://127.0.0.1:2")
    assert files.term == 5
    assert files.behind == {"term.json", "deployments.json", "agent.json"}
    assert "No space left" in files.trouble
    assert caplog.text.count("term.json cannot be written") == 1
    assert StateFiles(tmp_path).term == 3
    assert not files.catch_up()
    disk.full = False
    assert files.catch_up() and not files.behind and not files.trouble
    again = StateFiles(tmp_path)
    assert (again.term, again.deployments()) == (5, (ENTRY,))
    assert sorted(disk.wrote) == ["agent.json", "ballast", "deployments.json", "term.json"]


def test_a_full_disk_has_something_to_give_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = StateFiles(tmp_path)
    files.take_ballast()
    ballast = tmp_path / "ballast"

    def as_long_as_there_is_ballast(path: Path, content: bytes) -> None:
        if ballast.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_atomic(path, content)

    monkeypatch.setattr(state_files, "write_atomic", as_long_as_there_is_ballast)
    assert files.keep(term=9)
    assert not ballast.exists() and StateFiles(tmp_path).term == 9
    assert files.catch_up() and ballast.stat().st_size == state_files.BALLAST_BYTES


def test_a_disk_with_little_room_counts_as_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = StateFiles(tmp_path)
    monkeypatch.setattr(StateFiles, "free_bytes", state_files.SPARE_BYTES - 1)
    assert "no model can be stored" in files.trouble


@pytest.mark.parametrize("text", ["", "[]", "5", '{"a": 5}', '{"a": "1.2.3.4:5"}', '{"a": null}'])
def test_damaged_hints_are_named_and_hold_up_nothing(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cluster.json").write_text(text)
    assert StateFiles(tmp_path).members() == {}
    assert str(tmp_path / "cluster.json") in caplog.text


def test_one_agent_per_directory(tmp_path: Path) -> None:
    held = StateFiles(tmp_path).lock()
    with pytest.raises(UsageError, match=r"runs on .* already; stop it"):
        StateFiles(tmp_path).lock()
    os.close(held)
    os.close(StateFiles(tmp_path).lock())


def test_a_killed_agent_leaves_no_lock(tmp_path: Path) -> None:
    text = (
        "import os, pathlib, sys; from edgepart.agent.state_files import StateFiles; "
        "StateFiles(pathlib.Path(sys.argv[1])).lock(); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", text, str(tmp_path)], timeout=60)
    assert done.returncode == -9
    os.close(StateFiles(tmp_path).lock())


def test_the_card_is_read_as_it_was_written_or_measured_again(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    assert files.card() is None
    link = Link(1e6, 0.5)
    card = MeasuredDevice(Device("box", "kind", 1e9, 1e9, 1e9)).with_link(
        "b", link, replace(link, bytes_per_s=5e6)
    )
    assert files.keep_card(write_card(card)) and files.card() == card
    for text in ("", "[]", "{}", '{"device": 1, "links": {}}', '{"links": {"b": {}}}'):
        (tmp_path / "card.json").write_text(text)
        assert files.card() is None and not (tmp_path / "card.json").exists()


def test_a_kept_plan_is_read_by_the_version_that_wrote_it_and_by_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = StateFiles(tmp_path)
    assert files.plans() == ()
    files.keep_plan("net", ORDER)
    other = replace(ORDER, deployment="a.b-c", plan=bytes(range(256)))
    files.keep_plan("a.b-c", other)
    assert files.plans() == (other, ORDER) and not files.damaged
    with caplog.at_level("INFO"), monkeypatch.context() as patch:
        patch.setattr(state_files, "__version__", "99.0")
        assert files.plans() == () and not files.damaged
    assert "is not used: it was kept by edgepart" in caplog.text
    files.keep_plan("a.b-c", None)
    files.keep_plan("a.b-c", None)
    assert files.plans() == (ORDER,)
    shutil.copy(tmp_path / "plans/net.json", tmp_path / "plans/other.json")
    assert files.plans() == (ORDER,), "the name of the file is that of the deployment"
