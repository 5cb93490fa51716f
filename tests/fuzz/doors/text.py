"""Fuzz targets for what comes with a language model: its chat template, with the messages of clients, and the files beside
it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from edgepart.agent.text import companions
from edgepart.agent.text.chat_template import TemplateProcess
from edgepart.agent.text.generation import ChatPrompt
from edgepart.agent.text.sampling import check_sampling
from edgepart.agent.text.template_sandbox import MOST_PROMPT_BYTES
from edgepart.planner.errors import ModelError, RequestError
from edgepart.planner.json_text import parse_json
from tests.fuzz.forms import Headed, Json, headed, parted
from tests.fuzz.target import Take, Target, expect, plainly

NOW = datetime(2026, 3, 4, 5, 6)
TEMPLATES = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}{% endfor %}",
    "{{ bos_token }}{%- if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}"
    "{% for m in messages if m.content is string %}{{ m.content | trim ~ loop.index0 % 2 }}{% continue %}{% endfor %}",
    "{%- macro turn(m) %}{{ m | tojson(indent=2) }}{% endmacro %}{% set n = namespace(a=1) %}{% set n.a = n.a * 3 %}"
    "{% for t in tools %}{{ turn(t) }}{% endfor %}{{ strftime_now('%d %b %Y') }}{% generation %}x{% endgeneration %}",
)
CHAT: dict[str, list[Any]] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "é"}, {"type": "text", "text": ""}]},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": [1, None, 2.5]}}}],
}


def _template_seeds() -> list[bytes]:
    chats = (CHAT, {"messages": CHAT["messages"][1:], "tools": []})
    return [headed(json.dumps(chat).encode(), text.encode()) for chat in chats for text in TEMPLATES]


_NO_LETTERS = re.compile(r"[^A-Za-z]")


@contextmanager
def _templates() -> Iterator[Take]:
    """Yield a function that renders a case: the length of a chat, the chat, and a template."""
    beside = TemplateProcess()

    def take(data: bytes) -> str:
        head, template = parted(data)
        chat = parse_json(head)
        messages, tools = (chat.get(key) for key in CHAT) if isinstance(chat, dict) else (None, None)
        for entries in (messages, tools):
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                raise ValueError("the HTTP routes refuse this before it comes here")
        prompt = ChatPrompt(tuple(messages or ()), tuple(tools or ()))
        try:
            text = beside.render(template.decode(errors="replace"), prompt, now=NOW, bos="<s>")
        except RequestError as error:
            return _NO_LETTERS.sub("", str(error))[50:90]  # the error's kind: its place is in another process
        expect(len(text.encode()) <= MOST_PROMPT_BYTES, "a text is longer than allowed")
        return str(min(len(text), 8))

    yield take
    expect(beside.render("{{ messages }}", ChatPrompt(()), now=NOW) == "[]", "it renders no more")
    beside.stop()


COMPANIONS = {
    companions.TOKENIZER: {},
    companions.TOKENIZER_CONFIG: {
        "add_bos_token": True,
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "chat_template": [{"name": "default", "template": "{{ messages }}"}],
    },
    companions.TEMPLATE_JSON: {"chat_template": None},
    companions.CONFIG: {"eos_token_id": 2, "text_config": {"max_position_embeddings": 2048}},
    companions.GENERATION_CONFIG: {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "eos_token_id": [2, 3],
    },
    companions.GENAI_CONFIG: {
        "model": {"context_length": 4096, "bos_token_id": 1, "eos_token_id": [2, 7]},
        "search": {"top_p": 0.9, "repetition_penalty": 1.1},
    },
}


def _companions(data: bytes) -> str:
    """Read a case: an object of files, or else one file."""
    try:
        files = parse_json(data)
    except ValueError:
        files = None
    contents = {companions.CONFIG: data}
    if isinstance(files, dict):
        contents = {name: json.dumps(files[name]).encode() for name in companions.NAMES if name in files}
    found = companions.parse_companions(contents)
    check_sampling(found.sampling)
    for token in (*found.end_tokens, found.bos_token or 0, found.context or 1):
        expect(type(token) is int and 0 <= token < 2**31, f"{token!r} is no token and no length")
    for text in (found.template, found.bos, found.eos):
        expect(text is None or isinstance(text, str), f"{text!r} is no text")
    expect(found.adds_bos in (None, True, False), "a switch with a third position")
    return f"{len(found.names)} {len(found.end_tokens)} {found.template is None} {found.sampling.temperature > 0}"


TARGETS = (
    Target("chat templates", _template_seeds, _templates, (ValueError,), Headed(Json()), 0.1),
    Target(
        "a model's companions",
        lambda: [json.dumps(COMPANIONS).encode(), json.dumps(COMPANIONS[companions.CONFIG]).encode()],
        plainly(_companions),
        (ModelError,),
        Json(),
    ),
)
