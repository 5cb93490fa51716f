"""Conversation: what was said to a language model, and the answer that is coming. Rules: no door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgepart.planner.figures import format_figure, format_seconds


@dataclass
class ChatReply:
    """An answer, as far as it has come."""

    text: str = ""
    reason: str = ""
    """Why it ended; "" if it was stopped."""
    usage: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)

    def take(self, document: Mapping[str, Any]) -> str:
        """Takes a document of the stream, and returns the text that it brings."""
        self.usage = document.get("usage") or self.usage
        self.figures = document.get("edgepart") or self.figures
        part = ""
        for choice in document.get("choices", ()):
            part += choice.get("delta", {}).get("content") or ""
            self.reason = choice.get("finish_reason") or self.reason
        self.text += part
        return part

    def document(self) -> dict[str, Any]:
        """The document that --json prints."""
        return {"text": self.text, "reason": self.reason, "usage": self.usage, **self.figures}

    def stats(self) -> str:
        """The figures, as a sentence for people."""
        if not self.figures:
            return "the answer was stopped before its figures came"
        first_s, pause_s = (
            format_seconds(float(self.figures.get(key) or 0)) for key in ("ttft_s", "paused_s")
        )
        speed = format_figure(float(self.figures.get("tokens_per_s") or 0))
        cached = (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return (
            f"{self.usage.get('completion_tokens', 0)} tokens at {speed} tokens/s; "
            f"the first after {first_s}, the longest pause {pause_s}\n"
            f"{self.usage.get('prompt_tokens', 0)} tokens of prompt, {cached} of which were known; "
            f"{self.figures.get('replays', 0)} replays after losses\n"
            f"computed by {', '.join(map(str, self.figures.get('devices', ())))}"
        )


Messages = str | Sequence[Mapping[str, Any]]
"""What a model is asked: one message of a user, or the messages of a chat as OpenAI's API has them."""


def chat_body(model: str, messages: Messages, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The request for an answer. `fields` are those of OpenAI's API."""
    said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    return {"model": model, "messages": said, "stream_options": {"include_usage": True}, **fields}


@dataclass
class Conversation:
    """What was said, and how answers are asked for."""

    model: str
    system: str | None
    options: Mapping[str, Any]
    """Fields of each request."""
    said: list[dict[str, str]] = field(default_factory=list)

    def body(self, message: str) -> dict[str, Any]:
        """The request that asks for an answer to `message`."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*first, *self.said, {"role": "user", "content": message}]
        return chat_body(self.model, messages, self.options)

    def keep(self, message: str, answer: str) -> None:
        """Remembers a message and its answer. A message without an answer is forgotten, so that it can be sent again."""
        if answer:
            self.said += [{"role": "user", "content": message}, {"role": "assistant", "content": answer}]
