"""The documents of OpenAI's routes, streamed and whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from edgepart.agent.gateway.limits import TooLarge
from edgepart.agent.gateway.rate_limit import Throttled
from edgepart.agent.http.openai_answers import AnswerHead, ChatForm, CompletionForm, model_list
from edgepart.agent.http.openai_errors import openai_error_document
from edgepart.agent.http.openai_fields import FieldError
from edgepart.agent.text.generation import (
    Begun,
    Ended,
    GeneratedToken,
    GenerationEvent,
    Grown,
    TextModel,
    TokenProbability,
)
from edgepart.planner.errors import (
    ContextExceeded,
    InternalError,
    NotAuthorised,
    RequestError,
    Unavailable,
    UnknownDeployment,
)


def token(text: str, logprob: float, *likely: tuple[str, float]) -> GeneratedToken:
    others = tuple(TokenProbability(n, text, logprob) for n, (text, logprob) in enumerate(likely))
    return GeneratedToken(TokenProbability(9, text, logprob), others)


EVENTS: list[GenerationEvent] = [
    Begun(5),
    Grown("Hé", (token("H", -0.5, ("H", -0.5), ("h", -1.5)), token("é", -0.25))),
    Grown("", (token("\N{REPLACEMENT CHARACTER}", -1.0),)),
    Grown("\N{CROISSANT}", (token("\N{REPLACEMENT CHARACTER}", -2.0),)),
    Ended("stop", 5, 4, 2, 0.125, 8.0, 1, 0.5, ("pi-a", "pi-b")),
]
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 4,
    "total_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 2},
}
OWN = {"ttft_s": 0.125, "tokens_per_s": 8.0, "replays": 1, "paused_s": 0.5, "devices": ["pi-a", "pi-b"]}


def head(**also: bool) -> AnswerHead:
    return AnswerHead("chatcmpl-1", 1_700_000_000, "chat", "edgepart-0.0", **also)


def common(kind: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": kind,
        "created": 1_700_000_000,
        "model": "chat",
        "system_fingerprint": "edgepart-0.0",
    }


def streamed(form: ChatForm | CompletionForm) -> list[Any]:
    return [document for event in EVENTS for document in form.chunks(event)]


def test_a_whole_chat() -> None:
    assert ChatForm(head()).whole(EVENTS) == common("chat.completion") | {
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hé\N{CROISSANT}", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
        "edgepart": OWN,
    }


def test_a_streamed_chat() -> None:
    found = streamed(ChatForm(head()))
    deltas = [document["choices"][0]["delta"] for document in found]
    assert deltas == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "Hé"},
        {"content": "\N{CROISSANT}"},
        {},
    ]
    assert [document["choices"][0]["finish_reason"] for document in found] == [None, None, None, "stop"]
    assert found[-1]["edgepart"] == OWN and all("usage" not in document for document in found)
    assert {**found[1], "choices": None} == common("chat.completion.chunk") | {"choices": None}


def test_usage_follows_in_a_chunk_of_its_own() -> None:
    for form in (ChatForm(head(include_usage=True)), CompletionForm(head(include_usage=True))):
        *others, last = streamed(form)
        assert last["choices"] == [] and last["usage"] == USAGE and last["edgepart"] == OWN
        assert all(document["usage"] is None and "edgepart" not in document for document in others)
        assert others[-1]["choices"][0]["finish_reason"] == "stop"


def test_probabilities_of_a_chat() -> None:
    expected = [
        {
            "token": "H",
            "logprob": -0.5,
            "bytes": [72],
            "top_logprobs": [
                {"token": "H", "logprob": -0.5, "bytes": [72]},
                {"token": "h", "logprob": -1.5, "bytes": [104]},
            ],
        },
        {"token": "é", "logprob": -0.25, "bytes": [195, 169], "top_logprobs": []},
        {"token": "\N{REPLACEMENT CHARACTER}", "logprob": -1.0, "bytes": None, "top_logprobs": []},
        {"token": "\N{REPLACEMENT CHARACTER}", "logprob": -2.0, "bytes": None, "top_logprobs": []},
    ]
    whole = ChatForm(head(logprobs=True)).whole(EVENTS)
    assert whole["choices"][0]["logprobs"] == {"content": expected, "refusal": None}
    told = [document["choices"][0]["logprobs"] for document in streamed(ChatForm(head(logprobs=True)))]
    assert [one for part in told if part for one in part["content"]] == expected
    assert [len(part["content"]) for part in told if part] == [2, 1, 1]


def test_a_completion_whole_and_streamed() -> None:
    whole = CompletionForm(head(logprobs=True)).whole(EVENTS)
    assert whole["object"] == "text_completion" and whole["usage"] == USAGE and whole["edgepart"] == OWN
    (choice,) = whole["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Hé\N{CROISSANT}", "stop")
    assert choice["logprobs"] == {
        "tokens": ["H", "é", "\N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}"],
        "token_logprobs": [-0.5, -0.25, -1.0, -2.0],
        "top_logprobs": [{"H": -0.5, "h": -1.5}, {}, {}, {}],
        "text_offset": [0, 1, 2, 3],
    }
    found = streamed(CompletionForm(head(logprobs=True)))
    assert [document["choices"][0]["text"] for document in found] == ["Hé", "", "\N{CROISSANT}", ""]
    offsets = [document["choices"][0]["logprobs"] for document in found[:-1]]
    assert [part["text_offset"] for part in offsets] == [[0, 1], [2], [3]]
    assert [document["choices"][0]["text"] for document in streamed(CompletionForm(head()))] == [
        "Hé",
        "\N{CROISSANT}",
        "",
    ]


def test_events_without_an_end_are_no_answer() -> None:
    with pytest.raises(ValueError, match="no end"):
        ChatForm(head()).whole(EVENTS[:-1])


def test_the_list_of_models() -> None:
    model = {"id": "chat", "object": "model", "created": 7, "owned_by": "edgepart", "context": 256}
    assert model_list([TextModel("chat", 256, 7)]) == {"object": "list", "data": [model]}


@pytest.mark.parametrize(
    ("error", "kind", "param", "code"),
    [
        (UnknownDeployment("none"), "invalid_request_error", "model", "model_not_found"),
        (ContextExceeded("too long"), "invalid_request_error", None, "context_length_exceeded"),
        (FieldError("stop", "bad"), "invalid_request_error", "stop", "invalid_value"),
        (RequestError("the template refuses"), "invalid_request_error", None, None),
        (TooLarge("too large"), "invalid_request_error", None, "request_too_large"),
        (NotAuthorised("who"), "invalid_request_error", None, "invalid_api_key"),
        (Throttled("slowly"), "rate_limit_error", None, "rate_limit_exceeded"),
        (Unavailable("no room"), "server_error", None, "unavailable"),
        (InternalError("a rule"), "server_error", None, None),
        (web.HTTPNotFound, "invalid_request_error", None, "unknown_url"),
    ],
)
def test_errors(error: Any, kind: str, param: str | None, code: str | None) -> None:
    async def describe() -> Any:
        return openai_error_document(error() if isinstance(error, type) else error)["error"]

    found = asyncio.run(describe())
    assert (found["type"], found["param"], found["code"]) == (kind, param, code)
    assert found["message"]


def test_an_unexpected_error_stays_in_the_log() -> None:
    found = openai_error_document(ZeroDivisionError("secret"))["error"]
    assert "secret" not in found["message"] and found["type"] == "server_error"
