"""Answers: what a feed writes for each frame, and where to. Rules over records, and the doors that take them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from edgepart.cli.feed.frames import FeedCounts, FeedFrame
from edgepart.cli.feed.topics import BrokerTopics
from edgepart.cli.output import say
from edgepart.cli.tensors import glance, plain
from edgepart.planner.errors import EdgepartError, UsageError
from edgepart.planner.figures import format_figure, format_seconds

if TYPE_CHECKING:
    from edgepart.client.records import Answer


def answer_record(frame: FeedFrame, answer: Answer, age_s: float, counts: FeedCounts) -> dict[str, Any]:
    """The document of an answered frame, whose answer came `age_s` seconds after the frame."""
    outputs = {
        name: {"dtype": str(array.dtype), "shape": list(array.shape), "data": plain(array)}
        for name, array in answer.outputs.items()
    }
    about = {"seconds": answer.seconds, "age_s": age_s, "epoch": answer.epoch}
    return _head(frame) | {"outputs": outputs} | about | {"dropped": counts.dropped}


def failure_record(frame: FeedFrame, error: EdgepartError, counts: FeedCounts) -> dict[str, Any]:
    """The document of a frame without an answer."""
    return _head(frame) | {"error": str(error), "kind": type(error).__name__, "dropped": counts.dropped}


def _head(frame: FeedFrame) -> dict[str, Any]:
    return {"frame": frame.number, "source": frame.source}


def line_of(frame: FeedFrame, answer: Answer, age_s: float) -> str:
    """An answered frame for people, in a line."""
    values = "  ".join(f"{name}: {glance(array)}" for name, array in answer.outputs.items())
    return f"{frame.number}  {frame.source}  {values}  ({format_seconds(age_s)})"


def summary_of(counts: FeedCounts, took_s: float, unsent: int) -> str:
    """What became of all frames, in a sentence."""
    rate = f", {format_figure(counts.answered / took_s)} a second" if counts.answered and took_s > 0 else ""
    what = "frame" if counts.came == 1 else "frames"
    parts = [f"{counts.came} {what} in {format_seconds(took_s)}: {counts.answered} answered{rate}"]
    parts += [f"{counts.dropped} dropped"] if counts.dropped else []
    parts += [f"{counts.failed} failed"] if counts.failed else []
    parts += [f"{unsent} answers could not be published"] if unsent else []
    return ", ".join(parts)


class AnswerWriter(Protocol):
    """Takes what a feed writes, as a context manager."""

    def put(self, record: Mapping[str, Any], line: str) -> None:
        """Takes a frame's document, and the same as a line for people."""

    def __enter__(self) -> AnswerWriter: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PrintedAnswers:
    """Answers on stdout: lines for people, or documents."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def put(self, record: Mapping[str, Any], line: str) -> None:
        if self._as_json:
            print(_dumped(record), flush=True)
        else:
            say(line)

    def __enter__(self) -> PrintedAnswers:
        return self

    def __exit__(self, *_: object) -> None:
        """Stdout stays open."""


class AnswerFile:
    """Answers in a file, a document a line, after what the file holds already."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def put(self, record: Mapping[str, Any], line: str) -> None:
        assert self._file is not None
        try:
            self._file.write(_dumped(record) + "\n")
            self._file.flush()
        except OSError as error:
            raise UsageError(f"--output {self._path}: {error.strerror}") from error

    def __enter__(self) -> AnswerFile:
        try:
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--output {self._path}: {error.strerror}") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


class PublishedAnswers:
    """Answers as messages of a topic, a document each."""

    def __init__(self, topics: BrokerTopics, topic: str) -> None:
        self._topics = topics
        self._topic = topic

    def put(self, record: Mapping[str, Any], line: str) -> None:
        self._topics.publish(self._topic, _dumped(record).encode())

    def __enter__(self) -> PublishedAnswers:
        return self

    def __exit__(self, *_: object) -> None:
        """The connection belongs to who made it."""


def _dumped(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False)
