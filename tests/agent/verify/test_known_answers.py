"""Known answers are kept by question, and do not add up."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.verify.known_answers import KEPT_ANSWERS, KnownAnswers, Question


def question(number: int, model: str = "m") -> Question:
    return Question(model, number)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60)), max_size=40), st.integers(0, 100))
def test_the_last_answers_that_have_room_are_known(kept: list[tuple[int, int]], most_bytes: int) -> None:
    answers, plain = KnownAnswers(most_bytes), dict[int, int]()
    for number, nbytes in kept:
        answers.keep(question(number), {"y": np.zeros(nbytes, np.uint8)})
        plain.pop(number, None)
        plain[number] = nbytes
        while sum(plain.values()) > most_bytes:
            del plain[next(iter(plain))]
        found = {n: a for n in range(6) if (a := answers.find(question(n))) is not None}
        assert {n: a["y"].nbytes for n, a in found.items()} == plain
        plain = {n: plain[n] for n in sorted(plain)}  # The order in which they were found just now.


def test_what_counts_no_bytes_does_not_add_up() -> None:
    answers = KnownAnswers()
    for number in range(KEPT_ANSWERS + 1):
        answers.keep(question(number), {"y": "a string"})
    assert answers.find(question(0)) is None
    assert answers.find(question(KEPT_ANSWERS)) == {"y": "a string"}


def test_answers_of_one_model_are_forgotten() -> None:
    answers = KnownAnswers()
    for model in ("m", "o"):
        for number in range(2):
            answers.keep(question(number, model), {})
    answers.forget("m")
    assert [answers.find(question(number)) for number in range(2)] == [None, None]
    assert [answers.find(question(number, "o")) for number in range(2)] == [{}, {}]
