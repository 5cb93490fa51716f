"""Decoder: how a model that generates text is fed, found from the plan's inputs, outputs and states. Rules.

A step reads one token, or a block of tokens of a prompt. Models with caches that are written in place (as ONNX Runtime's
builder exports them, and as those of optimum are rewritten) count rows from the left: the mask has ones up to the present
row. Models that put their past before the new rows, and could not be rewritten, get a past of fixed length, whose right end
counts: the mask has ones there, and for the new tokens behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgepart.agent.wire.dtypes import element_dtype
from edgepart.agent.wire.likely_entries import LikelyEntries
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import RequestError, RunError
from edgepart.planner.plans.plan import IN_PLACE_ROWS, KeptState, Plan, ValueInfo
from edgepart.planner.region import Array

Logits = Array | LikelyEntries
"""A number for each token of the vocabulary, or the most likely entries of these numbers."""

TOKENS, MASK, POSITIONS = "input_ids", "attention_mask", "position_ids"
"""The names that exporters give to a decoder's inputs."""
LEAST_OF_BLOCK = 0.25
"""The least part of a block that is worth a step of its own: a block takes about as long as a quarter as many single tokens
do, measured on SmolLM2 with weights of 8 bits."""


@dataclass(frozen=True)
class Decoder:
    """A model that reads a token in each step of a sequence, and says how likely each token is to be the next one."""

    model: str
    """The model's digest."""
    inputs: tuple[ValueInfo, ...]
    logits: str
    """The output with a number for each token of the vocabulary."""
    vocabulary: int
    context: int
    """The most tokens of a sequence."""
    in_place: bool
    """Whether rows count from the left; a sequence can then also be continued from an earlier token."""
    block_inputs: tuple[ValueInfo, ...] = ()
    """The inputs of a step that reads a block of tokens; () if there is no such step."""
    batch_inputs: tuple[ValueInfo, ...] = ()
    """The inputs of a request that reads a token in each of several sequences; () if there is no such request."""

    @property
    def batch(self) -> int:
        """The number of sequences in such a request; 0 if there is none."""
        return next((info.shape[0] for info in self.batch_inputs if info.shape), 0)

    def feed_batch(self, tokens: Sequence[tuple[int, int]]) -> dict[str, Value]:
        """The inputs of a request that reads these tokens, each at its number in its sequence: one for each place."""
        steps = [self.feed([token], position) for token, position in tokens]
        return {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}

    def read_batch(self, outputs: dict[str, Value]) -> Sequence[Logits]:
        """The logits in the answer of such a request, for each place. Raises RunError if they are not what the plan
        says."""
        logits = outputs.get(self.logits)
        if not isinstance(logits, (np.ndarray, LikelyEntries)) or logits.shape != (
            self.batch,
            1,
            self.vocabulary,
        ):
            raise RunError(
                f"the model's {self.logits!r} are not {self.batch} times {self.vocabulary} numbers"
            )
        return [row_of(logits, place) for place in range(self.batch)]

    @property
    def block(self) -> int:
        """The number of tokens in a block; 0 if blocks cannot be read."""
        return next((info.shape[1] for info in self.block_inputs if info.name == TOKENS and info.shape), 0)

    def feed(self, tokens: Sequence[int], position: int) -> dict[str, Value]:
        """The inputs of the step that reads `tokens` from number `position` of its sequence on: one, or up to a block of
        them. A block that is not full has rows at its end that no later step sees: the next tokens take their place, or
        devices do not keep them."""
        infos = self.inputs if len(tokens) == 1 else self.block_inputs
        return {info.name: self._value(info, tokens, position) for info in infos}

    def _value(self, info: ValueInfo, tokens: Sequence[int], position: int) -> Array:
        value: Array = np.zeros(info.shape or (), _dtype(info))
        rows = self.block if len(tokens) > 1 else 1
        if info.name == MASK:
            past = value.shape[1] - rows
            read = slice(0, position + rows) if self.in_place else slice(past - position, past + len(tokens))
            value[:, read] = 1
        elif info.name == TOKENS:
            value[0, : len(tokens)] = tokens
        else:  # Models have no positions beyond their context, and nothing is kept of rows that would be there.
            value[0] = np.minimum(range(position, position + rows), self.context - 1)
        return value

    def count_next(self, left: int, position: int) -> int:
        """How many of the `left` tokens from `position` on the next step should read."""
        rows = self.block
        if not rows or left < rows * LEAST_OF_BLOCK or (self.in_place and position + rows > self.context):
            return 1
        return min(left, rows)

    def read(self, outputs: dict[str, Value]) -> Logits:
        """The logits in the answer of a step. Raises RunError if they are not what the plan says."""
        logits = outputs.get(self.logits)
        if not isinstance(logits, (np.ndarray, LikelyEntries)) or logits.shape[-1:] != (self.vocabulary,):
            raise RunError(f"the model's {self.logits!r} are not {self.vocabulary} numbers")
        return row_of(logits, -1)


def row_of(logits: Logits, number: int) -> Logits:
    """A row of the logits, in which each token of the vocabulary has a number."""
    if isinstance(logits, LikelyEntries):
        return logits.row(number)
    row: Array = logits.reshape(-1, logits.shape[-1])[number]
    return row


def read_decoder(name: str, plan: Plan) -> Decoder:
    """The decoder that a deployment's plan computes. Raises RequestError, with the reason, if it is none."""
    infos = {info.name: info for info in plan.inputs}
    growing = [state for state in plan.states if _axis(state) is not None]
    if not growing:
        raise RequestError(
            f"{name!r} keeps no caches of keys and values, so that it generates no text; deploy it with --context TOKENS"
        )
    if TOKENS not in infos or infos.keys() - {TOKENS, MASK, POSITIONS}:
        raise RequestError(
            f"{name!r} cannot be asked for text: it takes {sorted(infos)}, and only {TOKENS}, {MASK} and {POSITIONS} are "
            "known here"
        )
    if infos[TOKENS].shape != (1, 1):
        raise RequestError(f"{name!r} cannot be asked for text: its steps read {infos[TOKENS].shape} tokens")
    outputs = [one for one in plan.outputs if one.shape is not None and len(one.shape) == 3]
    if len(outputs) != 1 or outputs[0].shape is None:
        raise RequestError(
            f"{name!r} cannot be asked for text: none of its outputs {[one.name for one in plan.outputs]} has one number "
            "for each token of the vocabulary"
        )
    context = min(_rows(state) for state in growing)
    in_place = all(state.in_place for state in growing)
    blocks = plan.prefill.inputs if plan.prefill is not None else ()
    batch = plan.batch.inputs if plan.batch is not None else ()
    vocabulary = outputs[0].shape[-1]
    return Decoder(
        plan.model_digest, plan.inputs, outputs[0].name, vocabulary, context, in_place, blocks, batch
    )


def _axis(state: KeptState) -> int | None:
    """The axis of a state that has a row for each token."""
    return IN_PLACE_ROWS if state.in_place else state.grows


def _rows(state: KeptState) -> int:
    """The most rows that the state has after a step."""
    axis, shape = _axis(state), state.input.shape or ()
    return shape[axis or 0] + (0 if state.in_place else 1)


def _dtype(info: ValueInfo) -> np.dtype[Any]:
    return element_dtype(info.dtype) or np.dtype(np.int64)


def common_start(one: Sequence[object], other: Sequence[object]) -> int:
    """The number of tokens with which both begin.

    >>> common_start([1, 2, 3], [1, 2, 4, 5])
    2
    """
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
