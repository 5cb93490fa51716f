"""OpenAI requests: reads the bodies of /v1/chat/completions and /v1/completions. Rules: no door.

What a client does not give stays open for the model's own defaults. A field that would change the answer and that this
server does not have is refused, and not ignored; fields that leave the answer as it is (user, metadata, store) are ignored,
and so are unknown ones, because programs send many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgepart.agent.http.json_bodies import read_object
from edgepart.agent.http.openai_fields import FieldError, Fields, is_count, shown
from edgepart.agent.text.generation import ChatPrompt, GenerationRequest, GivenSampling, Message, Prompt

ROLES = ("system", "developer", "user", "assistant", "tool")
MOST_STOPS = 16
"""The most stop texts. OpenAI's server takes four."""
MOST_STOP_CHARACTERS = 1024
MOST_LIKELY = 20
"""The most likely tokens that are told with each token, as OpenAI's server has it."""
MOST_TOKENS = 2**31 - 1
MOST_TOKEN_ID = 2**31 - 1
SEED_BITS = 64

HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "modalities": (["text"], []),
    "audio": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "tool_choice": ("none", "auto"),
    "web_search_options": (),
}
"""Fields that this server does not have, with the values that ask for nothing."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A request that has been read."""

    model: str
    generation: GenerationRequest
    stream: bool = False
    """Whether the answer is sent as it grows."""
    include_usage: bool = False
    """Whether the numbers of tokens follow at the end of a stream."""


def read_chat(body: bytes | bytearray | memoryview) -> TextRequest:
    """Read the body of POST /v1/chat/completions. Raises RequestError."""
    fields = _body(body)
    messages = _messages(fields.get("messages"))
    tools = () if fields.get("tool_choice") == "none" else _tools(fields.get("tools"))
    likely = fields.count("top_logprobs", 0, MOST_LIKELY)
    if not fields.flag("logprobs"):
        if likely:
            fields.refuse("top_logprobs", "it needs `logprobs`: true")
        likely = None
    elif likely is None:
        likely = 0
    return _request(fields, ChatPrompt(messages, tools), likely)


def read_completion(body: bytes | bytearray | memoryview) -> TextRequest:
    """Read the body of POST /v1/completions. Raises RequestError."""
    fields = _body(body)
    prompt = _prompt(fields.get("prompt"))
    return _request(fields, prompt, fields.count("logprobs", 0, MOST_LIKELY))


def _body(body: bytes | bytearray | memoryview) -> Fields:
    fields = Fields(read_object(memoryview(body), "send a shorter prompt"))
    for name, harmless in HARMLESS.items():
        value = fields.get(name)
        if value is not None and not any(type(value) is type(one) and value == one for one in harmless):
            allowed = "".join(f", or give {_quoted(one)}" for one in harmless)
            fields.refuse(name, f"this server does not support it; leave it out{allowed}")
    return fields


def _quoted(value: Any) -> str:
    return shown(value) if not isinstance(value, dict | list) else str(value).replace("'", '"')


def _request(fields: Fields, prompt: Prompt, likely: int | None) -> TextRequest:
    model = fields.text("model")
    if not model:
        fields.refuse("model", "give the name of a deployment; GET /v1/models lists them")
    most = fields.count("max_tokens", 1, MOST_TOKENS)
    newer = fields.count("max_completion_tokens", 1, MOST_TOKENS)
    if most is not None and newer is not None and most != newer:
        fields.refuse("max_tokens", f"it is {most}, and `max_completion_tokens` is {newer}; give one of them")
    generation = GenerationRequest(
        prompt=prompt,
        sampling=_sampling(fields),
        max_tokens=most if newer is None else newer,
        stop=_stops(fields),
        logprobs=likely,
    )
    stream, options = fields.flag("stream"), fields.inner("stream_options")
    return TextRequest(model, generation, stream, options.flag("include_usage") and stream)


def _sampling(fields: Fields) -> GivenSampling:
    """A seed may be negative; it stands for the whole number with the same bits. -1 as top_k sets no limit, as 0 does."""
    top_k = fields.count("top_k", -1, MOST_TOKENS)
    seed = fields.count("seed", -(2 ** (SEED_BITS - 1)), 2**SEED_BITS - 1)
    return GivenSampling(
        temperature=fields.number("temperature", 0, 2),
        top_k=None if top_k is None else max(top_k, 0),
        top_p=fields.number("top_p", 0, 1),
        min_p=fields.number("min_p", 0, 1),
        repetition_penalty=fields.number("repetition_penalty", 0.01, 100),
        presence_penalty=fields.number("presence_penalty", -2, 2),
        frequency_penalty=fields.number("frequency_penalty", -2, 2),
        seed=None if seed is None else seed % 2**SEED_BITS,
    )


def _stops(fields: Fields) -> tuple[str, ...]:
    given = fields.get("stop")
    stops = [] if given is None else [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or len(stops) > MOST_STOPS:
        fields.refuse("stop", f"give a text or a list of at most {MOST_STOPS} texts")
    for stop in stops:
        if not isinstance(stop, str) or not 0 < len(stop) <= MOST_STOP_CHARACTERS:
            fields.refuse("stop", f"give texts of 1 to {MOST_STOP_CHARACTERS} characters, not {shown(stop)}")
    return tuple(stops)


def _messages(given: Any) -> tuple[Message, ...]:
    if not isinstance(given, list) or not given:
        raise FieldError("messages", "give a list of at least one message")
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(given))


def _message(given: Any, where: str) -> Message:
    """Return a message as templates take it: `content` is always a text, and a developer's message is a system's, which is
    the role's name in the templates of models. All else stays as it is."""
    if not isinstance(given, dict):
        raise FieldError(where, f"give a message with `role` and `content`, not {shown(given)}")
    fields = Fields(given, where)
    role = fields.get("role")
    if role not in ROLES:
        fields.refuse("role", f"give one of {', '.join(ROLES)}, not {shown(role)}")
    fields.text("name")
    fields.text("tool_call_id")
    calls = fields.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        fields.refuse("tool_calls", "give a list of objects")
    message = {name: value for name, value in given.items() if value is not None}
    content = _content(fields, may_lack=role == "assistant" and bool(calls))
    return message | {"role": "system" if role == "developer" else role, "content": content}


def _content(fields: Fields, *, may_lack: bool) -> str:
    content = fields.get("content")
    if content is None and may_lack:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        fields.refuse("content", f"give a text or a list of text parts, not {shown(content)}")
    texts = []
    for index, part in enumerate(content):
        where = f"{fields.path('content')}[{index}]"
        if not isinstance(part, dict):
            raise FieldError(where, f'give {{"type": "text", "text": ...}}, not {shown(part)}')
        if part.get("type") != "text":
            raise FieldError(f"{where}.type", f'only "text" can be read here, not {shown(part.get("type"))}')
        text = part.get("text")
        if not isinstance(text, str):
            raise FieldError(f"{where}.text", f"give a text, not {shown(text)}")
        texts.append(text)
    return "\n".join(texts)


def _tools(given: Any) -> tuple[Mapping[str, Any], ...]:
    if given is not None and not isinstance(given, list):
        raise FieldError("tools", f"give a list of objects, not {shown(given)}")
    for index, tool in enumerate(given or ()):
        if not isinstance(tool, dict):
            raise FieldError(f"tools[{index}]", f"give an object, not {shown(tool)}")
    return tuple(given or ())


def _prompt(given: Any) -> str | tuple[int, ...]:
    """Return the prompt. A list of one prompt, be it a text or token ids, is that prompt."""
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
        given = given[0]
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not given:
        raise FieldError("prompt", f"give a text or a list of token ids, not {shown(given)}")
    if any(isinstance(one, str | list) for one in given):
        raise FieldError(
            "prompt", "this server answers one prompt in each request; send the others by themselves"
        )
    for one in given:
        if not is_count(one, 0, MOST_TOKEN_ID):
            raise FieldError("prompt", f"token ids are whole numbers from 0 on, not {shown(one)}")
    return tuple(given)
