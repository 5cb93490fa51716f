"""Feeding: frames become requests and answers become records, with a client that answers as the test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from edgepart.cli.feed.answers import AnswerFile, summary_of
from edgepart.cli.feed.contents import FrameReader
from edgepart.cli.feed.feeding import Feeder
from edgepart.cli.feed.frames import FeedCounts, FrameLine, LineLimits
from edgepart.cli.main import app
from edgepart.client.records import Answer
from edgepart.planner.errors import DeadlinePassed, UnknownDeployment, UsageError

METADATA = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}


class OneAnswer:
    """A client that doubles the only value; it waits for `open`, and refuses negative values."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.asked: list[float] = []

    async def infer(self, name: str, inputs: Mapping[str, Any], outputs: None, timeout_s: float) -> Answer:
        (value,) = inputs["x"].tolist()
        self.asked.append(value)
        await self.open.wait()
        if value < -1:
            raise UnknownDeployment("it is gone")
        if value < 0:
            raise DeadlinePassed("too late")
        return Answer(
            outputs={"y": np.array([2 * value], np.float32)},
            epoch="1.1",
            seconds=0.5,
            replays=0,
            retries=0,
            url="",
        )


class ListedAnswers:
    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []
        self.lines: list[str] = []

    def put(self, record: Mapping[str, Any], line: str) -> None:
        self.records.append(record)
        self.lines.append(line)

    def __enter__(self) -> ListedAnswers:
        return self

    def __exit__(self, *_: object) -> None: ...


async def values(*numbers: float) -> AsyncGenerator[tuple[str, bytes], None]:
    for number in numbers:
        yield "topic", json.dumps([number]).encode()


class Feeding:
    def __init__(self, limits: LineLimits) -> None:
        self.client, self.writer, self.line = OneAnswer(), ListedAnswers(), FrameLine(limits)
        reader = FrameReader(METADATA, "", print)
        self.told: list[str] = []
        self.feeder = Feeder(
            self.client,  # type: ignore[arg-type]
            "net",
            reader,
            self.line,
            self.writer,
            self.told.append,
            9.0,
        )


def test_each_frame_of_a_patient_line_is_answered_or_says_why_not() -> None:
    async def run() -> None:
        feed = Feeding(LineLimits(at_once=2, waiting=None))
        feed.client.open.set()
        await feed.feeder.run(values(1, -1, 3))
        first, second, third = sorted(feed.writer.records, key=lambda record: record["frame"])
        assert first["outputs"]["y"]["data"] == [2] and third["outputs"]["y"]["data"] == [6]
        assert second["kind"] == "DeadlinePassed" and "outputs" not in second
        assert feed.line.counts == FeedCounts(came=3, answered=2, failed=1)
        assert "3 frames" in summary_of(feed.line.counts, 1.0, 0)

    asyncio.run(run())


def test_a_slow_cluster_gets_the_newest_frame_and_the_loss_is_told() -> None:
    async def run() -> None:
        feed = Feeding(LineLimits(at_once=1, waiting=1))
        running = asyncio.create_task(feed.feeder.run(values(1, 2, 3, 4)))
        while not feed.client.asked:
            await asyncio.sleep(0.001)
        feed.client.open.set()
        await running
        assert feed.client.asked[-1] == 4
        assert feed.writer.records[-1]["dropped"] == feed.line.counts.dropped > 0
        assert feed.line.counts.answered + feed.line.counts.dropped == 4
        assert len(feed.told) == 1 and "dropped, 0 failed" in feed.told[0]

    asyncio.run(run())


def test_stopping_drops_what_waits_and_awaits_what_is_under_way() -> None:
    async def endless() -> AsyncGenerator[tuple[str, bytes], None]:
        for number in range(3):
            yield "topic", json.dumps([number]).encode()
        await asyncio.Event().wait()

    async def run() -> None:
        feed = Feeding(LineLimits(at_once=1, waiting=None))
        running = asyncio.create_task(feed.feeder.run(endless()))
        while not feed.client.asked:
            await asyncio.sleep(0.001)
        feed.feeder.stop()
        await asyncio.sleep(0)
        feed.client.open.set()
        await running
        assert feed.line.counts == FeedCounts(came=3, answered=1, dropped=2)

    asyncio.run(run())


def test_an_error_that_all_frames_would_meet_ends_the_feed() -> None:
    async def run() -> None:
        feed = Feeding(LineLimits(at_once=1, waiting=None))
        feed.client.open.set()
        with pytest.raises(UnknownDeployment):
            await feed.feeder.run(values(-2, 1))
        assert feed.client.asked == [-2]

    asyncio.run(run())


def test_an_error_of_the_source_ends_the_feed() -> None:
    async def broken() -> AsyncGenerator[tuple[str, bytes], None]:
        yield "topic", b"[1]"
        raise UsageError("the folder is gone")

    async def run() -> None:
        feed = Feeding(LineLimits(waiting=None))
        feed.client.open.set()
        with pytest.raises(UsageError, match="gone"):
            await feed.feeder.run(broken())
        assert feed.line.counts.answered == 1

    asyncio.run(run())


def test_answers_are_appended_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    for number in (1, 2):
        with AnswerFile(path) as file:
            file.put({"frame": number}, "")
    assert [json.loads(line)["frame"] for line in path.read_text().splitlines()] == [1, 2]
    with pytest.raises(UsageError, match="--output"), AnswerFile(tmp_path):
        pass


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "give one source"),
        (["--camera", "0", "--folder", "."], "give one source"),
        (["--camera", "0", "--once"], "--once is for --folder"),
        (["--mqtt", "a"], "need a broker"),
        (["--folder", ".", "--to-topic", "a"], "need a broker"),
        (["--folder", ".", "--to-topic", "a", "--output", "f"], "exclude each other"),
        (["--mqtt", "a", "--broker", "http://x"], "--broker: give mqtt://"),
        (["--folder", ".", "--max-age", "0"], "--max-age"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["feed", "net", *options], env={"EDGEPART_MQTT": ""})
    assert isinstance(result.exception, UsageError) and says in str(result.exception)
