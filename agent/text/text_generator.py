"""Text generator: answers prompts with the language models that are deployed. Door: the event loop and its clock; it reads
the companions of models.

The loop is the same for each token: choose it from the logits, have devices read it, tell its text meanwhile. Only this
gateway knows the tokens; so whatever devices lose, the text goes on as it would have without the loss.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Protocol

from edgepart.agent.text.chat_template import TemplateProcess
from edgepart.agent.text.companions import TOKENIZER, TextFiles, parse_companions
from edgepart.agent.text.decoder import Decoder, Logits, read_decoder
from edgepart.agent.text.generation import (
    Begun,
    ChatPrompt,
    Ended,
    GeneratedToken,
    GenerationEvent,
    GenerationRequest,
    Grown,
    Sampling,
    TextModel,
    TokenProbability,
)
from edgepart.agent.text.likely_choice import choose_from, count_likely, describe_from
from edgepart.agent.text.sampling import ChosenToken, check_sampling
from edgepart.agent.text.text_stream import TextStream
from edgepart.agent.text.token_sequences import TokenSequence, TokenSequences
from edgepart.agent.text.tokenizer import TextTokenizer, parse_tokenizer
from edgepart.agent.wire.control import Deployment
from edgepart.planner.errors import ContextExceeded, RequestError, Unavailable, UnknownDeployment
from edgepart.planner.plans.plan import Plan

WAIT_S = 60.0
"""Seconds for which a prompt waits for its turn."""
HEAD_START_S = 0.001
"""Seconds for which a token waits to be told once devices were asked to read it. This process hands the step to them within
that time. With less, its threads compete, and each token comes later; with more, clients wait longer for no gain."""
MODELS_KEPT = 4
"""Tokenizers that are kept in memory. One takes some 30 MB; loading it again takes about a second."""


class TextDeployments(Protocol):
    """What the generator asks of the agent."""

    def deployments(self) -> Sequence[Deployment]:
        """The deployments whose models have a tokenizer."""

    def plan(self, name: str) -> Plan:
        """The plan of a deployment that serves here. Raises Unavailable."""

    async def companions(self, deployment: Deployment) -> Mapping[str, bytes]:
        """The files beside a deployment's model, by name. Raises Unavailable."""


@dataclass(frozen=True)
class LanguageModel:
    """What is needed beside the plan to generate text with a model."""

    files: TextFiles
    tokenizer: TextTokenizer
    end_tokens: frozenset[int]


@dataclass
class _GrowingText:
    """A text that grows."""

    request: GenerationRequest
    sampling: Sampling
    prompt: Sequence[int]
    most: int
    """The most tokens that may be generated."""
    stream: TextStream
    began_s: float
    generated: list[int]
    told_s: list[float]
    """The times at which tokens were chosen."""
    shortfalls: int = 0
    """How often a token could not be chosen from its most likely logits alone."""

    @property
    def likely(self) -> int:
        """How many of the most likely logits to ask devices for; 0 for all."""
        logprobs = self.request.logprobs
        return count_likely(self.sampling, logprobs, self.prompt, self.generated, self.shortfalls)

    def choose(self, logits: Logits) -> int | None:
        """The next token; None if it cannot be chosen from these logits alone."""
        return choose_from(logits, self.sampling, self.prompt, self.generated)


class TextGenerator:
    """Implements TextService. For the event loop's thread."""

    def __init__(
        self,
        agent: TextDeployments,
        sequences: TokenSequences,
        templates: TemplateProcess,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._agent = agent
        self._sequences = sequences
        self._templates = templates
        self._now = now
        self._loaded: dict[str, asyncio.Task[LanguageModel]] = {}
        """What is loaded, or being loaded, by the model's digest; the one used last at the end."""
        self._created: dict[tuple[str, str], int] = {}

    def models(self) -> Sequence[TextModel]:
        """The deployments that generate text. The context is 0 while no plan serves."""
        found = []
        for entry in self._deployed():
            created = self._created.setdefault((entry.name, entry.model), int(time.time()))
            found.append(TextModel(entry.name, entry.options.context or 0, created))
        return found

    def _deployed(self) -> Sequence[Deployment]:
        """The deployments that generate text. Sequences of others are forgotten."""
        entries = self._agent.deployments()
        self._sequences.keep({entry.name for entry in entries})
        return entries

    async def generate(self, model: str, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """The same as `TextService.generate`."""
        began_s = time.monotonic()
        entry = next((one for one in self._deployed() if one.name == model), None)
        if entry is None:
            raise UnknownDeployment(f"nothing that generates text is deployed as {model!r}")
        plan = self._agent.plan(model)
        decoder = read_decoder(model, plan)
        # While a name is deployed again, the plan of the model before still serves.
        language = await self._load(replace(entry, model=plan.model_digest))
        sampling = request.sampling.over(replace(language.files.sampling, seed=secrets.randbits(63)))
        check_sampling(sampling)
        prompt = await self._prompt_tokens(language, request, decoder)
        room = decoder.context - len(prompt)
        if room < 1:
            raise ContextExceeded(
                f"the prompt has {len(prompt)} tokens, and {model!r} takes {decoder.context} tokens of prompt and answer "
                "together (--context)"
            )
        stream = TextStream(language.tokenizer.decode, request.stop)
        most = min(request.max_tokens or room, room)
        answer = _GrowingText(request, sampling, prompt, most, stream, began_s, [], [])
        async with self._sequences.take(model, decoder, prompt, WAIT_S) as sequence:
            yield Begun(len(prompt))
            async with aclosing(self._continue(language, decoder, sequence, answer)) as events:
                async for event in events:
                    if isinstance(event, Ended) and event.tokens_per_s:
                        self._sequences.note_speed(model, event.tokens_per_s)
                    yield event

    async def _continue(
        self, language: LanguageModel, decoder: Decoder, sequence: TokenSequence, answer: _GrowingText
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Read the prompt, then choose and read tokens until the answer ends."""
        cached = len(sequence.tokens)
        loop = asyncio.get_running_loop()
        reading = loop.create_task(
            self._sequences.read(sequence, decoder, answer.prompt[cached:], answer.likely)
        )
        untold: list[GeneratedToken] = []
        reason = "length"
        try:
            while True:
                while (token := answer.choose(logits := await reading)) is None:
                    answer.shortfalls += 1
                    reading = loop.create_task(self._sequences.read_again(sequence, decoder))
                answer.told_s.append(time.monotonic())
                if token in language.end_tokens:
                    reason = "stop"
                    break
                answer.generated.append(token)
                if len(answer.generated) < answer.most:
                    reading = loop.create_task(
                        self._sequences.read(sequence, decoder, [token], answer.likely)
                    )
                    await asyncio.wait([reading], timeout=HEAD_START_S)
                untold.append(_told(language, describe_from(logits, token, answer.request.logprobs)))
                if text := answer.stream.push(token):
                    yield Grown(text, tuple(untold))
                    untold = []
                if answer.stream.stopped:
                    reason = "stop"
                    break
                if len(answer.generated) >= answer.most:
                    break
        finally:
            # A client that hung up, or a stop string, leaves a token that nobody needs.
            await _break_off(reading)
        rest = answer.stream.finish()
        if rest or untold:
            yield Grown(rest, tuple(untold))
        yield self._ended(answer, reason, cached, sequence)

    def _ended(self, answer: _GrowingText, reason: str, cached: int, sequence: TokenSequence) -> Ended:
        times = answer.told_s
        gaps = [later - sooner for sooner, later in pairwise(times)]
        lasted_s = times[-1] - times[0]
        return Ended(
            reason=reason,
            prompt_tokens=len(answer.prompt),
            generated_tokens=len(answer.generated),
            cached_tokens=cached,
            first_token_s=times[0] - answer.began_s,
            tokens_per_s=len(gaps) / lasted_s if lasted_s > 0 else 0.0,
            replays=sequence.replays,
            paused_s=max(gaps, default=0.0),
            devices=self._devices(sequence.deployment),
        )

    def _devices(self, deployment: str) -> tuple[str, ...]:
        """The devices of the plan that serves; none if the last one was lost just now, which does not spoil a text."""
        try:
            return tuple(self._agent.plan(deployment).programs)
        except Unavailable:
            return ()

    async def _prompt_tokens(
        self, language: LanguageModel, request: GenerationRequest, decoder: Decoder
    ) -> Sequence[int]:
        """The tokens of the prompt. Raises RequestError if there are none, or they are not the model's."""
        prompt, tokenizer = request.prompt, language.tokenizer
        tokens: Sequence[int]
        if isinstance(prompt, ChatPrompt):
            if language.files.template is None:
                raise RequestError(
                    "this model has no chat template; ask it by /v1/completions, or deploy it again with its "
                    "chat_template.jinja"
                )
            text = await asyncio.to_thread(
                self._templates.render,
                language.files.template,
                prompt,
                now=self._now(),
                bos=language.files.bos,
                eos=language.files.eos,
            )
            # The template writes special tokens itself.
            tokens = await asyncio.to_thread(tokenizer.encode, text, special=False)
        elif isinstance(prompt, str):
            special = language.files.adds_bos is not False
            tokens = await asyncio.to_thread(tokenizer.encode, prompt, special=special)
        else:
            tokens = prompt
        if not tokens:
            raise RequestError("the prompt has no tokens; nothing was generated")
        if wrong := [token for token in tokens if not 0 <= token < decoder.vocabulary]:
            raise RequestError(
                f"token {wrong[0]} of the prompt is none of the model's {decoder.vocabulary}; nothing was generated"
            )
        return tokens

    async def _load(self, entry: Deployment) -> LanguageModel:
        """The model's tokenizer and what its companions say. Several prompts wait for one load."""
        task = self._loaded.pop(entry.model, None)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.get_running_loop().create_task(self._read(entry), name=f"text of {entry.name}")
        self._loaded[entry.model] = task
        while len(self._loaded) > MODELS_KEPT:
            del self._loaded[next(iter(self._loaded))]
        return await asyncio.shield(task)

    async def _read(self, entry: Deployment) -> LanguageModel:
        found = await self._agent.companions(entry)
        if TOKENIZER not in found:
            raise Unavailable(f"the tokenizer of {entry.name!r} is not among the files of its model")
        files = parse_companions(found)
        tokenizer = await asyncio.to_thread(parse_tokenizer, found[TOKENIZER], TOKENIZER)
        names = [name for name in (files.eos,) if name is not None]
        return LanguageModel(files, tokenizer, tokenizer.end_tokens(files.end_tokens, names))


async def _break_off(reading: asyncio.Task[Logits]) -> None:
    """End what reads a token, and wait until it has ended: the sequence may then be used again."""
    reading.cancel()
    await asyncio.wait([reading])
    if not reading.cancelled():
        reading.exception()  # Whoever awaited it has got the error; if nobody did, nobody needs it.


def _told(language: LanguageModel, chosen: ChosenToken) -> GeneratedToken:
    def named(token: int, logprob: float) -> TokenProbability:
        return TokenProbability(token, language.tokenizer.decode([token], special=True), logprob)

    likely = tuple(named(token, logprob) for token, logprob in chosen.likely)
    return GeneratedToken(named(chosen.token, chosen.logprob), likely)
