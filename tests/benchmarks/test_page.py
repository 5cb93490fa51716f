"""docs/benchmarks.md: each table says what it was made with, and stale ones are named."""

from __future__ import annotations

import re
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
    with_place,
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


def test_a_table_that_has_no_place_gets_a_section_that_says_what_it_shows() -> None:
    makefile = (
        'chaos: .venv/.dev  ## as root: kills, and cuts; CHAOS="--seed 2"\n\tpython -m benchmarks.chaos\n'
    )
    page = with_place(EMPTY, "chaos", "make chaos CHAOS='--seed 3'", makefile)
    assert page == f"{EMPTY}\n## Kills, and cuts\n\n<!-- table chaos -->\n<!-- end -->\n"
    assert with_place(page, "chaos", "make chaos", makefile) == page
    with pytest.raises(InternalError, match="does not say what `make peace` is for"):
        with_place(EMPTY, "peace", "make peace", makefile)


def test_every_target_that_keeps_its_table_has_a_place_or_gets_one() -> None:
    page, makefile = PAGE.read_text(), (ROOT / "Makefile").read_text()
    kept = re.findall(r"^([\w-]+):.*##.*\n(?:\t.*\n)*?\t\$\(call record,([\w ]+)\)", makefile, re.MULTILINE)
    assert len(kept) == makefile.count("$(call record,") - 1  # the comment that explains it
    for target, tables in kept:
        assert f"<!-- table {tables.split()[0]} -->" in with_place(
            page, tables.split()[0], f"make {target}", makefile
        )


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
