"""`edgepart chat`, in process, against a real server with a service that always says the same."""

from __future__ import annotations

import asyncio
import builtins
import io
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgepart.agent.gateway.gateway import Gateway
from edgepart.agent.http.server import HttpServer
from edgepart.agent.text.generation import ChatPrompt
from edgepart.cli import chat, output
from edgepart.client import texts
from edgepart.client.async_client import AsyncClient
from edgepart.client.conversation import ChatReply, Conversation
from edgepart.client.target import AgentTarget
from edgepart.planner.errors import (
    ContextExceeded,
    Unavailable,
)
from tests.agent.http.conftest import CREDENTIAL, LIMITS, Served, served, talking, text
from tests.agent.http.fake_text import TEXT, FakeText
from tests.agent.http.fakes import FakeNode
from tests.agent.http.test_http import _event, wait
from tests.cli.test_cli import Edgepart, edgepart

__all__ = ["edgepart", "served", "talking", "text"]

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(edgepart: Edgepart, talking: Served, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Runs a conversation at a terminal: what is typed, line by line, and exceptions where keys are pressed instead."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def run(*lines: str | BaseException, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
        left = list(lines)

        def read(prompt: str) -> str:
            assert prompt == chat.PROMPT
            line = left.pop(0) if left else EOFError()
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr(sys, "stdin", Terminal())
        monkeypatch.setattr(builtins, "input", read)
        result = edgepart("chat", "chat", "--agent", talking.url, *options)
        assert not left, "it ended before all was typed"
        return result

    return run


@pytest.fixture
def piped(edgepart: Edgepart, talking: Served, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Runs the command with this stdin, which is no terminal."""

    def run(stdin: str, *options: str, name: str = "chat") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        return edgepart("chat", name, "--agent", talking.url, *options)

    return run


def said_to(text: FakeText, number: int = -1) -> list[tuple[str, str]]:
    """The messages of a request: who said what."""
    prompt = text.requests[number].prompt
    assert isinstance(prompt, ChatPrompt)
    return [(message["role"], message["content"]) for message in prompt.messages]


def test_a_conversation_remembers_what_was_said(typed: Typed, text: FakeText) -> None:
    status, out, err = typed("Hello", "", "And then?", "/quit")
    assert status == 0 and out == f"{TEXT}\n{TEXT}\n" and "/help" in err
    assert said_to(text, 0) == [("user", "Hello")]
    assert said_to(text, 1) == [("user", "Hello"), ("assistant", TEXT), ("user", "And then?")]


def test_options_are_sent_and_a_limit_is_told(typed: Typed, text: FakeText) -> None:
    options = ("--system", "Be brief", "--temperature", "0.5", "--max-tokens", "2", "--seed", "7")
    status, out, err = typed("Hello", options=options)
    assert status == 0 and out == "Once upon\n" and "cut off" in err
    assert said_to(text) == [("system", "Be brief"), ("user", "Hello")]
    assert (text.requests[0].sampling.temperature, text.requests[0].sampling.seed) == (0.5, 7)
    assert text.requests[0].max_tokens == 2


def test_commands(typed: Typed, text: FakeText) -> None:
    status, _, err = typed(
        "/stats",
        "Hello",
        "/stats",
        "/reset",
        "/system Be brief",
        "Again",
        "/system",
        "/what",
        "/help",
        "More",
    )
    assert status == 0
    assert "there was no answer yet" in err
    assert "7 tokens at 12.5 tokens/s; the first after 250 ms, the longest pause 500 ms" in err
    assert "1 replays after losses" in err and "computed by pi-a, pi-b" in err
    assert "no command /what" in err and "/reset" in err
    assert said_to(text, 1) == [("system", "Be brief"), ("user", "Again")]
    assert said_to(text, 2) == [("user", "Again"), ("assistant", TEXT), ("user", "More")]


def test_an_error_is_a_sentence_and_the_conversation_goes_on(typed: Typed, text: FakeText) -> None:
    text.failure, text.whole_until = ContextExceeded("300 tokens do not fit the context of 256"), 2
    status, out, err = typed("Hello", "/stats")
    assert status == 0 and "error: 300 tokens do not fit the context of 256" in err
    assert "before its figures came" in err and out == "Once upon\n"
    text.failure = None
    typed("Again")
    assert said_to(text) == [("user", "Again")]


def test_what_failed_is_forgotten(typed: Typed, text: FakeText, monkeypatch: pytest.MonkeyPatch) -> None:
    text.failure = Unavailable("no room")
    real = chat._answer_person

    def answer(talk: Any, message: str) -> bool:
        if message == "Again":
            text.failure = None
        return real(talk, message)

    monkeypatch.setattr(chat, "_answer_person", answer)
    status, out, err = typed("Hello", "Again")
    assert status == 0 and "error: no room" in err and out == f"{TEXT}\n"
    assert said_to(text) == [("user", "Again")]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt: a shell starts programs in its background so that they ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_stops_the_answer_and_not_the_program(
    typed: Typed, talking: Served, text: FakeText, monkeypatch: pytest.MonkeyPatch
) -> None:
    text.gate, text.whole_until = talking.on_loop(_event), 2

    def say(part: str) -> None:
        output.say_part(part)
        if part == " upon":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(chat, "say_part", say)
    status, out, err = typed(
        "Hello", "/stats", KeyboardInterrupt(), "/help", KeyboardInterrupt(), KeyboardInterrupt()
    )
    assert status == 0 and out == "Once upon\n"
    assert "stopped" in err and "before its figures came" in err and "Ctrl-C again" in err
    wait(talking, lambda: text.closed == 1)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_right_after_a_stopped_answer_ends(
    typed: Typed, talking: Served, text: FakeText, monkeypatch: pytest.MonkeyPatch
) -> None:
    text.gate, text.whole_until = talking.on_loop(_event), 2

    def say(part: str) -> None:
        if part == " upon":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(chat, "say_part", say)
    with pytest.raises(AssertionError, match="before all was typed"):
        typed("Hello", KeyboardInterrupt(), "never")


def test_what_came_of_a_stopped_answer_is_remembered() -> None:
    talk = Conversation("chat", None, {})
    talk.keep("Hello", "Once upon")
    talk.keep("Nothing?", "")
    assert [message["content"] for message in talk.body("On")["messages"]] == ["Hello", "Once upon", "On"]


def test_each_line_of_a_pipe_is_answered(piped: Typed, text: FakeText) -> None:
    status, out, _ = piped("Hello\n\n/reset\nAgain\n/quit\nnever\n")
    assert status == 0 and out == f"{TEXT}\n{TEXT}\n"
    assert [said_to(text, n) for n in range(2)] == [[("user", "Hello")], [("user", "Again")]]


def test_the_lines_after_an_error_are_answered_and_the_status_tells_of_it(
    piped: Typed, text: FakeText
) -> None:
    text.failure = Unavailable("no room")
    status, out, err = piped("Hello\nAgain\n")
    assert status == output.FAILED and out == "" and err.count("error: no room") == 2
    assert len(text.requests) == 2


def test_one_message_from_an_argument_or_from_all_of_stdin(piped: Typed, text: FakeText) -> None:
    assert piped("", "Hello") == (0, f"{TEXT}\n", "")
    status, out, _ = piped("two\nlines\n", "-", "--json")
    assert said_to(text) == [("user", "two\nlines\n")]
    document = json.loads(out)
    assert status == 0 and document["text"] == TEXT and document["reason"] == "stop"
    assert document["usage"]["completion_tokens"] == 7 and document["devices"] == ["pi-a", "pi-b"]


def test_each_line_has_a_document_with_json(piped: Typed, text: FakeText) -> None:
    status, out, _ = piped("a\nb\n", "--json")
    first, second = out.replace("}\n{", "}\0{").split("\0")
    assert status == 0 and json.loads(first)["text"] == json.loads(second)["text"] == TEXT
    text.failure = Unavailable("no room")
    status, out, _ = piped("", "Hello", "--json")
    assert status == output.FAILED and json.loads(out) == {"error": "no room", "kind": "Unavailable"}


def test_what_cannot_be_is_said_before_anything_is_typed(
    piped: Typed, edgepart: Edgepart, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, err = piped("", "Hello", name="none")
    assert status == output.FAILED and "'none' generates text; those that do: 'chat', 'small'" in err
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    status, _, err = edgepart("chat", "chat", "Hello", "--agent", served.url)
    assert status == output.FAILED and "edgepart[text]" in err
    status, _, err = edgepart("chat", "a/b", "x", "--agent", served.url)
    assert status == output.WRONG_USAGE and "a/b" in err


def test_a_conversation_is_not_one_json_document(typed: Typed) -> None:
    status, _, err = typed(options=("--json",))
    assert status == output.WRONG_USAGE and "MESSAGE" in err


def test_control_characters_do_not_reach_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nasty = "a\x1b[2J\tb\r\n\x9b\x7f"
    output.say_part(nasty)
    assert capsys.readouterr().out == nasty
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    output.say_part(nasty)
    assert capsys.readouterr().out == "a\ufffd[2J\tb\ufffd\n\ufffd\ufffd"


def test_another_member_is_asked_if_the_agent_is_gone_before_it_says_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "BEGIN_S", 1.0)

    async def story() -> None:
        texts = FakeText(), FakeText()
        first, second = (
            HttpServer(Gateway(FakeNode(), CREDENTIAL, LIMITS), spool=tmp_path, text=text) for text in texts
        )
        gone = await first.start()
        async with AsyncClient(AgentTarget(gone, tmp_path)) as client:
            client.door.members.add([await second.start()])
            await first.stop()
            reply = ChatReply()
            async for document in client.chat_documents(Conversation("chat", None, {}).body("Hello")):
                reply.take(document)
            assert reply.text == TEXT and len(texts[1].requests) == 1
            await second.stop()
            with pytest.raises(Unavailable, match="cannot be reached"):
                await anext(client.chat_documents(Conversation("chat", None, {}).body("Hello")))

    asyncio.run(story())
