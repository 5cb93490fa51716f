"""OpenAI's own Python package, unmodified, against our server."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from edgepart.agent.text.generation import ChatPrompt
from edgepart.planner.errors import ContextExceeded, RequestError, Unavailable
from tests.agent.http.conftest import CREDENTIAL, Served
from tests.agent.http.fake_text import TEXT, WORDS, FakeText
from tests.agent.http.test_http import _event, wait


@pytest.fixture
def client(talking: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{talking.url}/v1", api_key="none", max_retries=0, timeout=20) as made:
        yield made


def test_a_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "Hello"}])
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.message.content == TEXT
    assert choice.finish_reason == "stop" and choice.logprobs is None
    assert answer.object == "chat.completion" and answer.model == "chat"
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        5,
        7,
        12,
    )
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    assert answer.model_extra is not None and answer.model_extra["edgepart"]["tokens_per_s"] == 12.5


def test_a_streamed_chat_with_its_usage(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="chat",
            messages=[{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(one.choices[0].delta.content or "" for one in chunks[:-1]) == TEXT
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 7
    assert all(one.usage is None for one in chunks[:-1])


def test_stop_limits_and_sampling_arrive(client: OpenAI, text: FakeText) -> None:
    answer = client.chat.completions.create(
        model="chat",
        messages=[{"role": "user", "content": "Hello"}],
        stop=[" time"],
        max_completion_tokens=6,
        seed=42,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2},
    )
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Once upon a", "stop")
    sampling = text.requests[0].sampling
    assert (sampling.seed, sampling.temperature, sampling.top_p) == (42, 0.5, 0.9)
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (5, 0.1, 1.2)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    short = client.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": "Hello"}], max_tokens=2
    )
    assert (short.choices[0].message.content, short.choices[0].finish_reason) == ("Once upon", "length")


def test_probabilities_of_a_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": "Hello"}], logprobs=True, top_logprobs=2
    )
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.content is not None
    tokens = answer.choices[0].logprobs.content
    assert [one.token for one in tokens] == list(WORDS)
    assert tokens[1].logprob == -0.25 and tokens[1].bytes == list(b" upon") and tokens[4].bytes is None
    assert [one.token for one in tokens[0].top_logprobs] == ["other0", "other1"]


def test_completions(client: OpenAI, text: FakeText) -> None:
    answer = client.completions.create(model="chat", prompt="Once", logprobs=1, max_tokens=2)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == ("Once upon", "length")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["Once", " upon"] and choice.logprobs.text_offset == [0, 4]
    assert choice.logprobs.top_logprobs == [{"other0": -2.0}, {"other0": -2.0}]
    chunks = list(client.completions.create(model="chat", prompt=[1, 2, 3], stream=True))
    assert "".join(one.choices[0].text for one in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert [request.prompt for request in text.requests] == ["Once", (1, 2, 3)]


def test_tools_and_parts_arrive(client: OpenAI, text: FakeText) -> None:
    client.chat.completions.create(
        model="chat",
        messages=[
            {"role": "developer", "content": "Be brief"},
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        ],
        tools=[{"type": "function", "function": {"name": "clock", "parameters": {}}}],
        tool_choice="auto",
        response_format={"type": "text"},
        n=1,
        user="me",
        store=False,
    )
    prompt = text.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert [message["role"] for message in prompt.messages] == ["system", "user"]
    assert prompt.messages[1]["content"] == "Hello" and prompt.tools[0]["function"]["name"] == "clock"


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["chat", "small"]
    assert client.models.retrieve("small").owned_by == "edgepart"
    with pytest.raises(openai.NotFoundError, match="generates text"):
        client.models.retrieve("none")


def ask(client: OpenAI, model: str = "chat", **options: float) -> None:
    client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hello"}], extra_body=options
    )


def test_errors_are_the_classes_of_the_package(client: OpenAI, text: FakeText) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        ask(client, "none")
    assert missing.value.code == "model_not_found" and missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as bad:
        ask(client, temperature=5)
    assert bad.value.param == "temperature" and bad.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="`n`"):
        ask(client, n=2)
    text.failure = ContextExceeded("300 tokens do not fit the context of 256")
    with pytest.raises(openai.BadRequestError) as long:
        ask(client)
    assert long.value.code == "context_length_exceeded"
    text.failure = RequestError("the template refuses two messages of one role")
    with pytest.raises(openai.BadRequestError, match="two messages"):
        ask(client)
    text.failure = Unavailable("no room for another answer", 7)
    with pytest.raises(openai.InternalServerError) as busy:
        ask(client)
    assert busy.value.status_code == 503 and busy.value.response.headers["retry-after"] == "7"


def test_an_error_in_the_middle_of_a_stream_is_raised(client: OpenAI, text: FakeText) -> None:
    text.failure, text.whole_until = Unavailable("all devices are lost"), 2
    found = []
    with pytest.raises(openai.APIError, match="all devices are lost"):
        for chunk in client.completions.create(model="chat", prompt="Once", stream=True):
            found.append(chunk.choices[0].text)
    assert found == ["Once", " upon"]


def test_closing_a_stream_ends_the_work(client: OpenAI, talking: Served, text: FakeText) -> None:
    text.gate, text.whole_until = talking.on_loop(_event), 2
    stream = client.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": "Hello"}], stream=True
    )
    assert next(stream).choices[0].delta.role == "assistant" and text.closed == 0
    stream.close()
    wait(talking, lambda: text.closed == 1)


def test_from_elsewhere_the_key_is_the_credential(talking: Served) -> None:
    foreign = {"X-Forwarded-For": "192.0.2.7"}
    for key, good in ((CREDENTIAL, True), ("none", False)):
        with OpenAI(
            base_url=f"{talking.url}/v1", api_key=key, max_retries=0, default_headers=foreign
        ) as client:
            if good:
                assert len(client.models.list().data) == 2
            else:
                with pytest.raises(openai.AuthenticationError, match="not this cluster's"):
                    client.models.list()


def test_an_agent_without_text_is_not_asked_again(served: Served) -> None:
    with (
        OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=5) as client,
        pytest.raises(openai.InternalServerError, match="edgepart\\[text\\]") as missing,
    ):
        client.models.list()
    assert missing.value.response.request.headers["x-stainless-retry-count"] == "0"
