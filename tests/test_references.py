"""Files that documents, docstrings and comments mention exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOPS = "agent|planner|client|cli|src|installers|tests|benchmarks"
PATH = re.compile(rf"(?<![\w/.])((?:{TOPS})/[\w/]+\.py)\b")
MODULE = re.compile(r"(?<![\w/.\"'-])([a-z]\w+\.py)\b(?![\"'])")


def texts() -> Iterator[tuple[str, str]]:
    for folder in TOPS.split("|"):
        yield from ((str(file.relative_to(ROOT)), file.read_text()) for file in (ROOT / folder).rglob("*.py"))
    for file in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        yield str(file.relative_to(ROOT)), file.read_text()


def test_files_that_are_named_exist() -> None:
    known = {file.name for folder in TOPS.split("|") for file in (ROOT / folder).rglob("*.py")}
    gone = {
        f"{file} names {name}"
        for file, text in texts()
        if file != "CHANGELOG.md"
        for name in (*PATH.findall(text), *MODULE.findall(text))
        if not (
            name in known if "/" not in name else (ROOT / name).exists() or "NAME" in name or "FAMILY" in name
        )
    }
    assert not gone


def test_links_of_documents_lead_somewhere() -> None:
    gone = {
        f"{file} links to {target}"
        for file, text in texts()
        if file.endswith(".md")
        for target in re.findall(r"\]\(([^)#\s]+?)(?:#[^)]*)?\)", text)
        if "://" not in target and not (ROOT / file).parent.joinpath(target).exists()
    }
    assert not gone


def test_tests_that_documents_name_exist() -> None:
    known = {
        name for file, text in texts() if file.endswith(".py") for name in re.findall(r"def (test_\w+)", text)
    }
    gone = {
        f"{file} names {name}"
        for file, text in texts()
        if file.endswith(".md")
        for name in re.findall(r"(?<![/\w])(test_\w+)(?![\w.])", text)
        if name not in known
    }
    assert not gone


def test_each_claim_of_a_paper_is_shown_by_something() -> None:
    """But one, which says that it is not repeated."""
    page = (ROOT / "docs" / "strategies.md").read_text()
    section = page[page.index("## What the papers report") : page.index("## Limits of all strategies")]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "| shown by |" not in line]
    nothing = [line for line in rows if not re.search(r"test_|`make ", line.rsplit("|", 2)[1])]
    assert len(rows) > 40 and all("not repeated" in line for line in nothing) and len(nothing) == 1


def test_targets_of_make_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    gone = {
        f"{file} names `make {target}`"
        for file, text in texts()
        if file.endswith(".md")
        for target in re.findall(r"`make ([a-z][\w-]*)", text)
        if target not in targets
    }
    assert not gone
