"""Requests that keep coming, as the demo counts them; and the page that it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from edgepart.cli.demo import ocr
from edgepart.cli.demo.ocr import PAGE, Reader, relative_difference
from edgepart.cli.demo.traffic import RequestTraffic, Tally
from edgepart.client.records import Answer
from edgepart.planner.errors import Unavailable, UsageError

EXPECTED = {"y": np.array([1.0, -10.0])}


class Cluster:
    """Answers with what it is told to, in turn, and then with the right answer."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def infer(self, model: str, inputs: Mapping[str, Any]) -> Answer:
        await asyncio.sleep(0)
        found = self.answers.pop(0) if self.answers else EXPECTED["y"]
        if isinstance(found, Exception):
            raise found
        return Answer({"y": found}, "1.1", 0.0, replays=1, retries=0)


def tally_of(*answers: Any, count: int) -> Tally:
    async def run() -> Tally:
        tally = Tally()
        cluster: Any = Cluster(*answers)
        async with RequestTraffic(cluster, "net", {}, EXPECTED, tally, concurrency=2) as running:
            await running.answers(count)
        return tally

    return asyncio.run(run())


def test_all_are_counted_and_none_is_forgotten() -> None:
    tally = tally_of(count=10)
    assert tally.sent == tally.answered == tally.replays >= 10
    assert (tally.wrong, tally.lost, tally.largest_difference) == (0, [], 0.0)
    assert tally.longest_gap_s > 0


def test_a_request_without_an_answer_is_lost_and_says_why() -> None:
    tally = tally_of(Unavailable("nobody serves it"), count=5)
    assert tally.lost == ["nobody serves it"]
    assert tally.sent == tally.answered + 1


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [([1.0, -10.0005], 0), ([1.0, -10.01], 1), ([1.1, -10.0], 1), ([np.nan, -10.0], 1), ([1.0], 1)],
)
def test_an_answer_is_right_within_a_part_of_the_largest(answer: list[float], wrong: int) -> None:
    assert tally_of(np.array(answer), count=3).wrong == wrong


def test_a_page_is_read_the_same_through_any_session() -> None:
    reader = Reader(PAGE, threads=1)
    found, lines = reader.read()
    text = reader.text
    assert len(text) == len(lines.seen) > 1
    assert len({batch.shape for batch, _ in lines.seen}) == 1  # one deployment has one shape
    detect, recognise = dict(_by_bytes(found)), dict(_by_bytes(lines))
    again = reader.read(lambda batch: detect[batch.tobytes()], lambda batch: recognise[batch.tobytes()])
    assert reader.text == text
    assert [len(recorded.seen) for recorded in again] == [1, len(text)]
    blank = reader.read(lambda batch: np.zeros_like(found.seen[0][1]))
    assert (reader.text, blank[1].seen) == ([], [])


def _by_bytes(recorded: ocr.RecordingSession) -> list[tuple[bytes, Any]]:
    return [(batch.tobytes(), output) for batch, output in recorded.seen]


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocr, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"edgepart\[demo\]"):
        Reader()


def test_the_difference_is_relative_to_the_largest() -> None:
    assert relative_difference(np.array([1.0, 9.0]), np.array([1.0, 10.0])) == pytest.approx(0.1)
    assert relative_difference(np.zeros(2), np.zeros(2)) == 0.0
    assert relative_difference(np.array([np.nan, 1.0]), np.array([1.0, 1.0])) == np.inf
