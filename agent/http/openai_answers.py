"""OpenAI answers: the documents that /v1/chat/completions and /v1/completions answer with. Rules: no door.

`edgepart` in the last document of an answer is an extension. Clients of OpenAI's server ignore it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgepart.agent.text.generation import (
    Begun,
    Ended,
    GeneratedToken,
    GenerationEvent,
    Grown,
    TextModel,
    TokenProbability,
)

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""It stands in the text of a token for the bytes of a character that is not complete."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What all documents of one answer have in common."""

    id: str
    created_s: int
    """The time of the request, in seconds since 1970."""
    model: str
    fingerprint: str
    """It changes when the same seed may give another text."""
    include_usage: bool = False
    """Whether the numbers of tokens follow at the end of a stream."""
    logprobs: bool = False
    """Whether the tokens and their probabilities are told."""

    def document(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


class AnswerForm(Protocol):
    """Builds the documents of one answer from its events, which it has to be given in order."""

    def chunks(self, event: GenerationEvent) -> Sequence[Document]:
        """Return the documents that an event adds to a stream."""

    def whole(self, events: Iterable[GenerationEvent]) -> Document:
        """Return the only document of an answer that is not streamed, from all of its events."""


@dataclass
class ChatForm:
    """The documents of a chat."""

    head: AnswerHead

    def chunks(self, event: GenerationEvent) -> Sequence[Document]:
        match event:
            case Begun():
                return [self._chunk({"role": "assistant", "content": "", "refusal": None}, None)]
            case Grown():
                if not event.text and not (self.head.logprobs and event.tokens):
                    return []
                return [self._chunk({"content": event.text}, self._logprobs(event.tokens))]
            case Ended():
                return _endings(self.head, self._chunk({}, None, event.reason), event)

    def whole(self, events: Iterable[GenerationEvent]) -> Document:
        text, tokens, ended = gather_events(events)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self._logprobs(tokens),
            "finish_reason": ended.reason,
        }
        return self.head.document("chat.completion", [choice]) | _figures(ended)

    def _chunk(self, delta: Document, logprobs: Any, reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return _streamed(self.head, "chat.completion.chunk", [choice])

    def _logprobs(self, tokens: Sequence[GeneratedToken]) -> Document | None:
        if not self.head.logprobs:
            return None
        content = [
            _probability(token.chosen) | {"top_logprobs": [_probability(one) for one in token.likely]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}


@dataclass
class CompletionForm:
    """The documents of a text that was continued."""

    head: AnswerHead
    _told: int = field(default=0, init=False)
    """The number of characters of the tokens that were told before."""

    def chunks(self, event: GenerationEvent) -> Sequence[Document]:
        match event:
            case Begun():
                return []
            case Grown():
                if not event.text and not (self.head.logprobs and event.tokens):
                    return []
                return [self._chunk(event.text, self._logprobs(event.tokens))]
            case Ended():
                return _endings(self.head, self._chunk("", None, event.reason), event)

    def whole(self, events: Iterable[GenerationEvent]) -> Document:
        text, tokens, ended = gather_events(events)
        choice = _continued(text, self._logprobs(tokens), ended.reason)
        return self.head.document("text_completion", [choice]) | _figures(ended)

    def _chunk(self, text: str, logprobs: Any, reason: str | None = None) -> dict[str, Any]:
        return _streamed(self.head, "text_completion", [_continued(text, logprobs, reason)])

    def _logprobs(self, tokens: Sequence[GeneratedToken]) -> Document | None:
        if not self.head.logprobs:
            return None
        offsets = []
        for token in tokens:
            offsets.append(self._told)
            self._told += len(token.chosen.text)
        return {
            "tokens": [token.chosen.text for token in tokens],
            "token_logprobs": [token.chosen.logprob for token in tokens],
            "top_logprobs": [{one.text: one.logprob for one in token.likely} for token in tokens],
            "text_offset": offsets,
        }


def gather_events(events: Iterable[GenerationEvent]) -> tuple[str, list[GeneratedToken], Ended]:
    """Return the whole text, its tokens, and the last event. Raises ValueError if the events do not end."""
    texts: list[str] = []
    tokens: list[GeneratedToken] = []
    for event in events:
        match event:
            case Grown():
                texts.append(event.text)
                tokens += event.tokens
            case Ended():
                return "".join(texts), tokens, event
    raise ValueError("the events of an answer have no end")


def model_document(model: TextModel) -> Document:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "edgepart",
        "context": model.context,
    }


def model_list(models: Iterable[TextModel]) -> Document:
    return {"object": "list", "data": [model_document(model) for model in models]}


def _streamed(head: AnswerHead, kind: str, choices: list[Any]) -> dict[str, Any]:
    """Return a chunk. Where the usage follows in a last chunk, all others say that it is null."""
    return head.document(kind, choices) | ({"usage": None} if head.include_usage else {})


def _endings(head: AnswerHead, last: dict[str, Any], ended: Ended) -> Sequence[Document]:
    """Return the last chunks: the one with the reason, and the usage in one of its own if it was asked for."""
    figures = _figures(ended)
    if head.include_usage:
        return [last, head.document(last["object"], []) | figures]
    return [last | {"edgepart": figures["edgepart"]}]


def _continued(text: str, logprobs: Any, reason: str | None) -> Document:
    return {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _figures(ended: Ended) -> dict[str, Any]:
    return {
        "usage": {
            "prompt_tokens": ended.prompt_tokens,
            "completion_tokens": ended.generated_tokens,
            "total_tokens": ended.prompt_tokens + ended.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": ended.cached_tokens},
        },
        "edgepart": {
            "ttft_s": round(ended.first_token_s, 6),
            "tokens_per_s": round(ended.tokens_per_s, 3),
            "replays": ended.replays,
            "paused_s": round(ended.paused_s, 6),
            "devices": list(ended.devices),
        },
    }


def _probability(token: TokenProbability) -> dict[str, Any]:
    """Return a token as chats tell it. `bytes` is null for a part of a character: its bytes are not known here."""
    known = REPLACEMENT not in token.text
    return {
        "token": token.text,
        "logprob": token.logprob,
        "bytes": list(token.text.encode()) if known else None,
    }
