"""Generation: what a client asks of a language model, and what it is told while the text grows. Facts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

Message = Mapping[str, Any]
"""A message of a chat as clients send it: "role", "content", and whatever else the template of the model reads."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The messages of a chat, which the model's template turns into text."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """Descriptions of tools, which are given to the template as they are."""


Prompt = ChatPrompt | str | tuple[int, ...]
"""What the text is to continue: a chat, a text, or token ids."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. The defaults change nothing: the distribution is the model's own."""

    temperature: float = 1.0
    """The logits are divided by it. 0 takes the most likely token."""
    top_k: int = 0
    """Only this many of the most likely tokens are chosen from; 0 sets no limit."""
    top_p: float = 1.0
    """Only the most likely tokens that together have this probability are chosen from."""
    min_p: float = 0.0
    """Tokens less likely than this share of the most likely one are never chosen."""
    repetition_penalty: float = 1.0
    """Positive logits of tokens that occurred before, in the prompt too, are divided by it, and negative ones
    multiplied."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that were generated before."""
    frequency_penalty: float = 0.0
    """Subtracted from the logits of generated tokens, once for each time."""
    seed: int = 0
    """With the number of the token it fixes the random number by which the token is chosen, so that a repeated step
    chooses the same."""


@dataclass(frozen=True, slots=True)
class GivenSampling:
    """The fields of Sampling that a client gave. None stands for a field that it left to the model; for the seed, for one
    that is drawn."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None

    def over(self, defaults: Sampling) -> Sampling:
        """Return the defaults, with what was given in their place.

        >>> GivenSampling(top_k=5).over(Sampling(temperature=0.7, top_k=50)).top_k
        5
        """
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(defaults, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a client asks of a language model."""

    prompt: Prompt
    sampling: GivenSampling = GivenSampling()
    max_tokens: int | None = None
    """The most tokens that are generated; None allows as many as the context has room for."""
    stop: tuple[str, ...] = ()
    """Texts at which generation ends; they are not part of the answer."""
    logprobs: int | None = None
    """The number of most likely tokens that are told with each token; None tells no probabilities."""


@dataclass(frozen=True, slots=True)
class TokenProbability:
    """A token and its probability, as its natural logarithm, by the model's own distribution (without any sampling
    option)."""

    token: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """A token that was generated, with the most likely tokens of its place; () if they were not asked for."""

    chosen: TokenProbability
    likely: tuple[TokenProbability, ...] = ()


@dataclass(frozen=True, slots=True)
class Begun:
    """The prompt fits, and its tokens are being read. Always the first event."""

    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Grown:
    """More text. Text that may be the begin of a stop text, or of a character, is held back, so that some tokens bring no
    text at once; such tokens come with the next event."""

    text: str
    tokens: tuple[GeneratedToken, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The text is complete. Always the last event."""

    reason: str
    """"stop": the model ended it, or a stop text came. "length": `max_tokens` or the end of the context was reached."""
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int
    """Tokens of the prompt that did not have to be read again, because an earlier request had begun with them."""
    first_token_s: float
    """Seconds from the request to its first token."""
    tokens_per_s: float
    """Tokens per second after the first one; 0 if there was only one."""
    replays: int
    """How often tokens had to be read again because a device was lost."""
    paused_s: float
    """The longest time between two tokens, in seconds; 0 if there was only one."""
    devices: tuple[str, ...]
    """Names of the devices that compute the model."""


GenerationEvent = Begun | Grown | Ended


@dataclass(frozen=True, slots=True)
class TextModel:
    """A deployment that generates text."""

    name: str
    context: int
    """The most tokens of a prompt and its answer together."""
    created_s: int
    """The time at which it was deployed here, in seconds since 1970."""


class TextService(Protocol):
    """Generates text; the HTTP routes ask it. Called in the event loop."""

    def models(self) -> Sequence[TextModel]: ...

    def generate(self, model: str, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """The events of one answer. The first one comes once the prompt was accepted. Closing the generator ends the work.

        Raises UnknownDeployment; ContextExceeded if the prompt is too long; RequestError if it cannot be used otherwise, as
        the template refuses it; Unavailable if there is no room for it now."""
