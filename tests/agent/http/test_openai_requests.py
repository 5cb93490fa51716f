"""Bodies of OpenAI's clients: what good ones ask for, and that bad ones are refused with the name of the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepart.agent.http.json_bodies import MAX_JSON_BYTES, MAX_JSON_ITEMS, MAX_JSON_LISTS
from edgepart.agent.http.openai_fields import FieldError
from edgepart.agent.http.openai_requests import HARMLESS, TextRequest, read_chat, read_completion
from edgepart.agent.text.generation import ChatPrompt, GenerationRequest, GivenSampling, Sampling
from edgepart.planner.errors import RequestError

HELLO = [{"role": "user", "content": "Hello"}]
CHAT = {"model": "chat", "messages": HELLO}
COMPLETION = {"model": "chat", "prompt": "Once"}


def chat(**fields: Any) -> TextRequest:
    return read_chat(json.dumps(CHAT | fields).encode())


def completion(**fields: Any) -> TextRequest:
    return read_completion(json.dumps(COMPLETION | fields).encode())


def test_what_is_not_given_is_left_to_the_model() -> None:
    expected = GenerationRequest(ChatPrompt(({"role": "user", "content": "Hello"},)))
    assert chat() == TextRequest("chat", expected)
    nothing = dict.fromkeys(("temperature", "stop", "seed", "n", "stream", "logprobs", "tools", "logit_bias"))
    assert chat(**nothing) == chat()
    assert completion() == TextRequest("chat", GenerationRequest("Once"))
    assert chat().generation.sampling.over(Sampling(temperature=0.6, top_k=40)) == Sampling(0.6, 40)


def test_all_that_can_be_given() -> None:
    found = chat(
        temperature=0,
        top_p=0.9,
        top_k=-1,
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=-2,
        frequency_penalty=2,
        seed=-1,
        max_completion_tokens=7,
        stop="\n",
        stream=True,
        stream_options={"include_usage": True},
    )
    assert found.generation.sampling == GivenSampling(0, 0, 0.9, 0.05, 1.1, -2, 2, 2**64 - 1)
    assert found.generation.max_tokens == 7 and found.generation.stop == ("\n",)
    assert found.stream and found.include_usage
    defaults = Sampling(temperature=0.6, top_k=40)
    assert found.generation.sampling.over(defaults).temperature == 0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 3}, 3), ({"logprobs": False}, None)],
)  # fmt: skip
def test_probabilities_of_chats(fields: dict[str, Any], expected: int | None) -> None:
    assert chat(**fields).generation.logprobs == expected


def test_probabilities_of_completions() -> None:
    assert completion(logprobs=0).generation.logprobs == 0
    assert completion(logprobs=5).generation.logprobs == 5


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"role": "system", "content": "Be brief"}, {"role": "system", "content": "Be brief"}),
        ({"role": "developer", "content": "Be brief"}, {"role": "system", "content": "Be brief"}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "a\nb"},
        ),
        ({"role": "user", "content": "", "name": None}, {"role": "user", "content": ""}),
        (
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
        ),
        (
            {"role": "tool", "content": "3", "tool_call_id": "1"},
            {"role": "tool", "content": "3", "tool_call_id": "1"},
        ),
    ],
)
def test_messages(given: dict[str, Any], expected: dict[str, Any]) -> None:
    prompt = chat(messages=[given]).generation.prompt
    assert isinstance(prompt, ChatPrompt) and prompt.messages == (expected,)


def test_tools_go_to_the_template_unless_none_may_be_used() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    asked = chat(tools=tools, tool_choice="auto").generation.prompt
    assert isinstance(asked, ChatPrompt) and asked.tools == tuple(tools)
    spared = chat(tools=tools, tool_choice="none").generation.prompt
    assert isinstance(spared, ChatPrompt) and spared.tools == ()


@pytest.mark.parametrize(
    ("given", "expected"),
    [("a", "a"), ("", ""), (["a"], "a"), ([1, 2], (1, 2)), ([[3]], (3,))],
)
def test_prompts(given: Any, expected: Any) -> None:
    assert completion(prompt=given).generation.prompt == expected


def test_what_changes_no_answer_is_ignored() -> None:
    harmless = {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "what": [1]}
    assert chat(**harmless) == chat()
    for name, values in HARMLESS.items():
        for value in values:
            assert chat(**{name: value}) == chat(), name


BAD: dict[str, tuple[Any, ...]] = {
    "model": (None, "", 5, ["chat"]),
    "temperature": (-0.1, 2.1, "0.5", True, [1]),
    "top_p": (-1, 1.5, "1", {}),
    "top_k": (-2, 1.5, "1", True),
    "min_p": (-1, 2, []),
    "repetition_penalty": (0, -1, "x"),
    "presence_penalty": (3, "0"),
    "frequency_penalty": (-3, False),
    "seed": (1.5, "1", 2**65, True),
    "max_tokens": (0, -1, 1.5, "5", True, 2**40),
    "max_completion_tokens": (0, "5"),
    "stop": (0, False, "", [""], [5], {}, ["x"] * 17, "x" * 2000),
    "stream": (1, "true", []),
    "stream_options": ([], "x", True),
    "n": (2, 0, "1", True, 1.0),
    "logit_bias": ({"5": 1}, []),
    "response_format": ({"type": "json_object"}, "text"),
    "audio": ({"voice": "x"}, True),
    "functions": ([{"name": "f"}],),
    "function_call": ({"name": "f"},),
    "tool_choice": ("required", {"type": "function"}),
    "modalities": (["audio"], "text"),
    "web_search_options": ({},),
}
BAD_CHAT: dict[str, tuple[Any, ...]] = {
    "messages": (None, [], "Hello", {}),
    "logprobs": (1, "true"),
    "top_logprobs": (-1, 21, "3", True, 3),
    "tools": ({}, "f", 5),
    "tools[0]": ([5],),
    "messages[0]": (["Hello"], [None]),
    "messages[0].role": ([{"content": "x"}], [{"role": "king", "content": "x"}], [{"role": ["user"], "content": "x"}]),
    "messages[1].content": ([*HELLO, {"role": "assistant"}], [*HELLO, {"role": "user", "content": 5}]),
    "messages[0].content[0]": ([{"role": "user", "content": ["x"]}],),
    "messages[0].content[0].type": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
        [{"role": "user", "content": [{"text": "x"}]}],
    ),
    "messages[0].content[0].text": ([{"role": "user", "content": [{"type": "text"}]}],),
    "messages[0].name": ([{"role": "user", "content": "x", "name": 5}],),
    "messages[0].tool_calls": ([{"role": "assistant", "content": "x", "tool_calls": "f"}],),
    "messages[0].tool_call_id": ([{"role": "tool", "content": "x", "tool_call_id": 1}],),
    "stream_options.include_usage": ({"include_usage": "yes"},),
}  # fmt: skip
BAD_COMPLETION: dict[str, tuple[Any, ...]] = {
    "prompt": (None, [], 5, {}, ["a", "b"], [[1], [2]], [-1], [1.5], [True], [2**40], ["a", 1]),
    "logprobs": (True, -1, 21, "1"),
    "echo": (True,),
    "best_of": (2,),
    "suffix": ("x",),
}


def cases(table: dict[str, tuple[Any, ...]]) -> list[tuple[str, Any]]:
    return [(field, value) for field, values in table.items() for value in values]


@pytest.mark.parametrize(("field", "value"), cases(BAD | BAD_CHAT))
def test_bad_fields_of_chats_are_named(field: str, value: Any) -> None:
    with pytest.raises(FieldError) as refused:
        chat(**{field.partition("[")[0].partition(".")[0]: value})
    assert refused.value.field == field and str(refused.value).startswith(f"`{field}`: ")


@pytest.mark.parametrize(("field", "value"), cases(BAD | BAD_COMPLETION))
def test_bad_fields_of_completions_are_named(field: str, value: Any) -> None:
    with pytest.raises(FieldError) as refused:
        completion(**{field: value})
    assert refused.value.field == field and str(refused.value).startswith(f"`{field}`: ")


def test_two_limits_of_tokens_have_to_agree() -> None:
    assert chat(max_tokens=3, max_completion_tokens=3).generation.max_tokens == 3
    with pytest.raises(FieldError, match="one of them"):
        chat(max_tokens=3, max_completion_tokens=4)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"[]", "expected a JSON object, found list"),
        (b"5", "expected a JSON object, found int"),
        (b'{"messages": NaN}', "no JSON"),
        (b"[" * 2000, "no JSON"),
        (b" " * (MAX_JSON_BYTES + 1), "shorter prompt"),
        (b"[" * (MAX_JSON_LISTS + 1), "shorter prompt"),
        (b"," * (MAX_JSON_ITEMS + 1), "shorter prompt"),
        ('{"model": "\ud800"}'.encode("utf-8", "surrogatepass"), "no JSON"),
    ],
)
def test_what_is_no_object_of_a_fair_size_is_refused(body: bytes, words: str) -> None:
    for read in (read_chat, read_completion):
        with pytest.raises(RequestError, match=words):
            read(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({field for field in BAD | BAD_CHAT | BAD_COMPLETION if field.isidentifier()})
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "tool"]) | JSON,
        "content": JSON | st.just([{"type": "text", "text": "x"}]),
        "tool_calls": JSON,
    },
)


@given(st.sampled_from(FIELDS), JSON | st.lists(MESSAGE, max_size=2))
def test_any_value_of_a_field_is_accepted_or_refused_by_its_name(field: str, value: Any) -> None:
    for base, read in ((CHAT, read_chat), (COMPLETION, read_completion)):
        try:
            found = read(json.dumps(base | {field: value}).encode())
        except FieldError as error:
            assert error.field.startswith(field)
        except RequestError as error:
            assert "no JSON" in str(error)  # orjson refuses numbers beyond those of a double.
        else:
            assert found.model and (found.generation.sampling.seed or 0) >= 0
            assert isinstance(found.generation.prompt, ChatPrompt) is (read is read_chat)
