"""Chat template: turns the messages of a chat into the text that a model was trained on. Door: a process and a pipe.

It needs jinja2, which is an extra (`edgepart[text]`).

Templates come with models, from strangers, and are programs. They run in jinja2's sandbox, in a process of their own that
limits its processor time, its memory and what it writes to files (agent/text/template_sandbox.py). What the process answers
is bytes and is never unpickled, as a template that escaped from the sandbox would speak for it. One request is rendered at
a time: rendering takes about a millisecond.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from datetime import datetime
from importlib.util import find_spec
from multiprocessing.connection import Connection
from threading import Event, Lock, Timer
from typing import Any, NamedTuple

from edgepart.agent.host.child_process import ChildProcess, start_child
from edgepart.agent.text.generation import ChatPrompt, Message
from edgepart.agent.text.template_sandbox import (
    MOST_PROMPT_BYTES,
    MOST_REASON_CHARACTERS,
    PROCESSOR_S,
    READY,
    REFUSAL,
    TEXT,
    serve,
)
from edgepart.planner.errors import NotInstalled, RequestError, Unavailable

IDLE_S = 60.0
"""Seconds without work after which the process ends, which gives back its 25 MB."""
START_S = 60.0
"""The longest time that the process may take until it can render, on a machine that is busy."""
RENDER_S = 10.0
"""The longest time that a template may take, when it waits for others or for memory. It is longer than PROCESSOR_S, as a
busy machine is not the template's fault."""
MOST_CHAT_BYTES = 4 << 20


class _Child(NamedTuple):
    process: ChildProcess
    pipe: Connection[Any, Any]


class _Asked(NamedTuple):
    answer: bytes | None
    """None if there is none."""
    is_late: bool = False
    """Whether the process was killed because it took too long."""
    was_gone: bool = False
    """Whether it had ended before it could be asked."""


class TemplateProcess:
    """Renders templates for any thread; the caller waits for the text."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._lock = Lock()
        """Guards the pipe: a thread holds this lock while its template is rendered."""
        self._life = Lock()
        """Guards starting and killing the process, because a process that is only half started cannot be killed."""
        self._child: _Child | None = None
        self._stopped = False

    def render(
        self,
        template: str,
        prompt: ChatPrompt,
        *,
        now: datetime,
        bos: str | None = None,
        eos: str | None = None,
    ) -> str:
        """Return the text to which the model's answer is added.

        `now` is the time that templates can ask for; `bos` and `eos` are the texts of the tokens that begin and end a text.
        Raises RequestError if the template refuses the messages, fails, or takes too much; NotInstalled without jinja2;
        Unavailable if no process can be started or this agent stops.
        """
        if find_spec("jinja2") is None:
            raise NotInstalled(
                "chats need the package jinja2, which is not installed: pip install 'edgepart[text]'"
            )
        order = _order(template, prompt, now, bos, eos)
        with self._lock:
            for _ in range(2):  # The first process may just have ended because it had no work.
                child = self._ensure_running()
                asked = _ask(child, order)
                if asked.answer is not None:
                    return _read_answer(asked.answer)
                self._child = None
                code = _end(child)
                if self._stopped:
                    raise Unavailable("this agent stops")
                if code != 0 and not asked.was_gone:
                    raise RequestError(_explain(code, asked.is_late))
        raise Unavailable("the process that renders chat templates ended before it had an answer")

    def stop(self) -> None:
        """Stop what is rendered now, and render nothing from now on."""
        with self._life:
            self._stopped = True
            if self._child is not None:
                self._child.process.kill()

    def _ensure_running(self) -> _Child:
        with self._life:
            if self._stopped:
                raise Unavailable("this agent stops")
            if self._child is not None and self._child.process.is_alive():
                return self._child
            try:
                child = _Child(*start_child(serve, self._idle_s, name="edgepart-template"))
            except OSError as error:
                raise Unavailable(
                    f"the process that renders chat templates cannot be started ({error})"
                ) from error
            self._child = child
        if _hears(child):
            return child
        self._child = None
        _end(child)
        raise Unavailable(
            "this agent stops"
            if self._stopped
            else f"the process that renders chat templates was not ready after {START_S:g} s"
        )


def plain_messages(prompt: ChatPrompt) -> list[dict[str, Any]]:
    """Return the messages with contents that all templates understand: parts of text become one text, a line for each.
    Raises RequestError for parts that are no text.

    >>> plain_messages(ChatPrompt(({"role": "user", "content": [{"type": "text", "text": "Hello"}]},)))
    [{'role': 'user', 'content': 'Hello'}]
    """
    return [{**message, **_joined(number, message)} for number, message in enumerate(prompt.messages)]


def _joined(number: int, message: Message) -> Mapping[str, str]:
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return {}
    texts = []
    for part in content:
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case _:
                kind = part.get("type") if isinstance(part, dict) else part
                raise RequestError(
                    f"messages[{number}] has a part of type {str(kind)[:40]!r}; this model reads text, so that each part "
                    'must be {"type": "text", "text": "..."}. Nothing was generated'
                )
    return {"content": "\n".join(texts)}


def _order(template: str, prompt: ChatPrompt, now: datetime, bos: str | None, eos: str | None) -> bytes:
    values: dict[str, Any] = {
        "messages": plain_messages(prompt),
        "tools": [dict(tool) for tool in prompt.tools] or None,
        "documents": None,
        "add_generation_prompt": True,
    }
    # Templates test whether these are defined; a value of None would be printed.
    values |= {name: text for name, text in (("bos_token", bos), ("eos_token", eos)) if text is not None}
    try:
        order = json.dumps({"template": template, "values": values, "now": now.isoformat()}).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(
            f"the messages or tools are not what JSON can hold ({error}); nothing was generated"
        ) from error
    if len(order) - len(template) > MOST_CHAT_BYTES:
        raise RequestError(
            f"the messages have more than {MOST_CHAT_BYTES} bytes; send fewer or shorter ones. Nothing was generated"
        )
    return order


def _hears(child: _Child) -> bool:
    """Return whether the process says within START_S that it is ready."""
    try:
        return child.pipe.poll(START_S) and child.pipe.recv_bytes(len(READY)) == READY
    except (EOFError, OSError):
        return False


def _ask(child: _Child, order: bytes) -> _Asked:
    late = Event()

    def give_up() -> None:
        late.set()
        child.process.kill()

    guard = Timer(RENDER_S, give_up)
    guard.start()
    was_gone = True
    try:
        child.pipe.send_bytes(order)
        was_gone = False
        return _Asked(child.pipe.recv_bytes(MOST_PROMPT_BYTES + 1))
    except (EOFError, OSError):
        return _Asked(None, late.is_set(), was_gone and not late.is_set())
    finally:
        guard.cancel()


def _end(child: _Child) -> int:
    """End the process, which does not answer, and return its exit code."""
    child.pipe.close()
    child.process.join(1.0)
    child.process.kill()
    child.process.join()
    return child.process.exitcode or 0


def _explain(code: int, is_late: bool) -> str:
    then = "nothing was generated. Use another template"
    if is_late:
        return f"the model's chat template took longer than {RENDER_S:g} s; {then}"
    if code == -signal.SIGXCPU:
        return f"the model's chat template took more than {PROCESSOR_S} s of processor time; {then}"
    return f"the model's chat template ended the process that renders it (exit code {code}); {then}"


def _read_answer(answer: bytes) -> str:
    try:
        kind, text = answer[:1], answer[1:].decode()
    except UnicodeDecodeError:
        kind, text = b"", ""
    if kind == TEXT:
        return text
    if kind == REFUSAL:
        raise RequestError(
            f"the model's chat template cannot render these messages: {text[:MOST_REASON_CHARACTERS]}. "
            "Nothing was generated"
        )
    raise RequestError(
        "the model's chat template made something that is no text; nothing was generated. Use another template"
    )
