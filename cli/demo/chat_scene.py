"""The last chapter of `edgepart demo`: a language model answers, and its text goes on when one of its devices is killed.
Door: processes, and the client of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepart.client.conversation import ChatReply, Conversation
from edgepart.planner.figures import format_seconds
from edgepart.planner.report.sentences import headline

if TYPE_CHECKING:
    from edgepart.cli.local import LocalAgent, LocalCluster

NAME = "chat"
QUESTION = "Tell me a short story about a lighthouse and a boat."
ANSWER_TOKENS = 48
CONTEXT = 256
PARTS_BEFORE = 12
"""The number of pieces of the answer that come before a device is killed."""
PACKAGES = ("jinja2", "tokenizers")
"""The packages of the extra `text`, which the agents need."""

Tell = Callable[[str], None]


def find_hindrance(folder: Path | None) -> str:
    """Why there is no chapter with this language model, and what to do; "" if there can be one."""
    if folder is None:
        return (
            "A language model would answer now: give its folder with --chat FOLDER (model.onnx, tokenizer.json, ...). "
            "`make demo` makes one of SmolLM2."
        )
    if not folder.is_dir():
        return f"A language model would answer now, but there is no folder {folder}."
    if any(find_spec(package) is None for package in PACKAGES):
        return "A language model would answer now: its agents need `pip install 'edgepart[text]'`."
    return ""


def tell_chat(cluster: LocalCluster, folder: Path, chapter: Tell, say: Tell, part: Tell) -> dict[str, Any]:
    """Deploy the language model in the folder over two agents, and ask it twice: undisturbed, and while one of them is
    killed. Returns what the demo's document says of it."""
    first, *others = cluster.living
    names = [agent.name for agent in others[:2]]
    options = (
        *("--name", NAME, "--context", str(CONTEXT), "--devices", ",".join(names)),
        *("--strategy", "pipeline", "--objective", "throughput"),
    )
    chapter(f"edgepart deploy {folder.name}/ {' '.join(options)}")
    served = first.type("deploy", str(folder), *options, timeout_s=300)
    devices = served["devices"]
    say(f"{headline(served['why'])}\n{_describe(devices)}; {first.name} is asked.")
    chapter(f"edgepart chat {NAME} '{QUESTION}'")
    undisturbed = _ask(first, part, lambda: None)
    say(f"\n\n{undisturbed.stats()}")

    victim = cluster.agents[devices[-1]]
    chapter(f"The same again; {victim.name} is killed (SIGKILL) in the middle of its answer")

    def kill() -> None:
        victim.kill()
        part(f" <{victim.name} is killed>")

    disturbed = _ask(first, part, kill)
    say(f"\n\n{disturbed.stats()}")
    equal = disturbed.text == undisturbed.text
    paused = format_seconds(float(disturbed.figures.get("paused_s") or 0))
    what = "The text is the same" if equal else "THE TEXT IS ANOTHER ONE"
    say(
        f"{what}: it paused for {paused}, while {', '.join(disturbed.figures['devices'])} read its tokens again."
    )
    return {
        "equal": equal,
        "text": disturbed.text,
        "tokens_per_s": undisturbed.figures["tokens_per_s"],
        "paused_s": disturbed.figures["paused_s"],
        "replays": disturbed.figures["replays"],
        "devices": {"before": devices, "after": disturbed.figures["devices"]},
    }


def _describe(devices: Sequence[str]) -> str:
    """Who computes the model. A device that was slow lately may be left out, whatever the strategy."""
    if len(devices) == 1:
        return f"{devices[0]} computes all layers, and keeps their caches"
    return f"The layers are divided over {' and '.join(devices)}, and so are their caches"


def _ask(agent: LocalAgent, part: Tell, event: Callable[[], None]) -> ChatReply:
    """The answer, whose text is told as it comes. `event` happens in its middle."""
    from edgepart.client.async_client import AsyncClient
    from edgepart.client.target import AgentTarget

    conversation = Conversation(NAME, None, {"temperature": 0, "max_tokens": ANSWER_TOKENS})
    reply = ChatReply()

    async def ask() -> None:
        parts = 0
        async with (
            AsyncClient(AgentTarget(agent.url, agent.state)) as client,
            aclosing(client.chat_documents(conversation.body(QUESTION))) as documents,
        ):
            async for document in documents:
                if text := reply.take(document):
                    part(text)
                    parts += 1
                    if parts == PARTS_BEFORE:
                        await asyncio.to_thread(event)

    asyncio.run(ask())
    return reply
