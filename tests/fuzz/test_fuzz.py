"""A short run over every target, cases that broke the law before, and the fuzzer itself."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from edgepart.planner.errors import InternalError
from tests.fuzz.forms import Frames, Headed, Json, MessagePack, Sequenced, headed, parted, parts
from tests.fuzz.running import Broken, outcome, run
from tests.fuzz.target import Target, plainly
from tests.fuzz.targets import TARGETS, named
from tests.fuzz.working import all_of, jobs

FOUND = Path(__file__).with_name("found")
CASES = 600


def test_no_door_breaks_the_law() -> None:
    """Targets run in processes of their own, with limits on memory."""
    tallies = list(all_of(jobs([], CASES, seed=0), processes=2))
    assert {tally.name for tally in tallies} == {target.name for target in TARGETS}
    assert [finding.error for tally in tallies for finding in tally.findings.values()] == []


@pytest.mark.parametrize(
    "path", sorted(FOUND.glob("*/*")), ids=lambda path: f"{path.parent.name}: {path.name}"
)
def test_what_was_found_stays_mended(path: Path) -> None:
    """The folder has the target's name (with - for /); each file is a case that broke the law."""
    target = next(t for t in TARGETS if t.name.replace("/", "-") == path.parent.name)
    with target.door() as take:
        found = outcome(target, take, path.read_bytes())
    assert not isinstance(found, Broken), found.error


def test_seeds_are_taken_by_their_doors() -> None:
    """At least one seed of each is accepted. Otherwise only the first lines of a door would be tried."""
    for target in TARGETS:
        with target.door() as take:
            ends = [outcome(target, take, seed) for seed in target.seeds()]
        assert any(isinstance(end, tuple) and end[:1] == ("taken",) for end in ends), target.name


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("x"), MemoryError(), InternalError("ours"), RecursionError()]
)
def test_whatever_else_a_door_raises_is_found(error: Exception) -> None:
    def take(data: bytes) -> None:
        if b"7" in data:
            raise error

    target = Target("a door", lambda: [b"6"], plainly(take), (ValueError,))
    tally = run(target, 3000, 0, limited=False)
    (finding,) = tally.findings.values()
    assert b"7" in finding.case and type(error).__name__ in finding.error
    assert 0 < tally.accepted < tally.cases == 3000


def test_runs_of_one_seed_are_the_same() -> None:
    seen: list[list[bytes]] = [[], []]
    for cases in seen:
        run(Target("a door", lambda: [b"abc", b"d"], plainly(cases.append), ()), 200, 5, limited=False)
    assert seen[0] == seen[1] and len(set(seen[0])) > 100


def test_a_case_that_gets_further_is_built_upon() -> None:
    """Three right bytes in a row do not come by chance, but one after the other they do."""

    def take(data: bytes) -> int:
        return next((n for n, letter in enumerate(b"wid") if data[n : n + 1] != bytes((letter,))), 3)

    target = Target("a door", lambda: [b"..."], plainly(take), ())
    assert run(target, 60_000, 3, limited=False).kept == 4


@pytest.mark.parametrize(
    ("form", "seed"),
    [(Json(), b'{"a": [1, "x"]}'), (MessagePack(), b"\x81\xa1a\x92\x01\xa1x"), (Frames(), b""),
     (Headed(Json()), headed(b'{"a": 5}', b"tail")), (Sequenced(Json()), headed(b"[1]") + headed(b"[2]"))],
)  # fmt: skip
def test_forms_keep_to_the_largest_size(form: Json, seed: bytes) -> None:
    draw = random.Random(0)
    made = {form.mutated(draw, seed, [seed], 64) for _ in range(500)}
    assert len(made) > 100 and max(map(len, made)) <= 64


def test_pieces_come_apart_as_they_were_put_together() -> None:
    assert parted(headed(b"ab", b"c")) == (b"ab", b"c")
    assert parts(headed(b"ab") + headed(b"")) == [b"ab", b""]


def test_the_command_counts_and_fails_where_something_is_found(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.fuzz",
        "--cases",
        "50",
        "--only",
        "spans",
        "--json",
        str(tmp_path / "r.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert "50 cases, 0 findings" in done.stdout
    assert named("spans").name in (tmp_path / "r.json").read_text()
