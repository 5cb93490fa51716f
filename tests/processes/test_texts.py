"""Texts of a language model on real agents: they go on although a device is killed, and end when their client hangs up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from edgepart.cli.local import LocalAgent, LocalCluster
from tests.processes.asking import deploy
from tests.processes.tiny_language import tiny_language

pytestmark = pytest.mark.processes

CONTEXT = 1024
"""Reading so many tokens takes seconds, so that what happens at the first ones happens in the middle of a text."""
LONG = 600
QUESTION = [{"role": "user", "content": "the sea"}]


@pytest.fixture
def talkers(victims: LocalCluster, tmp_path: Path) -> LocalCluster:
    """Agents a, b and c; a language model is divided over b and c."""
    folder = tiny_language(tmp_path / "tiny")
    options = (
        "--context",
        str(CONTEXT),
        "--devices",
        "b,c",
        "--strategy",
        "pipeline",
        "--objective",
        "throughput",
    )
    served = deploy(victims, folder, "chat", *options)
    assert served["devices"] == ["b", "c"]
    return victims


@pytest.fixture
def client(talkers: LocalCluster) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{talkers.first.url}/v1", api_key="none", max_retries=0, timeout=300) as made:
        yield made


def stream(client: OpenAI, at_first_text: Callable[[], object] = lambda: None) -> tuple[str, dict[str, Any]]:
    """The text of a streamed answer, and the figures at its end."""
    text, figures = "", {}
    answer: Any = client.chat.completions.create(
        model="chat",
        messages=QUESTION,  # type: ignore[arg-type]
        max_tokens=LONG,
        temperature=1.0,
        seed=7,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in answer:
        part = chunk.choices[0].delta.content if chunk.choices else ""
        if part and not text:
            at_first_text()
        text += part or ""
        figures = (chunk.model_extra or {}).get("edgepart") or figures
    return text, figures


def sequences(agent: LocalAgent, cluster: LocalCluster) -> dict[str, Any]:
    (card,) = cluster.status(agent)["deployments"]
    found: dict[str, Any] = card["sequences"]
    return found


def test_a_text_goes_on_where_it_was_when_a_device_is_killed(talkers: LocalCluster, client: OpenAI) -> None:
    undisturbed, figures = stream(client)
    assert figures["replays"] == 0 and figures["devices"] == ["b", "c"]
    assert (
        len(set(undisturbed.split())) > 50
    )  # It does not repeat itself, so that a doubled token would show.

    text, figures = stream(client, talkers.agents["b"].kill)

    assert text == undisturbed
    assert figures["replays"] >= 1 and figures["devices"] == ["c"]


def test_a_client_that_hangs_up_frees_the_sequence(talkers: LocalCluster, client: OpenAI) -> None:
    answer: Any = client.chat.completions.create(
        model="chat",
        messages=QUESTION,
        max_tokens=LONG,
        stream=True,  # type: ignore[arg-type]
    )
    next(chunk for chunk in answer if chunk.choices[0].delta.content)
    found = sequences(talkers.first, talkers)
    assert (found["under_way"], found["idle"], found["most"]) == (1, 0, 4)
    assert found["state_bytes"].keys() == {"b", "c"} and min(found["state_bytes"].values()) > 0

    answer.close()

    def is_free() -> bool:
        found = sequences(talkers.first, talkers)
        return bool((found["under_way"], found["idle"]) == (0, 1))

    assert talkers.wait(is_free, "the sequence to be free")
    kept = [talkers.status(talkers.agents[name])["sequences"] for name in "abc"]
    assert [one["kept"] for one in kept] == [0, 1, 1]
    # What gateways say of the memory on other devices is what these hold.
    assert [one["bytes"] for one in kept[1:]] == [found["state_bytes"][name] for name in "bc"]


def test_a_chat_by_the_command(talkers: LocalCluster) -> None:
    command = ("chat", "chat", "hello", "--max-tokens", "12", "--seed", "3")
    document = talkers.agents["c"].type(*command)
    assert document["text"] and document["reason"] == "length"
    assert document["usage"]["completion_tokens"] == 12 and document["devices"] == ["b", "c"]

    state = ("--state", str(talkers.first.state))
    plain = subprocess.run(
        [sys.executable, "-m", "edgepart", *command, *state], capture_output=True, text=True, timeout=300
    )
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.strip() == document["text"].strip()
