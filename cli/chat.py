"""`edgepart chat`: talks to a language model, as any client of its OpenAI routes does. Door: the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from edgepart.cli.options import Agent, DeployedName, Json, State
from edgepart.cli.output import FAILED, note, print_error, print_json, say_part
from edgepart.cli.query import note_detour
from edgepart.client.conversation import ChatReply, Conversation
from edgepart.client.target import AgentTarget, target_of
from edgepart.planner.errors import EdgepartError, UsageError

if TYPE_CHECKING:
    from edgepart.client.async_client import AsyncClient

PROMPT = "> "
STDIN = "-"
HELP = """/stats        figures of the last answer
/system TEXT  what the model is told first; without TEXT, nothing
/reset        forget what was said
/quit         end, as Ctrl-D does
Ctrl-C stops an answer, and ends at the prompt if it is pressed twice."""

Words = Annotated[
    str | None,
    typer.Argument(
        metavar="MESSAGE",
        help="A message to answer before the command ends; - reads it from stdin.",
        show_default="a conversation",
    ),
]
System = Annotated[
    str | None,
    typer.Option("--system", metavar="TEXT", help="What the model is told first.", show_default="nothing"),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        min=0,
        max=2,
        help="0 takes the most likely word each time; more makes answers more varied.",
        show_default="the model's",
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        min=1,
        help="The most tokens of an answer.",
        show_default="as many as the context has room for",
    ),
]
AnswerSeed = Annotated[
    int | None,
    typer.Option("--seed", help="The same seed gives the same answers.", show_default="another each time"),
]


def chat(
    name: DeployedName,
    message: Words = None,
    system: System = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    seed: AnswerSeed = None,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Talk to a language model. If stdin is no terminal, each of its lines is answered. With --json, there is one document
    for each answer."""
    options = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
    given = {key: value for key, value in options.items() if value is not None}
    target = target_of(agent, state)
    at_terminal = message is None and sys.stdin.isatty()
    if at_terminal and as_json:
        raise UsageError(
            "--json needs a MESSAGE, or messages on stdin: a conversation is not one JSON document"
        )
    with _talking(target, Conversation(name, system, given), as_json) as talk:
        if message is not None:
            talk.answer(sys.stdin.read() if message == STDIN else message)
        elif at_terminal:
            _converse(talk)
        else:
            _answer_lines(talk)


class _Talk:
    """A conversation with a model through one client."""

    def __init__(
        self, runner: asyncio.Runner, client: AsyncClient, conversation: Conversation, as_json: bool
    ) -> None:
        self.conversation = conversation
        self.last: ChatReply | None = None
        self.as_json = as_json
        self._runner = runner
        self._client = client

    def answer(self, message: str) -> None:
        """Answers a message, and remembers both. Raises EdgepartError, after which nothing is remembered; and
        KeyboardInterrupt, after which what has come of the answer is."""
        reply = self.last = ChatReply()
        try:
            self._runner.run(self._show(message, reply))
        except KeyboardInterrupt:
            self.conversation.keep(message, reply.text)
            raise
        finally:
            if reply.text and not self.as_json:
                say_part("\n")
        self.conversation.keep(message, reply.text)
        if self.as_json:
            print_json(reply.document())
        elif reply.reason == "length":
            note("the answer is cut off: --max-tokens, or the end of the context, was reached")

    async def _show(self, message: str, reply: ChatReply) -> None:
        async with aclosing(self._client.chat_documents(self.conversation.body(message))) as documents:
            async for document in documents:
                part = reply.take(document)
                if not self.as_json:
                    say_part(part)

    def obey(self, line: str) -> bool:
        """Obeys a line that begins with a slash. Returns whether the conversation goes on."""
        command, _, rest = line.partition(" ")
        match command:
            case "/quit":
                return False
            case "/help":
                note(HELP)
            case "/stats":
                note(self.last.stats() if self.last else "there was no answer yet")
            case "/reset":
                self.conversation.said.clear()
                note("forgotten")
            case "/system":
                self.conversation.system = rest.strip() or None
            case _:
                note(f"there is no command {command}; /help shows those that there are")
        return True


@contextmanager
def _talking(target: AgentTarget, conversation: Conversation, as_json: bool) -> Iterator[_Talk]:
    """Opens a client, and makes sure that the model is there."""
    from edgepart.agent.api.deployment_name import check_name
    from edgepart.client.async_client import AsyncClient

    check_name(conversation.model)
    client = AsyncClient(target)
    with asyncio.Runner() as runner:
        runner.run(client.__aenter__())
        try:
            runner.run(client.get(f"/v1/models/{conversation.model}"))
            runner.run(client.learn())
            note_detour(target, client.url)
            yield _Talk(runner, client, conversation, as_json)
        finally:
            runner.run(client.__aexit__(None, None, None))


def _answer_lines(talk: _Talk) -> None:
    """Answers each line of stdin. After an error the next line is answered; the exit status tells of it."""
    failed = False
    for line in sys.stdin:
        if not (message := line.strip()):
            continue
        if message.startswith("/"):
            if not talk.obey(message):
                break
            continue
        try:
            talk.answer(message)
        except EdgepartError as error:
            print_error(error, talk.as_json)
            failed = True
    if failed:
        raise typer.Exit(FAILED)


def _converse(talk: _Talk) -> None:
    """Answers what a person types, until Ctrl-D, /quit, or Ctrl-C twice in a row."""
    with suppress(
        ImportError
    ):  # Python can be built without it; the line is then edited by the terminal alone.
        import readline  # noqa: F401
    note(f"{talk.conversation.model} answers. /help shows the commands, Ctrl-D ends.")
    stopped = False
    while True:
        try:
            line = input(PROMPT).strip()
        except EOFError:
            break
        except KeyboardInterrupt:
            if stopped:
                break
            stopped = True
            note("\nCtrl-C again, or Ctrl-D, ends")
            continue
        stopped = False
        if line.startswith("/"):
            if not talk.obey(line):
                break
        elif line:
            stopped = _answer_person(talk, line)


def _answer_person(talk: _Talk, message: str) -> bool:
    """Answers a message. Returns whether the person stopped the answer."""
    try:
        talk.answer(message)
    except KeyboardInterrupt:
        note("stopped")
        return True
    except EdgepartError as error:
        print_error(error, False)
    return False
