"""Trials of text generation: are the answers those of one ONNX Runtime session? Door: the laboratory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from tritonclient import http as triton
from tritonclient.utils import np_to_triton_dtype

from benchmarks.generation_bare import BareDecoder
from benchmarks.generation_hosts import Deployed, Say, TextHosts, text_hosts
from benchmarks.generation_prompts import prompts
from benchmarks.generation_report import Figure, Likeness, at_least, at_most, judge_texts, known, likeness
from benchmarks.models.inputs import sound
from benchmarks.models.model import package
from benchmarks.serving import client_of, deploy, settle
from edgepart.agent.execution.runtime.cpu_sessions import session_options
from edgepart.agent.wire.inference import DeployOptions
from edgepart.cli.local import LocalAgent
from edgepart.client.target import AgentTarget
from edgepart.planner.region import Array

FACTORS = (1.0, 2.0, 2.0, 4.0)
"""How slow the unequal hosts are."""
SPLITS = ("single", "auto", "pipeline", "bbgrap", "tofu")
FLOAT32 = ("smollm2_genai_float32", "smollm2_optimum_float32")
INT8 = "smollm2_genai_int8"
BLOCK = 64
"""Tokens that one session reads at once, to be compared with itself."""
VAD = "silero_vad_op18_ifless.onnx"
VAD_SAMPLES = 576


@dataclass(frozen=True)
class AnswerSettings:
    """How much is tried."""

    prompts: int = 20
    tokens: int = 200
    hosts: tuple[int, ...] = (1, 2, 3, 4)
    splits: tuple[str, ...] = SPLITS
    steps: int = 10_000
    """Steps of the voice activity detector."""


class Steps:
    """Sends the steps of sequences to an agent by the Open Inference Protocol. A context manager."""

    def __init__(self, agent: LocalAgent, model: str) -> None:
        target = AgentTarget(agent.url, agent.state)
        self._headers = {} if target.is_local else {"Authorization": f"Bearer {target.credential()}"}
        self._client: Any = triton.InferenceServerClient(
            target.url.partition("//")[2], connection_timeout=60, network_timeout=120
        )
        self._model = model

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def step(
        self, sequence: str | int, inputs: Mapping[str, Array], output: str, *, start: bool, end: bool = False
    ) -> Array:
        """Make a step, and return one of its outputs."""
        values = []
        for name, value in inputs.items():
            one = triton.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
            one.set_data_from_numpy(value)
            values.append(one)
        answer = self._client.infer(
            self._model,
            values,
            outputs=[triton.InferRequestedOutput(output)],
            headers=self._headers,
            sequence_id=sequence,
            sequence_start=start,
            sequence_end=end,
        )
        found: Array = answer.as_numpy(output)
        return found


def same_answers(settings: AnswerSettings, say: Say) -> Iterator[Figure]:
    """Compare float32's texts with those of one session, on each number of hosts, by each way of splitting."""
    for count in settings.hosts:
        with text_hosts(FACTORS[:count], say) as made:
            for language in FLOAT32:
                wanted: list[list[int]] = []
                for split in settings.splits if count > 1 else ("single",):
                    if count > 1 and split == "single":
                        continue
                    with made.serving(language, context=_room(settings), strategy=split) as deployed:
                        tokens = [deployed.encode(text) for text in prompts(settings.prompts)]
                        wanted = wanted or _alone(deployed, tokens, settings)
                        told = made.ask(deployed, tokens, settings.tokens)
                        case = f"{language} on {_used(deployed, count)} by {split}"
                        texts = [deployed.texts(answer) for answer in wanted]
                        yield judge_texts("same-answer", case, told, texts)


def _room(settings: AnswerSettings) -> int:
    return 64 * (settings.tokens // 64 + 2)


def _alone(deployed: Deployed, tokens: Sequence[Sequence[int]], settings: AnswerSettings) -> list[list[int]]:
    decoder = BareDecoder(deployed.folder, _room(settings))
    return [decoder.continued(prompt, settings.tokens).tokens for prompt in tokens]


def _used(deployed: Deployed, count: int) -> str:
    used = len(deployed.devices)
    return f"{count} host{'s' * (count > 1)}" + (f" ({used} used)" if used != count else "")


def quantised_answers(settings: AnswerSettings, say: Say) -> Iterator[Figure]:
    """Compare int8's logits with those of one session, with the same tokens read, and with those of a second time.

    Activations are rounded to 8 bits, so that a difference in a float's last bit may grow. How far one session is from
    itself, if it reads tokens in blocks instead of one by one, is measured too."""
    part = "quantised"
    with text_hosts(FACTORS[:2], say) as made:
        own: Likeness | None = None
        for split in [one for one in settings.splits if one != "single"]:
            with made.serving(INT8, context=_room(settings), strategy=split) as deployed:
                decoder = BareDecoder(deployed.folder, _room(settings))
                texts = []
                for text in prompts(min(settings.prompts, 4)):
                    prompt = deployed.encode(text)
                    texts.append([*prompt, *decoder.continued(prompt, settings.tokens).tokens])
                wanted = [decoder.forced(tokens) for tokens in texts]
                if own is None:
                    own = likeness([decoder.forced_in_blocks(tokens, BLOCK) for tokens in texts], wanted)
                    yield from _known_likeness(f"{INT8}: one session, by blocks of {BLOCK} tokens", own)
                first, second = (
                    [_forced(made, deployed, tokens, settings) for tokens in texts] for _ in range(2)
                )
            case, found = f"{INT8} on {_used(deployed, 2)} by {split}", likeness(first, wanted)
            most = max(0.03, own.largest_difference)
            yield at_most(
                part, f"{case}: largest difference of logits", found.largest_difference, most, "{:.1%}"
            )
            yield at_least(part, f"{case}: same most likely token", found.same_share, 0.95, "{:.1%}")
            yield known(part, f"{case}: the same, in the text with the fewest", f"{found.least_share:.1%}")
            equal = all(one.tobytes() == other.tobytes() for one, other in zip(first, second, strict=True))
            said = "equal bits" if equal else "different bits"
            yield Figure(part, f"{case}: the same plan twice", said, "equal bits", equal)


def _known_likeness(case: str, found: Likeness) -> Iterator[Figure]:
    yield known(
        "quantised",
        f"{case}: largest difference of logits from one by one",
        f"{found.largest_difference:.1%}",
    )
    shares = f"{found.same_share:.1%}; {found.least_share:.1%} in the text with the fewest"
    yield known("quantised", f"{case}: same most likely token", shares)


def _forced(made: TextHosts, deployed: Deployed, tokens: Sequence[int], settings: AnswerSettings) -> Array:
    """Return the logits that the hosts give after each of the tokens."""
    rows = []
    with Steps(made.made.running.first, deployed.name) as steps:
        for position, token in enumerate(tokens):
            mask = np.zeros((1, _room(settings)), np.int64)
            mask[:, : position + 1] = 1
            inputs: dict[str, Array] = {"input_ids": np.array([[token]]), "attention_mask": mask}
            last = position + 1 == len(tokens)
            logits = steps.step(1, inputs, "logits", start=position == 0, end=last)
            rows.append(logits.reshape(-1))
    return np.stack(rows)


def detector_answers(settings: AnswerSettings, say: Say) -> Iterator[Figure]:
    """Compare the steps of a voice activity detector with those of one session, bit for bit."""
    path = package("silero_vad") / "data" / VAD
    with text_hosts((1.0, 2.0), say) as made:
        for split in ("auto", "pipeline"):
            different = _detect(made, path, split, settings.steps)
            found = f"{settings.steps - different} of {settings.steps} steps"
            case = f"{VAD} on 2 hosts by {split}, by sequence_id"
            yield Figure("detector", case, found, "all equal, bit for bit", different == 0)


def _detect(made: TextHosts, path: Path, split: str, count: int) -> int:
    """Return how many steps had another answer."""

    async def begin() -> None:
        async with client_of(made.made.running.first) as client:
            shapes = {"input": (1, VAD_SAMPLES), "state": (2, 1, 128), "sr": ()}
            await deploy(client, path, "vad", DeployOptions(shapes=shapes, strategy=split))
            await settle(client, "vad")

    async def end() -> None:
        async with client_of(made.made.running.first) as client:
            await client.undeploy("vad")

    asyncio.run(begin())
    session: Any = ort.InferenceSession(str(path), session_options(1), providers=["CPUExecutionProvider"])
    state, rate = np.zeros((2, 1, 128), np.float32), np.array(16000, np.int64)
    heard, different = sound(0, VAD_SAMPLES + 256 * count).astype(np.float32), 0
    try:
        with Steps(made.made.running.first, "vad") as steps:
            for step in range(count):
                window = np.ascontiguousarray(heard[256 * step :][:VAD_SAMPLES])[None]
                wanted, state = session.run(
                    ["output", "stateN"], {"input": window, "state": state, "sr": rate}
                )
                inputs: dict[str, Array] = {"input": window, "sr": rate}
                got = steps.step(7, inputs, "output", start=step == 0, end=step + 1 == count)
                different += got.tobytes() != wanted.tobytes()
    finally:
        asyncio.run(end())
    return different
