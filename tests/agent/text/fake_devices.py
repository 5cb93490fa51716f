"""Devices without a cluster: they keep the tokens of each sequence as its states. The logits follow from all tokens that a
sequence has, so that a token that is lost or read twice shows in the text."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgepart.agent.serving.requester import AnswerInfo
from edgepart.agent.wire.inference import NO_EPOCH, SequenceStep
from edgepart.agent.wire.likely_entries import keep_likely
from edgepart.planner.errors import StateLost
from edgepart.planner.plans.plan import KeptState, Plan, ValueInfo
from edgepart.planner.region import Array

VOCABULARY = 300
CONTEXT = 48
HEADS, SIZE = 2, 4


def decoder_plan(
    *, in_place: bool = True, model: str = "digest-1", context: int = CONTEXT, block: int = 0, batch: int = 0
) -> Plan:
    """The plan of a decoder in the style of ONNX Runtime's builder, or in that of optimum. It reads blocks of so many
    tokens, and a token in each of so many sequences; 0 stands for single tokens only."""
    past = context if in_place else context - 1
    inputs = [ValueInfo("input_ids", "int64", (1, 1)), ValueInfo("attention_mask", "int64", (1, context))]
    if not in_place:
        inputs.append(ValueInfo("position_ids", "int64", (1, 1)))
    states = tuple(
        KeptState(
            ValueInfo(f"past_key_values.0.{kind}", "float", (1, HEADS, past, SIZE)),
            f"present.0.{kind}",
            None if in_place else 2,
            in_place,
        )
        for kind in ("key", "value")
    )
    logits = ValueInfo("logits", "float", (1, 1, VOCABULARY))
    prefill = None
    if block:
        total = context if in_place else past + block
        rows = [replace(info, shape=(1, block if info.shape == (1, 1) else total)) for info in inputs]
        prefill = Plan(model, "by hand", {}, (), tuple(rows), (), states=states)
    many = None
    if batch:
        rows = [replace(info, shape=(batch, *(info.shape or ())[1:])) for info in inputs]
        many = Plan(model, "by hand", {}, (), tuple(rows), (logits,), states=states)
    plan = Plan(model, "by hand", {}, (), tuple(inputs), (logits,), states=states)
    return replace(plan, prefill=prefill, batch=many)


def logits_after(tokens: Sequence[int], model: str = "digest-1") -> Array:
    """What the model says once it has read these tokens."""
    seed = [len(model), *model.encode(), *tokens]
    return np.random.default_rng(seed).standard_normal(VOCABULARY).astype(np.float32)


def greedy(prompt: Sequence[int], count: int, ends: Sequence[int] = (), model: str = "digest-1") -> list[int]:
    """The tokens that follow a prompt: a plain twin of the generator."""
    tokens = list(prompt)
    for _ in range(count):
        token = int(logits_after(tokens, model).argmax())
        if token in ends:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


class FakeDevices:
    """Implements RunStep, and what TokenSequences asks for beside it."""

    def __init__(self, *, in_place: bool = True) -> None:
        self.in_place = in_place
        self.model: str | None = "digest-1"
        """The model that they compute; None while no plan serves."""
        self.states: dict[str, list[int]] = {}
        """The tokens that each sequence has had, by its name."""
        self.read: list[tuple[str, int, int]] = []
        """The steps made: sequence, position and token."""
        self.blocks: list[int] = []
        """The numbers of tokens of the steps that read several."""
        self.ended: list[tuple[str, str]] = []
        self.together: list[int] = []
        """The numbers of tokens of the requests that read one in each of several sequences."""
        self.side_by_side = True
        """Whether they have memory for several sequences side by side."""
        self.error_together = 0.0
        """How far off the logits of a request are that reads a token in each of several sequences, as a part of them."""
        self.epoch = NO_EPOCH
        """The epoch of the plan that they compute."""
        self.losses: list[int] = []
        """The numbers of steps, counted over all, before which all states are lost."""
        self.failure: Exception | None = None
        """What the next step raises once it was computed, as if its answer were lost."""
        self.likely: list[int] = []
        """How many likely entries each answer was asked for; 0 for whole logits."""
        self.gate: asyncio.Event | None = None
        """Steps wait for it once they were computed, where there is one."""
        self.resumes = 0
        """How often they were asked for states that others have."""
        self.step_s = 0.0
        self.rooms = 2
        self.copying: list[int] = []
        """The numbers of steps before which all states are copied."""
        self.copies: dict[str, tuple[int, list[int]]] = {}
        """The revisions and tokens of states that were copied."""
        self.lost_blocks: list[int] = []
        """The numbers of blocks, counted over all, that do not come: nobody is told, and the states are as before."""
        self.moves: list[int] = []
        """The numbers of steps, counted over all, from which on the other replica makes them, with its states."""
        self._side = 0
        self._before: dict[str, int] = {}
        """The position at which the last step of each sequence began: devices have the states before it too."""
        self._revisions: dict[str, int] = {}
        """The revision of the last step of each sequence in `states`."""
        self._elsewhere: tuple[dict[str, list[int]], dict[str, int]] = {}, {}
        """The states and revisions of the other replica."""
        self._named = 0
        self.asked = self.blocks_asked = 0

    def name(self) -> str:
        self._named += 1
        return f"gateway/boot/{self._named}"

    def end(self, deployment: str, name: str) -> None:
        self.ended.append((deployment, name))
        self.states.pop(name, None)
        self._elsewhere[0].pop(name, None)

    @property
    def _info(self) -> AnswerInfo:
        return AnswerInfo(self.epoch, 0, "by hand", side=self._side)

    async def resume(self, deployment: str, name: str, revision: int, position: int, since: int) -> int:
        self.resumes += 1
        copied, tokens = self.copies.get(name, (0, []))
        await asyncio.sleep(0)
        if copied != revision:
            return 0
        self.states[name], self._revisions[name] = tokens[:position], revision
        return len(self.states[name])

    def room(self, _: str) -> int:
        return self.rooms

    def tolerance(self, _: str) -> float | None:
        return None

    def serving(self, _: str) -> str | None:
        return self.model

    async def __call__(
        self,
        deployment: str,
        inputs: Mapping[str, Any],
        deadline_s: float,
        outputs: Sequence[str] = (),
        step: SequenceStep | None = None,
        likely: int = 0,
    ) -> tuple[dict[str, Any], AnswerInfo]:
        assert step is not None and outputs == ("logits",) and deadline_s > 0
        await asyncio.sleep(self.step_s)
        self._count()
        logits = self._step(inputs, step)
        if self.gate is not None:
            await self.gate.wait()
        self._fail()
        return self._answer(logits.reshape(1, 1, -1), likely)

    def _step(self, inputs: Mapping[str, Any], step: SequenceStep) -> Array:
        """Make a step that reads one token; returns what the model says then."""
        assert step.after == step.position + 1
        token = int(inputs["input_ids"][0, 0])
        self._check(inputs, step.position)
        if not self._fits(step):
            raise StateLost(f"what is kept does not go with a step that begins at {step.position}")
        kept = self.states.setdefault(step.sequence, [])
        kept[step.position :] = [token]
        self._revisions[step.sequence], self._before[step.sequence] = step.revision, step.position
        self.read.append((step.sequence, step.position, token))
        return logits_after(kept, self.model or "")

    def _fits(self, step: SequenceStep) -> bool:
        """Whether what is kept are the tokens before the step."""
        known = len(self.states.get(step.sequence, ()))
        revision = self._revisions.get(step.sequence, step.revision)
        if revision != step.revision:
            known = min(known, step.since) if revision + 1 == step.revision else 0
        kept = len(self.states.get(step.sequence, ()))
        begins = self.in_place or step.position in (0, kept, self._before.get(step.sequence))
        return step.position <= known and begins

    def _answer(self, logits: Array, likely: int) -> tuple[dict[str, Any], AnswerInfo]:
        self.likely.append(likely)
        return {"logits": keep_likely(logits, likely)}, self._info

    def _fail(self) -> None:
        if (failure := self.failure) is not None:
            self.failure = None
            raise failure

    async def block(
        self,
        deployment: str,
        inputs: Mapping[str, Any],
        deadline_s: float,
        outputs: tuple[str, ...],
        *,
        step: SequenceStep | None = None,
        prefill: bool = False,
        steps: tuple[SequenceStep, ...] = (),
        likely: int = 0,
    ) -> tuple[dict[str, Any], AnswerInfo]:
        """Make a step that reads a block of tokens, if it fits; nobody is told otherwise. With `steps`, make a step in each
        of several sequences."""
        if steps:
            return await self._together(inputs, steps, likely)
        assert step is not None and outputs == () and prefill and deadline_s > 0
        if self.gate is not None:
            await self.gate.wait()
        self._count()
        self.blocks_asked += 1
        count, rows = step.after - step.position, inputs["input_ids"].shape[1]
        mask = inputs["attention_mask"][0]
        first, ones = (0, step.position + rows) if self.in_place else (-rows - step.position, step.after)
        assert mask[first:][:ones].all() and mask.sum() == ones
        tokens = inputs["input_ids"][0, :count].tolist()
        if self.blocks_asked in self.lost_blocks:
            return {}, self._info
        if self._fits(step):
            kept = self.states.setdefault(step.sequence, [])
            kept[step.position :] = tokens
            self._revisions[step.sequence], self._before[step.sequence] = step.revision, step.position
            self.read += [(step.sequence, step.position + n, token) for n, token in enumerate(tokens)]
            self.blocks.append(count)
        return {}, self._info

    async def _together(
        self, inputs: Mapping[str, Any], steps: tuple[SequenceStep, ...], likely: int
    ) -> tuple[dict[str, Any], AnswerInfo]:
        self._count()
        made = [(place, one) for place, one in enumerate(steps) if one.sequence]
        assert all(one.sequence.endswith(f".{place}") for place, one in made)
        assert len({one.sequence.rpartition("/")[0] for _, one in made}) == 1
        if not self.side_by_side or any(one.sequence not in self.states for _, one in made):
            raise StateLost("they are not kept side by side")
        logits = np.zeros((len(steps), 1, VOCABULARY), np.float32)
        for place, one in made:
            right = self._step({name: of[place : place + 1] for name, of in inputs.items()}, one)
            logits[place, 0] = right * np.float32(1 + self.error_together)
        self.together.append(len(made))
        row = made[0][1].sequence.rpartition("/")[0]
        for place, one in enumerate(steps):
            if not one.sequence:
                self._overwrite(row, place, int(inputs["attention_mask"][place].sum()) - 1)
        if self.gate is not None:
            await self.gate.wait()
        self._fail()
        return self._answer(logits, likely)

    def _overwrite(self, row: str, place: int, position: int) -> None:
        """Write a token that nobody said where the sequence in this place has the row of number `position`."""
        for name, kept in self.states.items():
            if name.startswith(f"{row}/") and name.endswith(f".{place}"):
                kept[position : position + 1] = [-1] if position < len(kept) else []

    def _count(self) -> None:
        self.asked += 1
        if self.asked in self.copying:
            self.copies |= {
                name: (self._revisions[name], list(tokens)) for name, tokens in self.states.items()
            }
        if self.asked in self.losses:
            self.states.clear()
        if self.asked in self.moves:
            here = self.states, self._revisions
            (self.states, self._revisions), self._elsewhere = self._elsewhere, here
            self._side = 1 - self._side

    def _check(self, inputs: Mapping[str, Any], position: int) -> None:
        """The mask has a one for each token up to this one, at the side where the style has them."""
        mask = inputs["attention_mask"][0]
        ones = mask[: position + 1] if self.in_place else mask[-position - 1 :]
        assert ones.all() and mask.sum() == position + 1
        assert self.in_place or inputs["position_ids"][0, 0] == position
