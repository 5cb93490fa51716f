"""Runs the model as it was, and the one with quantised weights, on the same inputs. Door: files, sessions.

Each runs in a process of its own, one after the other, so that both need not fit into memory together. What the first
answered waits in a file for each input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from edgepart.agent.quantise.samples import (
    FEWEST_TOKENS,
    MOST_TOKENS,
    TEXT,
    Samples,
    given_samples,
    made_up_samples,
    same_tokens,
    text_samples,
)
from edgepart.agent.text.companions import TOKENIZER
from edgepart.agent.text.tokenizer import parse_tokenizer, read_limited
from edgepart.agent.verify.reference import Served, load_served, shapes_of
from edgepart.agent.verify.same_answer import is_float, largest_difference, random_outputs
from edgepart.agent.wire.inference import MOST_ERROR, DeployOptions
from edgepart.agent.wire.tensors import pack_arrays, unpack_arrays
from edgepart.planner.errors import ModelError, NotInstalled
from edgepart.planner.model.context_shapes import has_growing_states, load_with_context
from edgepart.planner.model.stateful import load_with_states

Values = Mapping[str, Any]
ANSWERS = "answers-{}"
"""The file of the inputs and the answer with that number."""
SEED = 1


@dataclass(frozen=True)
class Difference:
    """How far answers are off."""

    error: float
    """The largest difference of an output relative to its largest magnitude. An output that cannot be compared, as it has
    another shape or a NaN, counts as 1; so does the whole of an output of whole numbers or texts that all differ."""
    inputs: str
    same_tokens: float | None = None


def answer_as_it_was(
    model: Path, tokenizer: Path | None, options: DeployOptions, given: Path | None, folder: Path
) -> dict[str, Any]:
    """Run the model on the samples, and write its inputs and answers into `folder`. Returns what `compare_with` has to
    know."""
    samples = choose_samples(model, tokenizer, options, given)
    session = load_served(model, shapes_of(samples.steps[0]))
    compared = set(samples.compared)
    for number, step in enumerate(samples.steps):
        outputs = {name: value for name, value in _run(session, step).items() if name in compared}
        if number == 0 and not samples.logits:
            again = _run(session, step)
            compared -= set(random_outputs(outputs, {name: again[name] for name in outputs}))
            outputs = {name: outputs[name] for name in outputs if name in compared}
        (folder / ANSWERS.format(number)).write_bytes(_pack(step, outputs))
    return {"steps": len(samples.steps), "about": samples.about, "logits": samples.logits}


def compare_with(quantised: Path, told: Mapping[str, Any], folder: Path) -> Difference:
    """Run the model with quantised weights on the same samples, and compare."""
    errors, same = list[float](), None
    session: Served | None = None
    for number in range(told["steps"]):
        step, expected = _unpack((folder / ANSWERS.format(number)).read_bytes())
        session = session or load_served(quantised, shapes_of(step))
        got = _run(session, step)
        errors.append(error_of(got, expected))
        if logits := told["logits"]:
            same = same_tokens(got[logits], expected[logits])
    return Difference(max(errors), told["about"], same)


def choose_samples(
    model: Path, tokenizer: Path | None, options: DeployOptions, given: Path | None
) -> Samples:
    """The inputs on which answers are compared: the user's, or else a text for a language model, or else made-up ones.
    Raises ModelError and UsageError if the model cannot be read with the options' shapes."""
    if given is None and has_growing_states(model):
        tokens, about = _tokens(tokenizer)
        rows = len(tokens) if tokens else MOST_TOKENS
        graph, _ = load_with_context(model, {}, rows, rows)
        shapes = (graph.tensors[name].shape for name in graph.answer_outputs)
        vocabulary = min((shape[-1] for shape in shapes if shape), default=1)
        drawn = tokens or np.random.default_rng(SEED).integers(0, vocabulary, rows).tolist()
        if (found := text_samples(graph, drawn, about)) is not None:
            return found
    graph, _ = load_with_states(model, options.shapes, options.states, options.context)
    if given is None:
        return made_up_samples(graph)
    with np.load(given, allow_pickle=False) as file:
        inputs = {name: file[name] for name in file.files}
    if missing := [name for name in graph.request_inputs if name not in inputs]:
        raise ModelError(f"--input: the model also has the inputs {missing}; give all. Nothing was deployed")
    return given_samples(graph, [inputs])


def _tokens(tokenizer: Path | None) -> tuple[Sequence[int], str]:
    """The tokens that a language model reads, and what they are; () if they have to be made up."""
    made_up = f"{MOST_TOKENS} made-up tokens"
    if tokenizer is None:
        return (), made_up
    try:
        found = parse_tokenizer(read_limited(tokenizer), TOKENIZER).encode(TEXT, special=True)[:MOST_TOKENS]
    except NotInstalled:
        return (), f"{made_up} (a text needs the package tokenizers here: pip install 'edgepart[text]')"
    return (found, f"{len(found)} tokens of a text") if len(found) >= FEWEST_TOKENS else ((), made_up)


def error_of(got: Values, expected: Values) -> float:
    """How far an answer is off, as `Difference.error` says."""
    found = [0.0]
    for name, value in expected.items():
        off = largest_difference({name: got[name]}, {name: value})
        found.append(off if np.isfinite(off) else 1.0)
        if isinstance(value, np.ndarray) and not is_float(value.dtype):
            mine = got[name]
            alike = isinstance(mine, np.ndarray) and mine.shape == value.shape
            found.append(float(np.mean(mine != value)) if alike and value.size else float(not alike))
    return min(max(found), MOST_ERROR)


def _run(session: Served, inputs: Values) -> dict[str, Any]:
    found = session.run([inputs[name] for name in session.input_names])
    return dict(zip(session.output_names, found, strict=True))


def _pack(*groups: Values) -> bytes:
    packed = []
    for values in groups:
        metas, buffers = pack_arrays(list(values.values()))
        packed.append((list(values), metas, b"".join(buffers)))
    found: bytes = msgpack.packb(packed)
    return found


def _unpack(data: bytes) -> list[dict[str, Any]]:
    return [
        dict(zip(names, unpack_arrays(metas, memoryview(payload)), strict=True))
        for names, metas, payload in msgpack.unpackb(data, use_list=False)
    ]
