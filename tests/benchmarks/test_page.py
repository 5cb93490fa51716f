"""docs/benchmarks.md: each table says what it was made with, and stale ones are named."""

from __future__ import annotations

from datetime import date

import pytest
from benchmarks.page import (
    PAGE,
    README,
    ROOT,
    Source,
    gains,
    modules,
    replaced,
    rewritten,
    sources,
    stale,
    unplaced,
)

from edgepart.planner.errors import InternalError

EMPTY = "# Figures\n\n<!-- table speed -->\n<!-- end -->\n\nafter\n"


def test_what_is_written_says_what_it_was_made_with() -> None:
    page = rewritten(EMPTY, "speed", "make latency", "0123abc", date(2026, 11, 24), "| a |\n| - |\n| 1 |\n")
    assert list(sources(page)) == [Source("speed", "make latency", "0123abc", date(2026, 11, 24))]
    assert page.startswith("# Figures") and page.endswith("after\n") and not unplaced(page)
    again = rewritten(page, "speed", "make latency", "4567def", date(2026, 11, 25), "| b |")
    assert "0123abc" not in again and "| b |" in again


def test_a_table_needs_one_place_and_a_source() -> None:
    with pytest.raises(InternalError, match="0 places"):
        replaced(EMPTY, "<!-- table other -->", "<!-- end -->", "")
    with pytest.raises(InternalError, match="does not say"):
        list(sources(EMPTY))


def test_a_table_of_an_unknown_commit_or_long_ago_is_stale() -> None:
    today = date(2026, 11, 24)
    assert "not in the history" in str(stale(Source("speed", "make latency", "0" * 40, today), today))


def test_the_page_has_tables_only_where_commands_write_them() -> None:
    page = PAGE.read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert not unplaced(page)
    assert all(modules(makefile, source.command) for source in sources(page))


def test_the_readme_says_what_the_page_says() -> None:
    assert gains(PAGE.read_text()) in README.read_text()
    assert len(README.read_text().splitlines()) <= 170
