"""Which states a deployment keeps: those that users name, else those that names suggest, and growing ones only with room
for them; and which of them operators write in place."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from onnx import NodeProto, TensorProto, helper

from edgepart.planner.errors import ModelError, UsageError
from edgepart.planner.model.graph import State
from edgepart.planner.model.stateful import load_with_states
from edgepart.planner.model.states import Pair
from tests.planner.model.test_context_shapes import (
    FLOAT,
    HEADS,
    SIZE,
    Declared,
    buffered,
    concatenating,
    decoder,
)

CONTEXT = 8
CACHE = (1, HEADS, CONTEXT, SIZE)
ROW = (1, 1, HEADS * SIZE)
NAMES = {"key": "past_key_values.0.key", "value": "past_key_values.0.value"}


def grouped(
    reads: Sequence[str] = ("x", "x", "x", NAMES["key"], NAMES["value"], "lengths", "total"),
    more: Sequence[NodeProto] = (),
    gives: Declared | None = None,
) -> bytes:
    """One GroupQueryAttention over buffers of CONTEXT rows, with `more` operators beside it."""
    node = helper.make_node(
        "GroupQueryAttention",
        list(reads),
        ["y", "present.0.key", "present.0.value"],
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=HEADS,
    )
    takes: Declared = {
        "x": (FLOAT, ROW),
        "lengths": (TensorProto.INT32, (1,)),
        "total": (TensorProto.INT32, (1,)),
        **dict.fromkeys(NAMES.values(), (FLOAT, CACHE)),
    }
    both = {"y": (FLOAT, ROW), **{f"present.0.{one}": (FLOAT, CACHE) for one in NAMES}, **(gives or {})}
    return decoder([node, *more], takes, both, {})


def in_place(model: bytes, pairs: Sequence[Pair] | None = None) -> dict[str, bool]:
    """Whether each state of the model is written in place, by its output."""
    graph, _ = load_with_states(model, {}, pairs)
    return {one.output: one.in_place for one in graph.states}


def test_group_query_attention_writes_its_cache_in_place() -> None:
    assert in_place(grouped()) == {"present.0.key": True, "present.0.value": True}
    graph, _ = load_with_states(buffered(), {}, context=CONTEXT)
    assert [(one.output, one.grows, one.in_place) for one in graph.states] == [
        ("present.0.key", None, True),
        ("present.0.value", None, True),
    ]


def test_what_another_operator_reads_too_is_not_written_over() -> None:
    norm = helper.make_node("Neg", [NAMES["key"]], ["negative"])
    found = in_place(grouped(more=[norm], gives={"negative": (FLOAT, CACHE)}))
    assert found == {"present.0.key": False, "present.0.value": True}


def test_a_cache_that_is_read_as_another_one_or_twice_is_not_written_over() -> None:
    crossed = [("present.0.key", NAMES["value"]), ("present.0.value", NAMES["key"])]
    assert not any(in_place(grouped(), crossed).values())
    twice = ("x", "x", "x", NAMES["key"], NAMES["key"], "lengths", "total")
    assert in_place(grouped(twice), [("present.0.key", NAMES["key"])]) == {"present.0.key": False}


def test_other_operators_write_nothing_in_place() -> None:
    assert in_place(mixed()) == {"hn": False}


def mixed(growing: str = "total") -> bytes:
    """A state of fixed shape, and one that a step makes longer."""
    nodes = [
        helper.make_node("Add", ["h", "x"], ["hn"]),
        helper.make_node("Concat", ["past", "x"], ["present"], axis=1),
    ]
    return decoder(
        nodes,
        {"x": (FLOAT, [1, 1, 4]), "h": (FLOAT, [1, 1, 4]), "past": (FLOAT, [1, "past", 4])},
        {"hn": (FLOAT, [1, 1, 4]), "present": (FLOAT, [1, growing, 4])},
        {},
    )


def test_growing_states_are_left_to_the_client_and_a_note_says_so() -> None:
    graph, _ = load_with_states(mixed(), {})
    assert graph.states == (State("hn", "h"),)
    assert "past" in graph.request_inputs and "present" in graph.answer_outputs
    (note,) = [text for text in graph.notes if "--context" in text]
    assert note.startswith("state 'present' -> 'past' grows with every step")
    graph, _ = load_with_states(buffered(), {})
    assert graph.states == ()
    assert any("'present.0.key' -> 'past_key_values.0.key' and 1 more grows" in text for text in graph.notes)


def test_with_a_context_growing_states_are_kept_as_well() -> None:
    graph, assumed = load_with_states(mixed(), {}, context=CONTEXT)
    assert graph.states == (State("hn", "h"), State("present", "past", grows=1))
    assert assumed == {"past": (1, CONTEXT - 1, 4)}
    assert not any("--context" in text for text in graph.notes)


def test_shapes_that_are_given_are_not_among_the_assumed_ones() -> None:
    given = {"attention_mask": (1, CONTEXT)}
    _, assumed = load_with_states(concatenating(), given, context=CONTEXT)
    assert assumed == {"x": ROW, NAMES["key"]: (1, HEADS, CONTEXT - 1, SIZE)}


@pytest.mark.parametrize("context", [None, CONTEXT])
def test_users_say_which_states_there_are(context: int | None) -> None:
    graph, _ = load_with_states(mixed(), {}, [("hn", "h")], context)
    assert graph.states == (State("hn", "h"),)
    graph, _ = load_with_states(mixed(), {}, (), context)
    assert graph.states == () and {"h", "past"} <= set(graph.request_inputs)
    with pytest.raises(ModelError, match="no output 'nothing'"):
        load_with_states(mixed(), {}, [("nothing", "h")], context)


def test_a_context_needs_a_state_that_grows() -> None:
    with pytest.raises(UsageError, match="no state of this model grows"):
        load_with_states(grouped(), {}, context=CONTEXT)
