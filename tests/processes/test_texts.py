"""Texts of a language model on real agents: they go on although a device is killed, and end when their client hangs up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx
import pytest
from benchmarks.generation_bare import BareDecoder
from openai import OpenAI
from tokenizers import Tokenizer

from edgepart.cli.demo.chat_scene import ANSWER_TOKENS, tell_chat
from edgepart.cli.local import LocalCluster
from tests.processes.asking import deploy, deploy_over, served, undeploy
from tests.processes.tiny_language import TEMPLATE, optimum_decoder, tiny_language, tiny_optimum

pytestmark = pytest.mark.processes

CONTEXT = 1024
"""Reading so many tokens takes seconds, so that what happens at the first ones happens in the middle of a text."""
LONG = 600
TOO_LITTLE_FOR_BOTH_LAYERS = ("--memory-limit", "2400k")
"""The states of either layer fit, those of both do not: each device gets one layer, however slow it was found to be."""
NAME = "tiny"
QUESTION: Any = [{"role": "user", "content": "the sea"}]


def deploy_tiny(cluster: LocalCluster, folder: Path, *more: str, optimum: bool = False) -> None:
    """Divide a language model over agents b and c; agent a serves it without computing. With `optimum`, it puts its past
    before new rows."""
    options = (
        *("--context", str(CONTEXT), "--devices", "b,c"),
        *("--strategy", "pipeline", "--objective", "throughput"),
        *more,
    )
    path = tiny_optimum(folder).path if optimum else tiny_language(folder)
    deploy_over(cluster, ["b", "c"], path, NAME, *options)


@pytest.fixture
def talkers(trio: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Three agents that serve the model, deployed with further options if the test has a parameter for them."""
    deploy_tiny(trio, tmp_path / "tiny", *getattr(request, "param", ()))
    yield trio
    undeploy(trio, NAME)


def client_of(cluster: LocalCluster) -> OpenAI:
    return OpenAI(base_url=f"{cluster.first.url}/v1", api_key="none", max_retries=0, timeout=300)


def ask(client: OpenAI) -> Any:
    """A stream of chunks."""
    return client.chat.completions.create(
        model=NAME,
        messages=QUESTION,
        max_tokens=LONG,
        temperature=1.0,
        seed=7,
        stream=True,
        stream_options={"include_usage": True},
    )


def read(answer: Any, at_first_text: Callable[[], object] = lambda: None) -> tuple[str, dict[str, Any]]:
    """The text of a streamed answer, and the figures at its end."""
    text = ""
    figures: dict[str, Any] = {}
    for chunk in answer:
        part = chunk.choices[0].delta.content if chunk.choices else ""
        if part and not text:
            at_first_text()
        text += part or ""
        figures = (chunk.model_extra or {}).get("edgepart") or figures
    return text, figures


def sequences(cluster: LocalCluster, agent: str) -> dict[str, Any]:
    cards = cluster.status(cluster.agents[agent])["deployments"]
    found: dict[str, Any] = next(card["sequences"] for card in cards if card["name"] == NAME)
    return found


@pytest.mark.parametrize(
    ("strategy", "counts"), [("pipeline", False), ("replicas", False), ("pipeline", True)]
)
def test_a_prompt_is_read_in_blocks_by_a_model_that_puts_its_past_before_new_rows(
    trio: LocalCluster, tmp_path: Path, strategy: str, counts: bool
) -> None:
    bare, prompt = BareDecoder(tiny_optimum(tmp_path / "told"), 256), list(range(5, 155))
    expected = bare.continued(prompt, 40).tokens
    # With `counts`, the model is the same, but has no input for the positions of its tokens.
    folder = tiny_optimum(tmp_path / "tiny", counts=counts)
    assert len(set(expected)) > 10
    options = ("--context", "256", "--devices", "b,c", "--strategy", strategy, "--objective", "throughput")
    if strategy == "pipeline":  # The plan is on both devices unless it is tried, and found to be wrong.
        deploy_over(trio, devices := ["b", "c"], folder.path, NAME, *options)
    else:
        devices = deploy(trio, folder.path, NAME, *options)["devices"]

    def count_steps() -> list[float]:
        return [served(trio.agents[name]) for name in devices]

    try:
        before = count_steps()
        with client_of(trio) as client:
            answer: Any = client.completions.create(
                model=NAME, prompt=prompt, max_tokens=len(expected), temperature=0, logprobs=0
            )
        steps = max(after - at_first for after, at_first in zip(count_steps(), before, strict=True))
    finally:
        undeploy(trio, NAME)
    tokenizer = Tokenizer.from_file(str(folder.path / "tokenizer.json"))
    assert answer.choices[0].text == tokenizer.decode(expected)
    # Two blocks of 64 tokens and one of 21, the prompt's last token, and all tokens of the answer but the last. Further
    # plans may be tried meanwhile, with a few steps.
    assert 3 + 1 + len(expected) - 1 <= steps < len(prompt)


def test_a_text_goes_on_where_it_was_when_a_device_is_killed(victims: LocalCluster, tmp_path: Path) -> None:
    deploy_tiny(victims, tmp_path / "tiny")
    with client_of(victims) as client:
        undisturbed, figures = read(ask(client))
        assert figures["replays"] == 0 and figures["devices"] == ["b", "c"]
        assert len(set(undisturbed.split())) > 50  # It varies, so that a token that is lost or doubled shows.

        text, figures = read(ask(client), victims.agents["b"].kill)

    assert text == undisturbed
    assert figures["replays"] >= 1 and figures["devices"] == ["c"]


@pytest.mark.parametrize(
    ("strategy", "optimum"), [("pipeline", False), ("single", False), ("pipeline", True)]
)
def test_with_mirrors_the_text_is_not_read_again(
    victims: LocalCluster, tmp_path: Path, strategy: str, optimum: bool
) -> None:
    options = ["--context", str(CONTEXT), "--devices", "b,c", "--strategy", strategy, "--mirror"]
    if strategy == "pipeline":
        # Stages that are about as long: for the shortest answer one device may have all layers, and the other no states.
        options += ["--objective", "throughput"]
    path = tiny_language(tmp_path / "tiny")
    if optimum:  # Its states are written in place, too. It might end a text soon.
        onnx.save(optimum_decoder(), path / "model.onnx")
        config = {"bos_token": "<s>", "chat_template": TEMPLATE}
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    victim = deploy(victims, path, NAME, *options)["devices"][0]
    (survivor,) = {"b", "c"} - {victim}

    def kill_when_mirrored() -> None:
        victims.wait(lambda: mirrored_bytes(victims, survivor), "the first rows to be mirrored")
        victims.agents[victim].kill()

    with client_of(victims) as client:
        assert mirrored_bytes(victims, survivor) == 0
        text, figures = read(ask(client), kill_when_mirrored)
        assert figures["devices"] == [survivor] and mirrored_bytes(victims, "a") == 0
        assert victims.status(victims.first)["sequences"]["resumed"] >= 1
        assert read(ask(client))[0] == text


def mirrored_bytes(cluster: LocalCluster, agent: str) -> int:
    """The memory of copies of other agents' states."""
    found: int = cluster.status(cluster.agents[agent])["sequences"]["mirrored_bytes"]
    return found


@pytest.mark.parametrize("optimum", [False, True])
def test_texts_at_the_same_time_are_what_they_are_alone(
    trio: LocalCluster, tmp_path: Path, optimum: bool
) -> None:
    def write(first: int) -> list[str]:
        with client_of(trio) as client:
            answer: Any = client.completions.create(
                model=NAME, prompt=[first, 20, 21], max_tokens=60, temperature=0, logprobs=0
            )
        return list(answer.choices[0].logprobs.tokens)

    def batches() -> int:
        return int(trio.status(trio.first)["sequences"]["batches"])

    deploy_tiny(trio, tmp_path / "tiny", optimum=optimum)
    try:
        alone, before = [write(first) for first in range(30, 34)], batches()
        assert len({tuple(tokens) for tokens in alone}) == 4

        def write_all() -> bool:
            """Write them at the same time; returns whether some tokens were read together: the devices get ready for
            that when nothing else is to be done."""
            with ThreadPoolExecutor(4) as pool:
                assert list(pool.map(write, range(30, 34))) == alone
            return batches() > before + 20

        trio.wait(write_all, "texts to be read together")
        (card,) = [one for one in trio.status(trio.first)["deployments"] if one["name"] == NAME]
        assert "take turns" not in card["note"]
    finally:
        undeploy(trio, NAME)


def test_a_client_that_hangs_up_frees_the_sequence(talkers: LocalCluster) -> None:
    with client_of(talkers) as client:
        answer = ask(client)
        next(chunk for chunk in answer if chunk.choices[0].delta.content)
        assert sequences(talkers, "a")["under_way"] == 1
        answer.close()
        assert talkers.wait(lambda: sequences(talkers, "a")["under_way"] == 0, "the sequence to be free")
    assert sequences(talkers, "a")["idle"] >= 1 and sequences(talkers, "a")["most"] == 4


@pytest.mark.parametrize("talkers", [TOO_LITTLE_FOR_BOTH_LAYERS], indirect=True, ids=["one layer each"])
def test_a_chat_by_the_command_and_the_memory_that_it_takes(talkers: LocalCluster, tmp_path: Path) -> None:
    command = ("chat", NAME, "hello", "--max-tokens", "12", "--seed", "3")
    for attempt in range(3):
        plan, before = epoch(talkers), {name: kept_here(talkers, name) for name in "abc"}
        document = talkers.agents["c"].type(*command)
        found = sequences(talkers, "c")
        held = {name: kept_here(talkers, name) - before[name] for name in "abc"}
        if epoch(talkers) == plan:
            break
        # A box was silent for a while. The states were carried to another plan, and what to expect is not known.
        undeploy(talkers, NAME)
        deploy_tiny(talkers, tmp_path / f"again-{attempt}", *TOO_LITTLE_FOR_BOTH_LAYERS)
    assert document["text"] and document["reason"] == "length"
    assert document["usage"]["completion_tokens"] == 12 and document["devices"] == ["b", "c"]
    assert (found["under_way"], found["idle"]) == (0, 1) and found["tokens_per_s"] > 0
    # What gateways say of the memory on other devices is what these devices hold.
    assert held == {"a": 0, **found["state_bytes"]} and min(held["b"], held["c"]) > 0

    state = ("--state", str(talkers.first.state))
    plain = subprocess.run(
        [sys.executable, "-m", "edgepart", *command, *state], capture_output=True, text=True, timeout=300
    )
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.strip() == document["text"].strip()


def epoch(cluster: LocalCluster) -> object:
    """The epoch of the plan that serves."""
    cards = cluster.status(cluster.first)["deployments"]
    return next(card["epoch"] for card in cards if card["name"] == NAME)


def kept_here(cluster: LocalCluster, agent: str) -> int:
    """The bytes of states that an agent's device keeps."""
    return int(cluster.status(cluster.agents[agent])["sequences"]["bytes"])


@pytest.mark.nightly
def test_the_chat_of_the_demo(victims: LocalCluster, tmp_path: Path) -> None:
    told: list[str] = []
    say = told.append
    document = tell_chat(victims, tiny_language(tmp_path / "tiny"), say, say, say)
    assert document["equal"] and len(document["text"]) >= ANSWER_TOKENS
    assert document["devices"]["before"] == ["b", "c"] and not victims.agents["c"].alive
    assert document["tokens_per_s"] > 0
    told.remove(" <c is killed>")
    assert "".join(told).count(document["text"]) == 2
    json.dumps(document, allow_nan=False)
