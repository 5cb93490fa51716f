"""Fuzz targets for OpenAI's clients: the bodies of chats and completions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from edgepart.agent.http.openai_answers import AnswerHead, ChatForm, CompletionForm
from edgepart.agent.http.openai_requests import TextRequest, read_chat, read_completion
from edgepart.agent.text.generation import Begun, ChatPrompt, Ended, Sampling
from edgepart.planner.errors import RequestError
from tests.fuzz.forms import Json
from tests.fuzz.target import Target, expect, plainly

SAMPLING_BODY = {
    "model": "chat",
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": -0.1,
    "seed": -7,
    "max_tokens": 5,
    "stop": ["\n", "END"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "n": 1,
}
CHAT_BODY: dict[str, Any] = SAMPLING_BODY | {
    "messages": [
        {"role": "developer", "content": "Be brief"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "é"}],
            "name": "me",
        },
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "tool_choice": "auto",
    "logprobs": True,
    "top_logprobs": 2,
    "response_format": {"type": "text"},
}
COMPLETION_BODY: dict[str, Any] = SAMPLING_BODY | {"prompt": [5, 6, 7], "logprobs": 3}
TEXT_BODY: dict[str, Any] = {"model": "chat", "prompt": "Once"}


def _written(asked: TextRequest) -> dict[str, Any]:
    """Return the body with which a client asks for just this."""
    generation = asked.generation
    given = {one.name: getattr(generation.sampling, one.name) for one in fields(generation.sampling)}
    body: dict[str, Any] = {
        "model": asked.model,
        "stream": asked.stream,
        "stream_options": {"include_usage": asked.include_usage},
        "max_completion_tokens": generation.max_tokens,
        "stop": list(generation.stop),
        **given,
    }
    if isinstance(generation.prompt, ChatPrompt):
        body |= {"messages": generation.prompt.messages, "tools": generation.prompt.tools}
        if generation.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": generation.logprobs}
        return body
    return body | {"prompt": generation.prompt, "logprobs": generation.logprobs}


def _check(asked: TextRequest, read: Callable[[bytes], TextRequest]) -> None:
    """Check that a request, written again, is read as the same, and that its answer can be written."""
    again = read(json.dumps(_written(asked)).encode())
    expect(again == asked, "the request is another after a round trip")
    sampling = asked.generation.sampling.over(Sampling())
    expect(
        0 <= sampling.top_p <= 1 and sampling.top_k >= 0 and sampling.repetition_penalty > 0, "no sampling"
    )
    expect(0 <= sampling.seed < 2**64, "the seed is no number of 64 bits")
    head = AnswerHead("id", 1, asked.model, "f", asked.include_usage, asked.generation.logprobs is not None)
    form = ChatForm(head) if isinstance(asked.generation.prompt, ChatPrompt) else CompletionForm(head)
    ended = Ended("stop", 1, 0, 0, 0.0, 0.0, 0, 0.0, ())
    json.dumps([form.whole([Begun(1), ended]), *form.chunks(ended)])


def _chat(data: bytes) -> None:
    _check(read_chat(data), read_chat)


def _completion(data: bytes) -> None:
    _check(read_completion(data), read_completion)


TARGETS = (
    Target(
        "OpenAI: chats",
        lambda: [json.dumps(CHAT_BODY).encode()],
        plainly(_chat),
        (RequestError,),
        Json(),
    ),
    Target(
        "OpenAI: completions",
        lambda: [json.dumps(body).encode() for body in (COMPLETION_BODY, TEXT_BODY)],
        plainly(_completion),
        (RequestError,),
        Json(),
    ),
)
