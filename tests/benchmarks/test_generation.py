"""The benchmark of text generation: figures are judged by their aims, and none is hidden."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.generation import ORDER, PARTS, main, parser, settings_of
from benchmarks.generation_asking import told_of
from benchmarks.generation_prompts import prompts
from benchmarks.generation_report import (
    Figure,
    Loss,
    Told,
    at_least,
    at_most,
    documents,
    judge_losses,
    judge_mirrored,
    judge_texts,
    known,
    merged,
    tabled,
)
from benchmarks.generation_speed import CASES, judge_streams
from benchmarks.machine import as_markdown


def told(tokens: str, at_s: tuple[float, ...] = (), error: str = "", replays: int = 0) -> Told:
    """An answer with a token for each letter, one a second."""
    times = at_s or tuple(map(float, range(1, len(tokens) + 1)))
    return Told(tuple(tokens), times, 0.0, "" if error else "length", replays, 0, error)


@pytest.mark.parametrize(
    ("figure", "found", "aim", "reached"),
    [
        (at_least("speed", "2", 1.7, 1.65), "1.70x", "at least 1.65x", True),
        (at_least("speed", "2", 1.6, 1.65), "1.60x", "at least 1.65x", False),
        (at_most("growth", "pause", 100, 100, "{:.0f} ms"), "100 ms", "at most 100 ms", True),
        (at_most("growth", "pause", 101, 100, "{:.0f} ms"), "101 ms", "at most 100 ms", False),
        (known("speed", "time", "3 ms"), "3 ms", "", None),
    ],
)
def test_a_figure_is_judged_by_its_aim(figure: Figure, found: str, aim: str, reached: bool | None) -> None:
    assert (figure.found, figure.aim, figure.reached) == (found, aim, reached)


def test_texts_are_equal_or_the_first_difference_is_named() -> None:
    assert judge_texts("a", "b", [told("xyz")], ["xyz"]).reached
    wrong = judge_texts("a", "b", [told("xyz"), told("xq")], ["xyz", "xyz"])
    assert not wrong.reached and "prompt 1 differs from token 1" in wrong.found
    assert wrong.found.startswith("4 of 6 tokens, 1 of 2 texts")
    short = judge_texts("a", "b", [told("xy")], ["xyz"])
    assert not short.reached and "prompt 0 differs from token 2" in short.found
    broken = judge_texts("a", "b", [told("", error="503: away")], ["xyz"])
    assert not broken.reached and "503: away" in broken.found


def test_times_are_those_between_tokens() -> None:
    answer = told("abc", (1.0, 1.5, 2.5))
    assert answer.gaps_s == [0.5, 1.0] and answer.first_s == 1.0
    assert answer.tokens_per_s == pytest.approx(2 / 1.5) and answer.median_gap_s == 0.75
    assert told("").first_s == float("inf") and told("").tokens_per_s == 0.0


def test_the_pause_after_a_kill_is_the_longest_that_ends_after_it() -> None:
    answer = told("abcd", (1.0, 4.0, 4.1, 6.1), replays=1)
    loss = Loss("leader", answer, tuple("abcd"), killed_s=4.05)
    assert loss.pause_s == pytest.approx(2.0) and loss.history == 2


def test_losses_are_judged_by_texts_and_by_the_time_of_reading_the_history() -> None:
    good = Loss("leader", told("abcd", (1.0, 2.0, 3.0, 4.0), replays=1), tuple("abcd"), 2.5)
    changed = Loss("follower", told("abcx", (1.0, 2.0, 3.0, 30.0)), tuple("abcd"), 2.5)
    broken = Loss("follower", told("ab", error="lost"), tuple("abcd"), 2.5)
    fine = judge_losses("kill", [good], prompt_tokens=2, step_s=1.0)
    assert all(figure.reached is not False for figure in fine)
    bad = judge_losses("kill", [good, changed, broken], prompt_tokens=2, step_s=1.0)
    assert [figure.found for figure in bad[:3]] == ["1", "1", "1"]
    assert [figure.reached for figure in bad] == [False, False, None, None, False]
    assert "1 of the leader, 2 of the follower" in bad[0].case


def test_with_copies_of_states_the_pause_has_a_bound_whatever_the_history() -> None:
    good = Loss("leader", told("abcd", (1.0, 2.0, 3.0, 4.0)), tuple("abcd"), 2.5)
    slow = Loss("leader", told("abcd", (1.0, 2.0, 3.0, 4.6), replays=1), tuple("abcd"), 2.5)
    assert all(figure.reached is not False for figure in judge_mirrored("mirror", [good], 2000))
    bad = judge_mirrored("mirror", [good, slow], 2000)
    assert [figure.reached for figure in bad] == [True, True, None, None, False]
    assert bad[2].found == "1" and "2000 tokens" in bad[4].case


def test_texts_at_once_get_equal_shares_and_more_together() -> None:
    one = told("abcd", (1.0, 2.0, 3.0, 4.0))
    fair = [told("abcde", (1.0, 1.5, 2.0, 2.5, 3.0)), told("abcde", (1.0, 1.5, 2.0, 2.5, 3.0))]
    assert all(figure.reached for figure in judge_streams("many", one, fair))
    unfair = [told("abcde", (1.0, 1.5, 2.0, 2.5, 3.0)), told("ab", (1.0, 3.0))]
    assert not all(figure.reached for figure in judge_streams("many", one, unfair))
    apart = [told("ab", (1.0, 2.0)), told("ab", (3.0, 4.0))]
    assert [figure.reached for figure in judge_streams("many", one, apart)] == [False]


def test_a_client_writes_down_what_it_is_told() -> None:
    lines: list[dict[str, Any]] = [
        {"at": 1.0, "began": True},
        {"at": 2.0, "tokens": ["a", "b"], "reason": None},
        {"at": 3.0, "tokens": [], "reason": "length"},
        {"at": 3.0, "edgepart": {"replays": 2}, "usage": {"prompt_tokens_details": {"cached_tokens": 5}}},
    ]
    found = told_of(lines)
    assert found == Told(("a", "b"), (2.0, 2.0), 1.0, "length", 2, 5, "")
    assert told_of([{"at": 1.0, "error": "503"}]).error == "503"


def test_a_part_that_is_measured_again_replaces_itself_and_nothing_else() -> None:
    old = documents([known("kill", "a", "1"), known("same-answer", "b", "2")])
    found = merged(old, [known("kill", "c", "3")], ORDER)
    assert [(one.part, one.case) for one in found] == [("same-answer", "b"), ("kill", "c")]


def test_the_table_shows_what_misses_its_aim() -> None:
    lines = list(
        as_markdown(tabled([at_least("speed", "2 hosts", 1.0, 2.0), known("speed", "time", "3 ms")]))
    )
    assert any("**no**" in line and "at least 2.00x" in line for line in lines)
    assert any("3 ms" in line for line in lines)


def test_options_say_what_is_measured_and_how_much() -> None:
    given = parser().parse_args(["--only", "kill,growth", "--kills", "3", "--grown", "100"])
    assert settings_of(given).losses.kills == 3 and settings_of(given).states.context == 196
    assert set(PARTS) | {"traffic"} == set(ORDER)
    assert len({case.key for case in CASES}) == len(CASES)
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])


def test_there_are_prompts_of_both_kinds() -> None:
    found = prompts(20)
    assert len(set(found)) == 20 and sum("<|im_start|>" in text for text in found) == 10


def test_cases_that_were_not_chosen_keep_their_figures() -> None:
    names = ["3 hosts (2 used, by auto)", "3 hosts: the two texts before", "2 hosts (2 used, by auto)"]
    old = documents([known("speed", name, "1.5x") for name in names])
    found = merged(old, [known("speed", "3 hosts (3 used, by auto)", "2.1x")], ORDER)
    assert [one.case for one in found] == ["2 hosts (2 used, by auto)", "3 hosts (3 used, by auto)"]
