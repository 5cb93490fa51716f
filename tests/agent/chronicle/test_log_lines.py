"""The lines of the log that are kept: their texts, tracebacks, and bounds."""

from __future__ import annotations

import logging

from edgepart.agent.chronicle.log_lines import MOST_LETTERS, MOST_LINES, LogKeeper


def test_lines_are_kept_with_their_tracebacks_and_bounded() -> None:
    keeper, log = LogKeeper(), logging.Logger("a.module")
    log.addHandler(keeper)
    for n in range(MOST_LINES):
        log.info("line %d", n)
    try:
        raise KeyError("lost")
    except KeyError:
        log.exception("it failed")
    log.warning("x" * 2 * MOST_LETTERS)
    page = keeper.lines.after(0)
    assert page.forgotten == 2 and len(page.entries) == MOST_LINES
    (_, first), *_, (_, failed), (_, long) = page.entries
    assert (first.level, first.source, first.text) == ("INFO", "a.module", "line 2")
    assert failed.level == "ERROR" and "KeyError: 'lost'" in failed.text
    assert len(long.text) == MOST_LETTERS
