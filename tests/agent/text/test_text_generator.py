"""The text generator on devices that are faked: the text is that of a plain loop, whatever happens on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

import numpy as np
import pytest

from edgepart.agent.text import text_generator, token_sequences
from edgepart.agent.text.chat_template import TemplateProcess
from edgepart.agent.text.generation import (
    Begun,
    ChatPrompt,
    Ended,
    GenerationEvent,
    GenerationRequest,
    GivenSampling,
    Grown,
)
from edgepart.agent.text.text_generator import MODELS_KEPT, TextGenerator
from edgepart.agent.text.token_sequences import TokenSequences
from edgepart.agent.text.tokenizer import parse_tokenizer
from edgepart.agent.wire.control import Deployment, Version
from edgepart.agent.wire.inference import DeployOptions
from edgepart.planner.errors import (
    ContextExceeded,
    RequestError,
    RunError,
    Unavailable,
    UnknownDeployment,
)
from edgepart.planner.plans.plan import Plan
from tests.agent.text import fake_devices
from tests.agent.text.fake_devices import CONTEXT, VOCABULARY, FakeDevices, decoder_plan, greedy, logits_after
from tests.agent.text.small_tokenizer import small_tokenizer_json

TOKENIZER = parse_tokenizer(small_tokenizer_json().encode(), "tokenizer.json")
PROMPT = "the sea"
TOKENS = TOKENIZER.encode(PROMPT, special=True)
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.fixture(autouse=True)
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_sequences, "REPLAY_PAUSE_S", 0.0)


class FakeTemplates:
    """A TemplateProcess without a process, for the one template above."""

    def __init__(self) -> None:
        self.times: list[datetime] = []

    def render(
        self, template: str, prompt: ChatPrompt, *, now: datetime, bos: str | None, eos: str | None
    ) -> str:
        assert template == TEMPLATE and eos == "</s>"
        self.times.append(now)
        return f"{bos}" + "".join(f"{one['role']}: {one['content']}\n" for one in prompt.messages)


class House:
    """An agent with one deployment, `chat`; implements TextDeployments."""

    def __init__(self, *, in_place: bool = True) -> None:
        self.devices = FakeDevices(in_place=in_place)
        self.plans = {"chat": decoder_plan(in_place=in_place)}
        self.entries = [entry("chat")]
        self.files: dict[str, dict[str, bytes]] = {}
        """The files beside models that have others than usual, by the model's digest."""
        self.loads: list[str] = []
        self.failures: list[Exception] = []
        """What the next loads raise."""
        self.templates = FakeTemplates()
        made = self.devices
        self.sequences = TokenSequences(
            made,
            made.block,
            made.name,
            made.end,
            made.room,
            made.serving,
            made.resume,
            made.tolerance,
        )
        self.generator = TextGenerator(
            self, self.sequences, cast(TemplateProcess, self.templates), lambda: datetime(2026, 5, 4)
        )

    def deployments(self) -> Sequence[Deployment]:
        return self.entries

    def plan(self, name: str) -> Plan:
        if name not in self.plans:
            raise Unavailable("no plan")
        return self.plans[name]

    async def companions(self, deployment: Deployment) -> Mapping[str, bytes]:
        self.loads.append(deployment.model)
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop()
        return self.files.get(deployment.model, usual_files())

    async def ask(self, prompt: Any = PROMPT, model: str = "chat", **options: Any) -> list[GenerationEvent]:
        request = GenerationRequest(prompt, **{"sampling": GivenSampling(temperature=0), **options})
        async with aclosing(self.generator.generate(model, request)) as events:
            return [event async for event in events]


def usual_files(**config: Any) -> dict[str, bytes]:
    document = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE, **config}
    return {
        "tokenizer.json": small_tokenizer_json().encode(),
        "tokenizer_config.json": json.dumps(document).encode(),
    }


def entry(name: str, model: str = "digest-1") -> Deployment:
    return Deployment(
        name, model, 1, DeployOptions(context=CONTEXT, sequences=2, text=True), Version(1, "node")
    )


def run(story: Callable[[House], Coroutine[Any, Any, None]], *, in_place: bool = True) -> None:
    async def told() -> None:
        await story(House(in_place=in_place))

    asyncio.run(told())


def text_of(events: Sequence[GenerationEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Grown))


def tokens_of(events: Sequence[GenerationEvent]) -> list[int]:
    return [one.chosen.token for event in events if isinstance(event, Grown) for one in event.tokens]


def ended(events: Sequence[GenerationEvent]) -> Ended:
    last = events[-1]
    assert isinstance(last, Ended)
    return last


END = TOKENIZER.token_of("</s>") or -1


@pytest.mark.parametrize("losses", [[], [3], [8], [2, 9, 20]])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_greedy_text_is_that_of_a_plain_loop_whatever_devices_lose(
    in_place: bool, losses: list[int]
) -> None:
    async def story(house: House) -> None:
        house.devices.losses = losses
        events = await house.ask(max_tokens=12)
        expected = greedy(TOKENS, 12, [END])
        assert tokens_of(events) == expected and len(expected) == 12
        assert text_of(events) == TOKENIZER.decode(expected)
        assert ended(events).replays == house.sequences.replays == len(losses)

    run(story, in_place=in_place)


def test_the_first_event_is_the_begin_and_the_last_one_the_end() -> None:
    async def story(house: House) -> None:
        events = await house.ask(max_tokens=5)
        assert events[0] == Begun(len(TOKENS))
        assert all(isinstance(event, Grown) for event in events[1:-1])
        last = ended(events)
        assert (last.reason, last.prompt_tokens, last.generated_tokens) == ("length", len(TOKENS), 5)
        assert last.tokens_per_s > 0 and last.first_token_s > 0 and last.paused_s > 0
        assert house.sequences.speed("chat") == last.tokens_per_s

    run(story)


def test_the_next_turn_reads_only_what_is_new() -> None:
    async def story(house: House) -> None:
        first = await house.ask(tuple(TOKENS), max_tokens=4)
        assert ended(first).cached_tokens == 0
        longer = (*TOKENS, *tokens_of(first), 70, 71)
        house.devices.read.clear()
        second = await house.ask(longer, max_tokens=3)
        # The last token of an answer is told, and not read.
        assert ended(second).cached_tokens == len(TOKENS) + 3
        assert [token for _, _, token in house.devices.read] == [
            *longer[-3:],
            *greedy(longer, 3)[:2],
        ]
        assert tokens_of(second) == greedy(longer, 3)

    run(story)


def test_a_stop_text_ends_the_text_before_it() -> None:
    async def story(house: House) -> None:
        whole = text_of(await house.ask(max_tokens=12))
        stop = whole[3:5]
        events = await house.ask(max_tokens=12, stop=(stop,))
        assert text_of(events) == whole[: whole.index(stop)]
        assert ended(events).reason == "stop" and ended(events).generated_tokens < 12

    run(story)


def test_a_token_that_ends_texts_ends_the_text_and_is_not_told() -> None:
    async def story(house: House) -> None:
        expected = greedy(TOKENS, 12)
        house.files["digest-1"] = usual_files() | {
            "generation_config.json": json.dumps({"eos_token_id": [expected[5]]}).encode()
        }
        events = await house.ask(max_tokens=12)
        assert tokens_of(events) == expected[:5] and ended(events).reason == "stop"
        assert ended(events).generated_tokens == 5

    run(story)


def test_the_token_that_the_tokenizer_names_as_the_end_ends_the_text() -> None:
    async def story(house: House) -> None:
        text = greedy(TOKENS, 12)
        name = json.loads(small_tokenizer_json())["model"]["vocab"]
        called = next(key for key, token in name.items() if token == text[3])
        house.files["digest-1"] = usual_files(eos_token=called)
        assert tokens_of(await house.ask(max_tokens=12)) == text[: text.index(text[3])]

    run(story)


@pytest.mark.parametrize(("asked", "generated"), [(1, 1), (7, 7), (None, CONTEXT - len(TOKENS))])
def test_a_text_has_as_many_tokens_as_are_asked_for_or_fit(asked: int | None, generated: int) -> None:
    async def story(house: House) -> None:
        events = await house.ask(max_tokens=asked)
        assert (ended(events).reason, ended(events).generated_tokens) == ("length", generated)
        assert tokens_of(events) == greedy(TOKENS, generated)

    run(story)


def test_a_prompt_has_to_leave_room_for_an_answer() -> None:
    async def story(house: House) -> None:
        assert ended(await house.ask((7,) * (CONTEXT - 1))).generated_tokens == 1
        with pytest.raises(ContextExceeded, match=f"{CONTEXT} tokens, and 'chat' takes {CONTEXT} tokens"):
            await house.ask((7,) * CONTEXT)
        assert house.sequences.count("chat") == (0, 1)

    run(story)


def test_probabilities_are_those_of_the_model() -> None:
    async def story(house: House) -> None:
        events = await house.ask(max_tokens=3, logprobs=2)
        told = [one for event in events if isinstance(event, Grown) for one in event.tokens]
        tokens = list(TOKENS)
        for one in told:
            logits = logits_after(tokens).astype(np.float64)
            logprobs = logits - np.log(np.exp(logits).sum())
            best = np.argsort(-logprobs)[:2]
            assert [given.token for given in one.likely] == best.tolist()
            assert [given.logprob for given in one.likely] == pytest.approx(logprobs[best].tolist())
            assert one.chosen == one.likely[0]
            assert one.chosen.text == TOKENIZER.decode([one.chosen.token], special=True)
            tokens.append(one.chosen.token)
        assert len(told) == 3

    run(story)


def test_a_seed_gives_the_same_text_again_and_other_seeds_others() -> None:
    async def story(house: House) -> None:
        async def sample(seed: int | None) -> tuple[int, ...]:
            return tuple(
                tokens_of(await house.ask(max_tokens=8, sampling=GivenSampling(temperature=1.0, seed=seed)))
            )

        house.devices.losses = [5, 20]
        assert await sample(5) == await sample(5)
        assert house.sequences.replays == 2
        assert len({await sample(seed) for seed in (5, 6, None, None)}) == 4

    run(story)


def test_a_chat_is_what_the_template_makes_of_it() -> None:
    async def story(house: House) -> None:
        chat = ChatPrompt(({"role": "user", "content": "the boat"},))
        expected = TOKENIZER.encode("<s>user: the boat\n", special=False)
        events = await house.ask(chat, max_tokens=6)
        assert events[0] == Begun(len(expected)) and expected[0] == TOKENIZER.token_of("<s>")
        assert tokens_of(events) == greedy(expected, 6)
        assert house.templates.times == [datetime(2026, 5, 4)]

    run(story)


def test_a_chat_with_a_model_without_template_is_refused() -> None:
    async def story(house: House) -> None:
        house.files["digest-1"] = {"tokenizer.json": small_tokenizer_json().encode()}
        with pytest.raises(RequestError, match=r"no chat template.*/v1/completions"):
            await house.ask(ChatPrompt(({"role": "user", "content": "hello"},)))
        assert tokens_of(await house.ask(max_tokens=2)) == greedy(TOKENS, 2)

    run(story)


@pytest.mark.parametrize(("adds", "begins"), [(True, True), (None, True), (False, False)])
def test_a_text_gets_the_begin_token_unless_the_files_say_otherwise(adds: bool | None, begins: bool) -> None:
    async def story(house: House) -> None:
        house.files["digest-1"] = usual_files(add_bos_token=adds)
        await house.ask(max_tokens=1)
        read = [token for _, _, token in house.devices.read]
        assert read == TOKENIZER.encode(PROMPT, special=begins) and (read[0] == 0) is begins

    run(story)


@pytest.mark.parametrize("tokens", [(5, VOCABULARY), (5, -1, 6)])
def test_tokens_that_the_model_has_not_are_refused(tokens: tuple[int, ...]) -> None:
    async def story(house: House) -> None:
        with pytest.raises(RequestError, match=f"token {tokens[1]} .*{VOCABULARY}"):
            await house.ask(tokens)
        assert house.devices.read == []

    run(story)


def test_an_empty_prompt_is_refused() -> None:
    async def story(house: House) -> None:
        house.files["digest-1"] = usual_files(add_bos_token=False)
        for prompt in ("", ()):
            with pytest.raises(RequestError, match="no tokens"):
                await house.ask(prompt)

    run(story)


def test_options_that_cannot_be_are_refused_before_anything_is_read() -> None:
    async def story(house: House) -> None:
        with pytest.raises(RequestError, match="temperature"):
            await house.ask(sampling=GivenSampling(temperature=9.0))
        with pytest.raises(RequestError, match="stop text"):
            await house.ask(stop=("",))
        assert house.devices.read == [] and house.sequences.count("chat") == (0, 0)

    run(story)


def test_closing_in_the_middle_frees_the_sequence() -> None:
    async def story(house: House) -> None:
        request = GenerationRequest(PROMPT, GivenSampling(temperature=0))
        async with aclosing(house.generator.generate("chat", request)) as events:
            async for event in events:
                assert house.sequences.count("chat") == (1, 0)
                if isinstance(event, Grown):
                    break
        assert house.sequences.count("chat") == (0, 1)
        assert tokens_of(await house.ask(max_tokens=8)) == greedy(TOKENS, 8)

    run(story)


def test_an_error_of_a_step_is_told_and_frees_the_sequence() -> None:
    async def story(house: House) -> None:
        house.devices.failure = RunError("the devices have no memory")
        with pytest.raises(RunError, match="no memory"):
            await house.ask()
        assert house.sequences.count("chat") == (0, 1)

    run(story)


def test_several_prompts_wait_for_one_load_and_one_that_failed_is_tried_again() -> None:
    async def story(house: House) -> None:
        house.failures = [Unavailable("nobody has it")]
        with pytest.raises(Unavailable, match="nobody"):
            await house.ask()
        one, other = await asyncio.gather(house.ask(max_tokens=6), house.ask((9, 8), max_tokens=6))
        assert (tokens_of(one), tokens_of(other)) == (greedy(TOKENS, 6), greedy((9, 8), 6))
        assert house.loads == ["digest-1"] * 2

    run(story)


def test_the_tokenizer_that_was_used_longest_ago_is_loaded_again() -> None:
    async def story(house: House) -> None:
        house.devices.model = None
        names = [f"chat-{n}" for n in range(MODELS_KEPT + 1)]
        house.entries = [entry(name, name) for name in names]
        house.plans = {name: decoder_plan(model=name) for name in names}
        for name in (*names[:-1], names[0], names[-1], names[0], names[1]):
            await house.ask(model=name, max_tokens=1)
        assert house.loads == [*names, names[1]]

    run(story)


def test_a_model_without_tokenizer_is_not_available() -> None:
    async def story(house: House) -> None:
        house.files["digest-1"] = {"config.json": b"{}"}
        with pytest.raises(Unavailable, match="tokenizer of 'chat'"):
            await house.ask()

    run(story)


def test_a_model_that_is_deployed_again_is_loaded_again_and_starts_anew() -> None:
    async def story(house: House) -> None:
        await house.ask(max_tokens=4)
        house.entries = [entry("chat", "digest-2")]
        # Until the new model's plan serves, the old one answers, with its own tokenizer.
        assert tokens_of(await house.ask(max_tokens=4)) == greedy(TOKENS, 4)
        assert house.loads == ["digest-1"]
        house.plans = {"chat": decoder_plan(model="digest-2")}
        house.devices.model = "digest-2"
        events = await house.ask(max_tokens=4)
        assert house.loads == ["digest-1", "digest-2"]
        assert tokens_of(events) == greedy(TOKENS, 4, model="digest-2") != greedy(TOKENS, 4)
        assert (ended(events).cached_tokens, ended(events).replays) == (0, 0)
        assert house.devices.ended == [("chat", "gateway/boot/1")]

    run(story)


def test_a_text_under_way_ends_with_an_error_when_another_model_takes_its_name() -> None:
    async def story(house: House) -> None:
        request = GenerationRequest(PROMPT, GivenSampling(temperature=0))
        with pytest.raises(Unavailable, match="deployed again"):
            async for event in house.generator.generate("chat", request):
                if isinstance(event, Grown):
                    house.devices.model = "digest-2"
        assert house.sequences.count("chat")[0] == 0

    run(story)


@pytest.mark.parametrize("asked", ["by a list", "by a prompt"])
def test_what_is_undeployed_is_unknown_and_its_sequences_are_forgotten(asked: str) -> None:
    async def story(house: House) -> None:
        await house.ask(max_tokens=2)
        house.entries = []
        if asked == "by a list":
            assert house.generator.models() == []
        else:
            with pytest.raises(UnknownDeployment, match="'chat'"):
                await house.ask()
        assert house.devices.ended == [("chat", "gateway/boot/1")]
        assert house.sequences.count("chat") == (0, 0)

    run(story)


def test_a_deployment_without_a_plan_is_not_available() -> None:
    async def story(house: House) -> None:
        house.plans = {}
        with pytest.raises(Unavailable, match="no plan"):
            await house.ask()

    run(story)


def test_a_text_ends_well_although_its_plan_is_lost_at_its_end() -> None:
    async def story(house: House) -> None:
        house.plans["chat"] = replace(house.plans["chat"], programs={"pi": None})  # type: ignore[dict-item]
        request = GenerationRequest(PROMPT, GivenSampling(temperature=0), max_tokens=3)
        assert ended(await house.ask(max_tokens=3)).devices == ("pi",)
        events: list[GenerationEvent] = []
        async for event in house.generator.generate("chat", request):
            house.plans = {}
            events.append(event)
        assert ended(events).devices == () and tokens_of(events) == greedy(TOKENS, 3)

    run(story)


def test_prompts_wait_for_their_turn_and_are_refused_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(house: House) -> None:
        house.devices.rooms = 1
        first, second = await asyncio.gather(house.ask(max_tokens=5), house.ask((9, 8), max_tokens=5))
        assert (tokens_of(first), tokens_of(second)) == (greedy(TOKENS, 5), greedy((9, 8), 5))
        monkeypatch.setattr(text_generator, "WAIT_S", 0.0)
        request = GenerationRequest(PROMPT, GivenSampling(temperature=0))
        async with aclosing(house.generator.generate("chat", request)) as events:
            assert isinstance(await anext(events), Begun)
            with pytest.raises(Unavailable, match="generates 1 texts already"):
                await house.ask((9, 8))

    run(story)


def test_the_list_of_models_says_what_is_deployed_since_when() -> None:
    async def story(house: House) -> None:
        before = house.generator.models()
        house.entries = [entry("chat"), entry("other", "digest-2")]
        after = house.generator.models()
        assert [(one.name, one.context) for one in after] == [("chat", CONTEXT), ("other", CONTEXT)]
        assert after[0] == before[0] and before[0].created_s > 1_700_000_000

    run(story)


WAYS = [
    GivenSampling(temperature=0),
    GivenSampling(temperature=0, repetition_penalty=1.3),
    GivenSampling(temperature=0, presence_penalty=-2.0),
    GivenSampling(temperature=0.2, top_p=0.9),
    GivenSampling(temperature=1.0, top_p=0.9),
    GivenSampling(temperature=0.8, top_k=20, top_p=0.5),
    GivenSampling(temperature=1.0, min_p=0.2),
    GivenSampling(temperature=1.0, top_k=5, frequency_penalty=0.7),
    GivenSampling(temperature=1.0),
]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("sampling", WAYS, ids=str)
def test_a_text_is_the_same_whether_likely_logits_come_or_all(
    sampling: GivenSampling, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[list[int], list[float]]] = []
    usual = replace(sampling, seed=7)

    async def story(house: House) -> None:
        house.devices.losses = [9, 14]
        events = await house.ask(max_tokens=30, sampling=usual, logprobs=2)
        chosen = [one.chosen for event in events if isinstance(event, Grown) for one in event.tokens]
        told.append(([one.token for one in chosen], [one.logprob for one in chosen]))
        assert ended(events).replays == 2 and not house.devices.losses[2:]
        assert house.sequences.count("chat") == (0, 1)

    run(story, in_place=in_place)
    monkeypatch.setattr(text_generator, "count_likely", lambda *_: 0)
    run(story, in_place=in_place)
    (tokens, logprobs), (whole, expected) = told
    assert tokens == whole and logprobs == pytest.approx(expected, abs=2e-5)


def test_a_step_is_made_again_where_the_likely_logits_are_too_few() -> None:
    """These logits are so flat that nine tenths of the probability are with more tokens than are asked for."""

    async def story(house: House) -> None:
        sampling = GivenSampling(temperature=1.0, top_p=0.9, seed=3)
        tokens = tokens_of(await house.ask(max_tokens=6, sampling=sampling))
        first = len(TOKENS) - 1
        asked = house.devices.likely
        assert asked[:first] == [1] * first, "Of what is said within the prompt nothing is needed."
        assert asked[first] == 128 and 0 in asked[first:] and len(tokens) == 6
        made = house.devices.read[first:]
        assert made[0] == made[1], "The same step, of the same token at the same position."
        assert len(made) == len(set(made)) + asked[first:].index(0), "Later ones are not made twice."

    run(story)


def test_logits_that_are_no_numbers_end_a_text_as_if_all_had_come(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(tokens: Sequence[int], model: str) -> Any:
        logits = logits_after(tokens, model)
        if len(tokens) > len(TOKENS) + 3:
            logits[7] = np.nan
        return logits

    async def story(house: House) -> None:
        with pytest.raises(RunError, match="1 of the model's 300 logits are not numbers"):
            await house.ask(max_tokens=30)
        assert house.sequences.count("chat") == (0, 1)

    monkeypatch.setattr(fake_devices, "logits_after", odd)
    run(story)
