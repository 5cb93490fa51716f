"""Chat templates: those of known families give their prompts, and hostile ones are refused and harm nobody. Real
processes."""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from edgepart.agent.host.child_process import ChildProcess
from edgepart.agent.text import chat_template
from edgepart.agent.text.chat_template import MOST_CHAT_BYTES, TemplateProcess, plain_messages
from edgepart.agent.text.generation import ChatPrompt, Message
from edgepart.agent.text.template_sandbox import (
    MEMORY_BYTES,
    MOST_PROMPT_BYTES,
    PROCESSOR_S,
    READY,
    TEXT,
    compiler,
    limit_own_process,
)
from edgepart.planner.errors import NotInstalled, RequestError, Unavailable
from tests.agent.host.children import running

NOW = datetime(2026, 3, 4, 5, 6)
CHAT = ChatPrompt(
    (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Grüß <Gott> & 'Welt'"},
        {"role": "assistant", "content": " Hello. "},
        {"role": "user", "content": "Bye"},
    )
)

CHAT_ML = """
{%- if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\nStandard<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
LLAMA = """{{- bos_token }}
{%- set date = strftime_now("%d %b %Y") if strftime_now is defined else "none" %}
{%- if messages[0].role == "system" %}
    {%- set head = messages[0]["content"] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set head = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\nToday: " + date + "\n" + head + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role == "ipython" %}{% continue %}{% endif %}
    {{- "<|start_header_id|>" + message.role + "<|end_header_id|>\n\n" + message.content | trim + "<|eot_id|>" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start_header_id|>assistant<|end_header_id|>\n\n" }}{%- endif %}
"""
GEMMA = """{{ bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
    {% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate') }}
    {% endif %}
    {% set role = 'model' if message.role == 'assistant' else message.role %}
{{ '<start_of_turn>' + role + '\n' + message.content | trim + '<end_of_turn>' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""
QWEN = """
{%- macro turn(role, text) %}{{- '<|im_start|>' ~ role ~ '\n' ~ text ~ '<|im_end|>\n' }}{%- endmacro %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- if tools %}
    {{- '<tools>' }}
    {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\n</tools>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set text = message.content.split('</think>')[-1].lstrip('\n') if message.content is string else '' %}
    {{- turn(message.role, text) }}
    {%- if loop.index0 == ns.last %}{% break %}{% endif %}
{%- endfor %}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think></think>' }}{%- endif %}
{%- generation %}{{- '' }}{%- endgeneration %}
"""


@pytest.fixture(scope="module")
def beside() -> Iterator[TemplateProcess]:
    made = TemplateProcess()
    yield made
    made.stop()


def render(beside: TemplateProcess, template: str, *messages: Message) -> str:
    return beside.render(template, ChatPrompt(messages) if messages else CHAT, now=NOW, bos="<s>", eos="</s>")


def test_chat_ml(beside: TemplateProcess) -> None:
    assert render(beside, CHAT_ML) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nGrüß <Gott> & 'Welt'<|im_end|>\n"
        "<|im_start|>assistant\n Hello. <|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(beside, CHAT_ML, {"role": "user", "content": ""}) == (
        "<|im_start|>system\nStandard<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
    )


def test_llama(beside: TemplateProcess) -> None:
    assert render(beside, LLAMA, *CHAT.messages[:2], {"role": "ipython"}) == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday: 04 Mar 2026\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nGrüß <Gott> & 'Welt'<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_gemma(beside: TemplateProcess) -> None:
    assert render(beside, GEMMA, *CHAT.messages[1:3]) == (
        "<s><start_of_turn>user\nGrüß <Gott> & 'Welt'<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
        "<start_of_turn>model\n"
    )
    with pytest.raises(RequestError, match=r"these messages: System role not supported\. Nothing was"):
        render(beside, GEMMA)
    with pytest.raises(RequestError, match=r"these messages: Roles must alternate\. Nothing was"):
        render(beside, GEMMA, CHAT.messages[1], CHAT.messages[1])


def test_qwen_with_tools(beside: TemplateProcess) -> None:
    tools = ({"type": "function", "function": {"name": "größe", "parameters": {"a": [1, None, "<b>"]}}},)
    prompt = ChatPrompt(({"role": "user", "content": "<think>x</think>\nHi"},), tools)
    assert beside.render(QWEN, prompt, now=NOW) == (
        '<tools>\n{"type": "function", "function": {"name": "größe", "parameters": {"a": [1, null, "<b>"]}}}\n</tools>\n'
        "<|im_start|>user\nHi<|im_end|>\n"
    )


def test_tokens_that_a_model_lacks_are_not_defined(beside: TemplateProcess) -> None:
    text = "{{ bos_token }}{{ eos_token is defined }}{{ tools is none }}{{ documents is none }}"
    assert beside.render(text, CHAT, now=NOW) == "FalseTrueTrue"


def test_each_template_is_compiled_once() -> None:
    compiled = compiler()
    assert compiled("{{ 1 }}") is compiled("{{ 1 }}") is not compiled("{{ 2 }}")


def test_parts_of_text_become_one() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    prompt = ChatPrompt(
        ({"role": "user", "content": parts, "name": "x"}, {"role": "assistant", "content": None})
    )
    assert plain_messages(prompt) == [
        {"role": "user", "content": "one\ntwo", "name": "x"},
        {"role": "assistant", "content": None},
    ]
    assert plain_messages(ChatPrompt(({"content": []},))) == [{"content": ""}]


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image_url", "image_url": {}}, "image_url"),
        ({"type": "text"}, "text"),
        ("x", "x"),
        (None, "None"),
    ],
)
def test_parts_that_are_no_text_are_refused(part: Any, kind: str) -> None:
    prompt = ChatPrompt(({"content": "x"}, {"content": [{"type": "text", "text": "a"}, part]}))
    with pytest.raises(RequestError, match=rf"messages\[1\] has a part of type '{kind}'"):
        plain_messages(prompt)


HOSTILE = {
    "ends in no time": ("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
                        rf"(more than {PROCESSOR_S} s of processor time|longer than)"),
    "computes in C": ("{{ (3 ** 30000000) % 7 }}{{ (3 ** 90000001) % 7 }}",
                      rf"(more than {PROCESSOR_S} s of processor time|longer than)"),
    "long text": ("{% for a in range(100000) %}{{ 'a' * 100 }}{% endfor %}", rf"longer than {MOST_PROMPT_BYTES} bytes"),
    "long letters": ("{{ 'é' * 600000 }}", rf"longer than {MOST_PROMPT_BYTES} bytes"),
    "huge text": ("{{ 'a' * 10**10 }}", "bytes of memory"),
    "huge width": ("{{ '%1000000000d' | format(1) }}", "bytes of memory"),
    "doubling": ("{% set n = namespace(a='aaaa') %}{% for i in range(99) %}{% set n.a = n.a + n.a %}{% endfor %}",
                 "bytes of memory"),
    "classes": ("{{ ''.__class__.__mro__ }}", "SecurityError"),
    "globals": ("{{ raise_exception.__globals__.os }}", "Error"),
    "format": ("{{ '{0.__class__.__mro__}'.format(1).x.y }}", "Error"),
    "changes": ("{{ messages.append(1) }}", "SecurityError"),
    "range": ("{{ range(10**9) | list }}", "Range too big"),
    "recursion": ("{% macro r(n) %}{{ r(n) }}{% endmacro %}{{ r(1) }}", "RecursionError"),
    "deep": ("{{ " + "[" * 50_000 + "]" * 50_000 + " }}", "RecursionError"),
    "deep blocks": ("{% if x %}" * 5000 + "{% endif %}" * 5000, "RecursionError"),
    "refusal": ("{{ raise_exception('no') }}", r"these messages: no\."),
    "long refusal": ("{{ raise_exception('no' * 100000) }}", r"these messages: (no){250}\."),
    "strange refusal": ("{{ raise_exception('\ud800') }}", r"these messages: \?\."),
    "syntax": ("Hi\n{% if %}", r"TemplateSyntaxError: .* \(line 2\)"),
    "unknown block": ("{% sing %}", "TemplateSyntaxError"),
    "unknown filter": ("{{ 1 | sing }}", "TemplateAssertionError"),
    "undefined": ("{{ a.b.c }}", "UndefinedError"),
    "other files": ("{% include '/etc/passwd' %}", "no loader"),
    "half characters": ("{{ '\ud800' }}", "UnicodeEncodeError"),
    "no JSON": ("{{ range | tojson }}", "TypeError"),
    "division": ("{{ 1 / 0 }}", "ZeroDivisionError"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_refused_and_the_next_one_works(
    beside: TemplateProcess, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "RENDER_S", 600.0)  # The machine may be busy.
    template, says = HOSTILE[name]
    with pytest.raises(RequestError, match=rf"chat template .*{says}.*[nN]othing was generated"):
        render(beside, template)
    assert render(beside, "{{ messages[3].content }}!") == "Bye!"


@pytest.mark.parametrize(
    "template",
    ["{{ ''|attr('__class__')|attr('__mro__') }}", "{{ raise_exception.__code__ }}", "{{ cycler.__init__ }}",
     "{{ '{0.__class__}'.format(1) }}", "{{ strftime_now.func }}{{ self._TemplateReference__context.parent }}"],
)  # fmt: skip
def test_what_templates_must_not_see_is_not_there(beside: TemplateProcess, template: str) -> None:
    try:
        assert render(beside, template) == ""
    except RequestError as error:
        assert "SecurityError" in str(error)


def test_messages_that_are_too_long_or_no_json(beside: TemplateProcess) -> None:
    with pytest.raises(RequestError, match=rf"more than {MOST_CHAT_BYTES} bytes"):
        render(beside, "x", {"content": "x" * MOST_CHAT_BYTES})
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for bad in (b"bytes", {1, 2}, deep):
        with pytest.raises(RequestError, match="not what JSON can hold"):
            render(beside, "x", {"content": "", "more": bad})


def test_the_longest_text_arrives(beside: TemplateProcess) -> None:
    assert render(beside, f"{{{{ 'a' * {MOST_PROMPT_BYTES} }}}}") == "a" * MOST_PROMPT_BYTES


def test_threads_get_their_own_texts(beside: TemplateProcess) -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda n: render(beside, f"{n} {{{{ messages | length }}}}"), range(40)))
    assert texts == [f"{n} 4" for n in range(40)]


def test_it_rests_and_is_started_again() -> None:
    short = TemplateProcess(idle_s=1.0)
    assert render(short, "{{ 1 }}") == "1"
    assert short._child is not None
    child = short._child.process
    child.join(60)
    assert child.exitcode == 0
    assert render(short, "{{ 2 }}") == "2"
    short.stop()


@pytest.mark.parametrize("noticed", [True, False])
def test_one_that_is_killed_while_it_rests_is_started_again(
    noticed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end may be noticed only when it is asked."""
    before, killed = running("edgepart-template"), TemplateProcess()
    if not noticed:
        monkeypatch.setattr(ChildProcess, "is_alive", lambda _: True)
    assert render(killed, "{{ 1 }}") == "1"
    (child,) = running("edgepart-template") - before
    child.kill()
    assert killed._child is not None
    killed._child.process.join(60)
    assert render(killed, "{{ 2 }}") == "2"
    killed.stop()


def test_one_that_is_killed_at_work_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "serve", dies)
    with pytest.raises(RequestError, match=r"ended the process that renders it \(exit code -9\)"):
        render(TemplateProcess(), "x")


def dies(orders: Connection[Any, Any], idle_s: float) -> None:
    orders.send_bytes(READY)
    orders.recv_bytes()
    os.kill(os.getpid(), signal.SIGKILL)


def test_one_that_ends_when_it_is_asked_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had waited long enough in the moment in which it was asked."""
    monkeypatch.setattr(chat_template, "serve", EndsOnce(tmp_path / "ended"))
    ending = TemplateProcess()
    assert render(ending, "x") == "the second time"
    ending.stop()


class EndsOnce:
    """Is a process that ends when it is asked, if this file is not there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, orders: Connection[Any, Any], idle_s: float) -> None:
        orders.send_bytes(READY)
        orders.recv_bytes()
        if self._path.exists():
            orders.send_bytes(TEXT + b"the second time")
            signal.pause()
        self._path.touch()


def test_the_process_limits_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "serve", tells_limits)
    limited = TemplateProcess()
    memory, file, core = json.loads(render(limited, "x"))
    assert (file, core) == ([0, 0], [0, 0])
    assert MEMORY_BYTES < memory[0] == memory[1] < 100 * MEMORY_BYTES
    limited.stop()


def tells_limits(orders: Connection[Any, Any], idle_s: float) -> None:
    limit_own_process()
    orders.send_bytes(READY)
    orders.recv_bytes()
    kinds = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)
    orders.send_bytes(TEXT + json.dumps([resource.getrlimit(kind) for kind in kinds]).encode())
    signal.pause()


def test_one_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "serve", hangs)
    monkeypatch.setattr(chat_template, "RENDER_S", 0.1)
    stuck = TemplateProcess()
    with pytest.raises(RequestError, match=r"took longer than 0\.1 s"):
        render(stuck, "x")
    stuck.stop()


def hangs(orders: Connection[Any, Any], idle_s: float) -> None:
    orders.send_bytes(READY)
    signal.pause()


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (b"t\xff", RequestError, "no text"),
        (b"x", RequestError, "no text"),
        (b"", RequestError, "no text"),
        (b"n" + b"a" * 2000, RequestError, r"these messages: a{500}\."),
        (b"t" + b"a" * (MOST_PROMPT_BYTES + 1), Unavailable, "before it had an answer"),
        (pickle.dumps(TemplateProcess), RequestError, "no text"),
    ],
)
def test_answers_of_a_process_that_a_template_took_over(
    answer: bytes, error: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are bytes, whatever they are: nothing is unpickled."""
    monkeypatch.setattr(chat_template, "serve", Speaks(answer))
    taken = TemplateProcess()
    with pytest.raises(error, match=says):
        render(taken, "x")
    taken.stop()


class Speaks:
    """Is a process that says this, whatever it is asked."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def __call__(self, orders: Connection[Any, Any], idle_s: float) -> None:
        orders.send_bytes(READY)
        try:
            while True:
                orders.recv_bytes()
                orders.send_bytes(self._answer)
        except (EOFError, OSError):
            return


def test_one_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "serve", ends)
    with pytest.raises(Unavailable, match="was not ready"):
        render(TemplateProcess(), "x")

    def fails(*args: object, **named: object) -> None:
        raise OSError("no process is left")

    monkeypatch.setattr(chat_template, "start_child", fails)
    with pytest.raises(Unavailable, match=r"cannot be started \(no process is left\)"):
        render(TemplateProcess(), "x")


def ends(orders: Connection[Any, Any], idle_s: float) -> None:
    """Ends at once."""


def test_whoever_waits_is_told_when_the_agent_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "serve", hangs)
    before, stopping = running("edgepart-template"), TemplateProcess()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(render, stopping, "x")
        while not running("edgepart-template") - before:
            assert not future.done()
        stopping.stop()
        with pytest.raises(Unavailable, match="this agent stops"):
            future.result(60)
    with pytest.raises(Unavailable, match="this agent stops"):
        render(stopping, "x")


def test_whoever_waits_for_a_text_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    monkeypatch.setattr(chat_template, "serve", HangsAtWork(asked))
    stopping = TemplateProcess()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(render, stopping, "x")
        while not asked.exists():
            assert not future.done()
        stopping.stop()
        with pytest.raises(Unavailable, match="this agent stops"):
            future.result(60)


class HangsAtWork:
    """Is a process that makes this file when it is asked, and answers nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, orders: Connection[Any, Any], idle_s: float) -> None:
        orders.send_bytes(READY)
        orders.recv_bytes()
        self._path.touch()
        signal.pause()


def test_without_the_extra(beside: TemplateProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "find_spec", lambda name: None)
    with pytest.raises(NotInstalled, match=r"pip install 'edgepart\[text\]'"):
        render(beside, "x")
