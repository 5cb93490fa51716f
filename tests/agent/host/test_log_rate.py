"""The log's size is bounded, whatever outsiders send."""

from __future__ import annotations

import logging

from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.host.log_rate import LogRate
from edgepart.cli.agent import limit_log


def record(text: str, *args: object, name: str = "aiohttp.server") -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, __file__, 1, text, args, None)


@given(
    st.lists(st.floats(0, 2), max_size=200),
    st.floats(0.5, 5),
    st.integers(1, 10),
)
def test_no_kind_of_line_passes_oftener_than_its_rate_and_every_line_is_counted(
    pauses_s: list[float], rate: float, burst: int
) -> None:
    now = 0.0
    limit = LogRate(lambda: now, rate, burst)
    passed = told = 0
    for pause_s in [*pauses_s, burst / rate + 1]:
        now += pause_s
        line = record("%s sent garbage", "somebody")
        if limit.filter(line):
            passed += 1
            if "left out before" in line.getMessage():
                told += int(line.getMessage().partition("(")[2].split()[0])
    assert passed <= burst + rate * now + 1
    assert passed + told == len(pauses_s) + 1


def test_a_flood_of_one_kind_hides_no_other() -> None:
    limit = LogRate(lambda: 0.0, burst=2)
    assert sum(limit.filter(record("flood %d", i)) for i in range(1000)) == 2
    assert limit.filter(record("an alarm"))
    assert limit.filter(record("flood %d", 1, name="edgepart.agent.driver"))


def test_a_flood_of_ever_new_texts_is_bounded_too() -> None:
    limit = LogRate(lambda: 0.0, burst=2, most=10)
    assert sum(limit.filter(record(f"flood {i}")) for i in range(1000)) <= 2 * 10 + 2
    assert len(limit._left_out) <= 10 + 1


def test_the_agents_log_is_limited_for_libraries_too() -> None:
    root = logging.Logger("root")
    handler = logging.NullHandler()
    root.addHandler(handler)
    limit_log(root, lambda: 0.0)
    passed = sum(bool(handler.filter(record("Error handling request"))) for _ in range(1000))
    assert 0 < passed <= 50
