"""States: finds the outputs of a model that are inputs of its next step (caches of keys and values, states of recurrent
layers and of convolutions), and checks them. Pure rules.

Which output belongs to which input is said by the user (`--state-pair`), or by names that exporters use. What the user says
has to be right. Names are only a guess, so pairs that do not fit are left alone, and the graph's notes say why."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from edgepart.planner.errors import ModelError, UsageError
from edgepart.planner.model.graph import Graph, State

Pair = tuple[str, str]
"""The names of an output, and of the input that it becomes."""

_FORMS: tuple[tuple[str, str], ...] = (
    (r"present\.(\d+)\.(.+)", r"past_key_values.\1.\2"),
    (r"present_key_values\.(\d+)\.(.+)", r"past_key_values.\1.\2"),
    (r"present\.(\d+)\.(.+)", r"past.\1.\2"),
    (r"present_(\d+)", r"past_\1"),
    (r"present_(key|value)_(\d+)", r"past_\1_\2"),
    (r"present_(conv|recurrent)\.(\d+)", r"past_\1.\2"),
    (r"present(?:_state)?", "past"),
    (r"stateN", "state"),
    (r"hn", "h"),
    (r"cn", "c"),
    (r"(.+)_out", r"\1_in"),
)
"""Names of outputs, and the names of their inputs: optimum and onnx-community, ONNX Runtime's builder of generative models,
its transformer tools, and Silero."""


_WRITTEN_IN_PLACE: Mapping[tuple[str, str], Mapping[int, int]] = {
    ("com.microsoft", "GroupQueryAttention"): {1: 3, 2: 4},
    ("", "ScatterElements"): {0: 0},
}
"""Operators that can write an output over an input: the number of the input, by the output's."""
WRITTEN = "written_in_place"
"""What the names of operators begin with that rewrites/in_place.py adds. Of other scattering operators it is not known that
they write the rows of a step alone."""


def parse_pair(text: str) -> Pair:
    """The pair in a text such as "stateN=state". Raises UsageError if it has another form.

    >>> parse_pair("stateN = state")
    ('stateN', 'state')
    """
    output, _, read = (one.strip() for one in text.partition("="))
    if not (output and read):
        raise UsageError(f"--state-pair {text!r}: write it as OUTPUT=INPUT, for example stateN=state")
    return output, read


def named_pairs(graph: Graph) -> tuple[Pair, ...]:
    """The pairs that the names of outputs and inputs suggest, without outputs that no operator writes."""
    found = suggested_pairs(graph.outputs, graph.inputs)
    return tuple(pair for pair in found if pair[0] in graph.producers)


def suggested_pairs(outputs: Iterable[str], inputs: Collection[str]) -> tuple[Pair, ...]:
    """The pairs that these names suggest."""
    return tuple((output, read) for output in outputs for read in _candidates(output) if read in inputs)


def _candidates(output: str) -> Iterator[str]:
    for form, read in _FORMS:
        if match := re.fullmatch(form, output):
            yield match.expand(read)


def keep_states(graph: Graph, pairs: Iterable[Pair]) -> Graph:
    """The graph with these states. Raises ModelError, which names the pair, if an output cannot become the input."""
    states = tuple(_state(graph, *pair) for pair in pairs)
    for names in ([one.output for one in states], [one.input for one in states]):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ModelError(f"{graph.name}: {twice[0]!r} is in two states; each output becomes one input")
    return replace(graph, states=states)


def find_states(graph: Graph) -> Graph:
    """The graph with the states that its names suggest, and a note on each pair that does not fit."""
    states, notes = [], []
    for pair in named_pairs(graph):
        try:
            states.append(_state(graph, *pair))
        except ModelError as error:
            notes.append(f"{error}; it is an ordinary input")
    return replace(graph, states=tuple(states), notes=(*graph.notes, *notes))


def _state(graph: Graph, output: str, read: str) -> State:
    where = f"{graph.name}: state {output!r} -> {read!r}"
    for name, names, kind in ((output, graph.outputs, "output"), (read, graph.inputs, "input")):
        if name not in names:
            raise ModelError(f"{where}: the model has no {kind} {name!r}")
    if output not in graph.producers:
        raise ModelError(f"{where}: no operator writes the output")
    after, before = graph.tensors[output], graph.tensors[read]
    if after.dtype != before.dtype:
        raise ModelError(f"{where}: the output is of {after.dtype}, and the input of {before.dtype}")
    if after.shape is None or before.shape is None or len(after.shape) != len(before.shape):
        raise ModelError(f"{where}: the output has shape {after.shape}, and the input {before.shape}")
    if not after.item_bytes:
        raise ModelError(f"{where}: values of {after.dtype} are not kept between steps")
    longer = [n for n, (a, b) in enumerate(zip(after.shape, before.shape, strict=True)) if a != b]
    if len(longer) > 1 or any(after.shape[n] < before.shape[n] for n in longer):
        raise ModelError(
            f"{where}: the output has shape {after.shape}, and the input {before.shape}; only one axis may differ, and "
            "along that the output has to be longer"
        )
    return State(
        output, read, longer[0] if longer else None, not longer and _is_in_place(graph, output, read)
    )


def _is_in_place(graph: Graph, output: str, read: str) -> bool:
    """Whether the operator that writes `output` can write it over `read`, which no other operator reads."""
    writer = graph.producers[output]
    if writer.op_type == "ScatterElements" and not writer.name.startswith(WRITTEN):
        return False
    number = _WRITTEN_IN_PLACE.get((writer.domain, writer.op_type), {}).get(writer.outputs.index(output))
    return (
        number is not None
        and writer.inputs[number : number + 1] == (read,)
        and graph.consumers[read] == (writer,)
        and writer.inputs.count(read) == 1
    )
