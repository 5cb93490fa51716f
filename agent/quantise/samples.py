"""The inputs on which answers with quantised weights are compared with those of the model as it was. Rules over numpy.

A language model reads a text, all of it at once, so that each token's logits are compared with the true tokens before it.
Any other model gets made-up inputs, with numbers that look up a table drawn from all of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgepart.agent.text.decoder import MASK, POSITIONS, TOKENS
from edgepart.agent.verify.same_answer import is_float
from edgepart.agent.verify.sample_inputs import random_inputs, sample_value
from edgepart.agent.wire.dtypes import element_dtype, element_name
from edgepart.planner.model.graph import Graph
from edgepart.planner.region import Array

Values = Mapping[str, Any]

MADE_UP = 4
"""How many made-up inputs there are. With more of them the figure is surer, and takes longer."""
MOST_TOKENS = 96
"""The most tokens of the text."""
FEWEST_TOKENS = 16
TEXT = """The harbour was quiet when the ferry came in. Two men in yellow coats tied it to the pier, and a girl with a
bicycle was the first to step ashore. She had written down the address on the back of a receipt: 14 Mill Lane,
third floor. "Is it far?" she asked. One of the men pointed up the hill, where the road turned left behind the
church. It would take her ten minutes, he said, or fifteen if she stopped to look at the sea, as everybody did.
def add(a, b): return a + b"""
"""What a language model reads: English, with numbers, speech and a little code."""


@dataclass(frozen=True)
class Samples:
    """Inputs for a comparison."""

    steps: tuple[Values, ...]
    """Complete inputs of a session over the whole model, states included."""
    about: str
    """What they are, in a few words."""
    compared: tuple[str, ...]
    """The outputs that are compared; states are not."""
    logits: str = ""
    """The output in which each token of the vocabulary has a number; "" for a model that is no language model."""


def given_samples(graph: Graph, inputs: Sequence[Values]) -> Samples:
    """The inputs that the user gave; states, which users need not give, are zeros."""
    steps = tuple({**_zero_states(graph), **one} for one in inputs)
    count = len(steps)
    about = "the input that was given" if count == 1 else f"{count} inputs that were given"
    return Samples(steps, about, graph.answer_outputs)


def made_up_samples(graph: Graph) -> Samples:
    """Made-up inputs: half of them normally distributed, half from 0 to 1 as in pictures."""
    rows = dict(_looked_up(graph))
    steps = []
    for seed in range(MADE_UP):
        draw, values = np.random.default_rng(seed), dict(random_inputs(graph, seed))
        for name, value in values.items():
            if not isinstance(value, np.ndarray):
                continue
            if name == MASK:
                values[name] = np.ones_like(value)
            elif name in rows:
                values[name] = draw.integers(0, rows[name], value.shape).astype(value.dtype)
            elif is_float(value.dtype) and seed % 2 == 0:
                values[name] = sample_value(element_name(value.dtype), value.shape, name, seed)
        steps.append({**_zero_states(graph), **values})
    return Samples(tuple(steps), f"{MADE_UP} made-up inputs", graph.answer_outputs)


def text_samples(graph: Graph, tokens: Sequence[int], about: str) -> Samples | None:
    """One input that reads all tokens, for a graph whose steps read as many; None if it is no language model."""
    logits = [
        name
        for name in graph.outputs
        if len(graph.tensors[name].shape or ()) == 3 and name not in {one.output for one in graph.states}
    ]
    if TOKENS not in graph.request_inputs or len(logits) != 1:
        return None
    values = dict(random_inputs(graph))
    for name, value in values.items():
        if name == TOKENS:
            values[name] = np.asarray([tokens], value.dtype)
        elif name == MASK:
            values[name] = np.ones_like(value)
        elif name == POSITIONS:
            values[name] = np.asarray([range(len(tokens))], value.dtype)
    step = {**_zero_states(graph), **values}
    return Samples((step,), about, (logits[0],), logits[0])


def same_tokens(mine: Array, theirs: Array) -> float:
    """The share of rows of logits whose largest number is in the same place."""
    return float(np.mean(mine.argmax(axis=-1) == theirs.argmax(axis=-1)))


def _zero_states(graph: Graph) -> dict[str, Array]:
    inputs = (graph.tensors[one.input] for one in graph.states)
    return {one.name: np.zeros(one.shape or (), element_dtype(one.dtype)) for one in inputs}


def _looked_up(graph: Graph) -> Sequence[tuple[str, int]]:
    """The inputs whose numbers are rows of a constant table, each with the number of rows."""
    return [
        (op.inputs[1], shape[0])
        for op in graph.operators
        if op.op_type == "Gather" and op.inputs[0] in graph.constants and not op.attributes.get("axis", 0)
        for shape in [graph.constants[op.inputs[0]].shape]
        if op.inputs[1] in graph.request_inputs and shape
    ]
