"""A service that generates text without a model: it always says the same, and obeys `max_tokens` and `stop`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from edgepart.agent.text.generation import (
    Begun,
    ChatPrompt,
    Ended,
    GeneratedToken,
    GenerationEvent,
    GenerationRequest,
    Grown,
    TextModel,
    TokenProbability,
)

WORDS = ("Once", " upon", " a", " time", " \N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}", ".")
"""The tokens of every answer. The fifth and the sixth are the parts of one character, which come together."""
PARTS = ("Once", " upon", " a", " time", "", " \N{CROISSANT}", ".")
TEXT = "".join(PARTS)
MODELS = (TextModel("chat", 256, 1_700_000_000), TextModel("small", 64, 1_700_000_001))


def token(number: int, likely: int) -> GeneratedToken:
    others = tuple(TokenProbability(100 + n, f"other{n}", -2.0 - n) for n in range(likely))
    return GeneratedToken(TokenProbability(number, WORDS[number], -0.25 * number), others)


class FakeText:
    """Implements TextService."""

    def __init__(self) -> None:
        self.requests: list[GenerationRequest] = []
        self.failure: Exception | None = None
        """What an answer raises, before its first event or after `whole_until` tokens."""
        self.whole_until = -1
        """The number of tokens after which an answer waits for `gate`, or fails; -1 stands for the time before the first
        event."""
        self.gate: asyncio.Event | None = None
        self.closed = 0
        """The number of answers that have ended, for whatever reason."""
        self.floods = False
        """Whether an answer goes on for ever."""
        self.unfinished = False
        """Whether answers lack their last event."""

    def models(self) -> Sequence[TextModel]:
        return MODELS

    async def generate(self, model: str, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        self.requests.append(request)
        try:
            async with asyncio.timeout(600):  # As real services have them, which all events need to cross.
                await self._pass(-1)
                yield Begun(5)
                while self.floods:
                    yield Grown("flood " * 1000, ())
                most = min(request.max_tokens or len(WORDS), len(WORDS))
                for event in self._growth(most, request):
                    await self._pass(event.tokens[-1].chosen.token)
                    yield event
                await self._pass(most)
                if not self.unfinished:
                    yield self._end(most, request)
        finally:
            self.closed += 1

    def _growth(self, most: int, request: GenerationRequest) -> list[Grown]:
        events, text = [], ""
        for number in range(most):
            if any(stop in text + PARTS[number] for stop in request.stop):
                break
            text += PARTS[number]
            events.append(Grown(PARTS[number], (token(number, request.logprobs or 0),)))
        return events

    def _end(self, most: int, request: GenerationRequest) -> Ended:
        told = len(self._growth(most, request))
        reason = "length" if told == most < len(WORDS) else "stop"
        cached = 2 if isinstance(request.prompt, ChatPrompt) else 0
        return Ended(reason, 5, told, cached, 0.25, 12.5, 1, 0.5, ("pi-a", "pi-b"))

    async def _pass(self, number: int) -> None:
        if number != self.whole_until:
            return
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
