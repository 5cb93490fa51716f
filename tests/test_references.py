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
