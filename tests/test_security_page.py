"""docs/security.md: each line of its tables names the test that shows it, and that test exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text()
UNTESTED = (
    "overheard HTTP",
    "reads and writes all of the broker",
    "has a stolen holder",
    "return wrong numbers",
)
"""Lines in which nothing is promised that a test could show: the text says everything that an attacker gets."""


def rows() -> Iterator[list[str]]:
    """Yield the rows of the tables with a column for the test."""
    tested = False
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" |")]
        if not line.startswith("|"):
            tested = False
        elif cells[-1] == "test":
            tested = True
        elif tested and not cells[0].startswith("---"):
            yield cells


def functions() -> dict[str, set[str]]:
    """Return the files that contain each test, by the test's name."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), flags=re.MULTILINE):
            found.setdefault(name, set()).add(path.name)
    return found


@pytest.mark.parametrize("cells", list(rows()), ids=lambda cells: cells[0][:40])
def test_each_line_names_its_test(cells: list[str]) -> None:
    if cells[0].startswith(UNTESTED):
        assert "test" not in cells[-1]
    else:
        assert re.search(r"test_|#a-box-was-stolen|^the same$", cells[-1]), cells


def test_every_test_that_is_named_is_there() -> None:
    known = functions()
    named = re.findall(r"`(test_\w+)`", PAGE)
    assert len(named) > 40
    assert [name for name in named if name not in known] == []


def test_every_file_that_is_named_is_there() -> None:
    named = set(re.findall(r"\btests/[\w/]+\.py\b", PAGE))
    assert named and [path for path in named if not (ROOT / path).is_file()] == []
    short = set(re.findall(r"(?<![\w/])test_\w+\.py\b", PAGE))
    assert short <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}
