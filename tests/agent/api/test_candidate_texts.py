"""Texts for a deployment with a candidate: each is drawn once, and none is lost before its first words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from edgepart.agent.api.candidate_texts import CandidateTexts
from edgepart.agent.text.generation import (
    Begun,
    Ended,
    GenerationEvent,
    GenerationRequest,
    Grown,
    TextModel,
)
from edgepart.agent.wire.trials import TrialShare
from edgepart.planner.errors import RunError
from tests.agent.api.test_candidate_requests import Bench

ENDED = Ended("stop", 1, 1, 0, 0.1, 1.0, 0, 0.0, ())


class Talkers:
    """Says the name of the deployment, and fails where it is told to."""

    def __init__(self) -> None:
        self.fails_after: dict[str, int] = {}
        """After how many events a deployment fails, by its name."""
        self.closed: list[str] = []

    def models(self) -> Sequence[TextModel]:
        return [TextModel("net", 9, 1), TextModel("net.candidate", 9, 1)]

    async def generate(self, model: str, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        try:
            events: list[GenerationEvent] = [Begun(1), Grown(model, ()), ENDED]
            for number, event in enumerate(events):
                if self.fails_after.get(model) == number:
                    raise RunError(f"{model} failed")
                yield event
        finally:
            self.closed.append(model)


async def read(texts: CandidateTexts) -> list[GenerationEvent]:
    return [event async for event in texts.generate("net", GenerationRequest("hello"))]


def said(name: str) -> list[GenerationEvent]:
    return [Begun(1), Grown(name, ()), ENDED]


def test_a_text_is_of_the_version_that_it_is_drawn_for() -> None:
    async def story() -> None:
        bench, talkers = Bench(TrialShare(100)), Talkers()
        texts = CandidateTexts(talkers, bench.trials)
        assert await read(texts) == said("net.candidate")
        bench.map.set_share("a", "net", TrialShare(0))
        assert await read(texts) == said("net")
        bench.map.delete("a", "net.candidate")
        assert await read(texts) == said("net")
        assert [one.name for one in texts.models()] == ["net", "net.candidate"]

    asyncio.run(story())


@pytest.mark.parametrize("after", [0, 1])
def test_a_text_whose_candidate_fails_before_its_first_words_is_told_by_the_other(after: int) -> None:
    async def story() -> None:
        bench, talkers = Bench(TrialShare(100)), Talkers()
        talkers.fails_after["net.candidate"] = after
        assert await read(CandidateTexts(talkers, bench.trials)) == said("net")
        assert talkers.closed == ["net.candidate", "net"]
        assert (bench.seen.fallbacks, bench.seen.last_failure) == (1, "net.candidate failed")

    asyncio.run(story())


def test_a_text_that_has_begun_ends_with_its_error() -> None:
    async def story() -> None:
        bench, talkers = Bench(TrialShare(100)), Talkers()
        talkers.fails_after["net.candidate"] = 2
        got = []
        with pytest.raises(RunError):
            async for event in CandidateTexts(talkers, bench.trials).generate(
                "net", GenerationRequest("hello")
            ):
                got.append(event)
        assert got == said("net.candidate")[:2]

    asyncio.run(story())
