"""The product is written for Python 3.11, and python310.py brings to 3.10 whatever of it is used."""

from __future__ import annotations

import enum
import hashlib
import io
import re
import subprocess
import sys
from pathlib import Path

from edgepart import python310

ROOT = Path(__file__).parent.parent
NEWER = re.compile(r":!?[\d.~]*:3\.(?:1[1-9]|[2-9]\d):(?P<what>.+)$")
"""A line of vermin's: file, line, column, the oldest Python 2 and 3 that have it, and what it is."""


def found(*paths: Path | str) -> set[str]:
    """What the files use of Python that is newer than 3.10, as vermin finds it."""
    command = [
        Path(sys.executable).with_name("vermin"),
        "-vv",
        "--no-tips",
        "-p",
        "1",
        "--format",
        "parsable",
        *paths,
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr
    whats = {line["what"] for line in map(NEWER.search, done.stdout.splitlines()) if line}
    return {name[1] if (name := re.match(r"'([\w.]+)' ", what)) else what for what in whats}


def test_what_the_product_uses_of_newer_pythons_is_brought_and_nothing_else() -> None:
    package = ROOT / "src/edgepart"
    # vermin does not follow links.
    linked = [path.resolve() for path in package.iterdir() if path.is_symlink()]
    assert {"agent", "cli", "client", "planner"} <= {path.name for path in linked}
    assert found(package, *linked) == python310.names() - {"asyncio.Timeout"}


def test_a_use_of_something_newer_would_be_found(tmp_path: Path) -> None:
    file = tmp_path / "newer.py"
    file.write_text("import asyncio\nasync def f():\n    async with asyncio.TaskGroup():\n        pass\n")
    assert found(file) == {"asyncio.TaskGroup"}
    file.write_text("try:\n    pass\nexcept* OSError:\n    pass\n")
    assert found(file) == {"`except*`"}


def test_enumerations_of_texts_are_those_of_3_11() -> None:
    class Ours(python310.StrEnum):
        RED = enum.auto()
        BLUE = "Blue"

    assert [str(each) for each in Ours] == ["red", "Blue"]
    assert f"{Ours.BLUE:>6}" == "  Blue"
    assert Ours("red") is Ours.RED


def test_a_file_is_digested_in_parts() -> None:
    data = b"0123456789" * 300_000
    assert python310.file_digest(io.BytesIO(data), "sha256").digest() == hashlib.sha256(data).digest()
