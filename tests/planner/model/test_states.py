"""Which outputs become which inputs: by names, and by what users write; and what does not fit is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from onnx import TensorProto, helper

from edgepart.planner.errors import ModelError, UsageError
from edgepart.planner.model.graph import Graph, State
from edgepart.planner.model.load import load_graph
from edgepart.planner.model.states import find_states, keep_states, parse_pair
from edgepart.planner.region import Region

FLOAT = TensorProto.FLOAT


def passing(
    pairs: Mapping[str, str], before: Sequence[int] = (1, 4), rows: int = 0, kind: int = FLOAT
) -> Graph:
    """A model that hands each of `pairs` (output: input) on, with `rows` more on the last axis."""
    value, nodes = helper.make_tensor_value_info, []
    after = (*before[:-1], before[-1] + rows)
    for output, read in pairs.items():
        more = [read, "more"] if rows else [read]
        nodes.append(helper.make_node("Concat", more, [output], axis=len(before) - 1))
    graph = helper.make_graph(
        [*nodes, helper.make_node("Neg", ["more"], ["y"])],
        "passing",
        [
            value("more", kind, (*before[:-1], rows or 1)),
            *(value(one, kind, before) for one in pairs.values()),
        ],
        [value("y", kind, (*before[:-1], rows or 1)), *(value(one, kind, after) for one in pairs)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return load_graph(model.SerializeToString())


@pytest.mark.parametrize(
    ("output", "read"),
    [
        ("present.3.key", "past_key_values.3.key"),
        ("present_key_values.0.value", "past_key_values.0.value"),
        ("present_7", "past_7"),
        ("present_key_2", "past_key_2"),
        ("present_conv.1", "past_conv.1"),
        ("present.1.conv", "past.1.conv"),
        ("present", "past"),
        ("stateN", "state"),
        ("hn", "h"),
        ("memory_out", "memory_in"),
    ],
)
def test_names_that_exporters_use(output: str, read: str) -> None:
    found = find_states(passing({output: read}))
    assert found.states == (State(output, read),) and not found.notes
    assert found.request_inputs == ("more",) and found.answer_outputs == ("y",)


def test_other_names_are_ordinary() -> None:
    graph = passing({"result": "given", "present.0.key": "past_key_values.1.key"})
    assert find_states(graph).states == ()


def test_an_output_may_be_longer_along_one_axis() -> None:
    found = find_states(passing({"present": "past"}, rows=3))
    (state,) = found.states
    assert state == State("present", "past", 1)
    read = Region.box((0, 1), (1, 3))
    assert found.written_region(state, read) == Region.box((0, 1), (4, 6))
    assert found.read_region(state, Region.box((0, 1), (4, 6))) == read


def test_a_guess_that_does_not_fit_is_a_note_and_what_a_user_says_an_error() -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Cast", ["past"], ["present"], to=TensorProto.INT64)],
        "odd",
        [value("past", FLOAT, (1, 4))],
        [value("present", TensorProto.INT64, (1, 4))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    loaded = load_graph(model.SerializeToString())
    found = find_states(loaded)
    assert (
        found.states == ()
        and "the output is of int64, and the input of float; it is an ordinary input" in found.notes[-1]
    )
    with pytest.raises(ModelError, match="the output is of int64"):
        keep_states(loaded, [("present", "past")])


@pytest.mark.parametrize(
    ("pairs", "fault"),
    [
        ([("z", "past")], "no output 'z'"),
        ([("present", "z")], "no input 'z'"),
        ([("present", "past"), ("present", "more")], "'present' is in two states"),
        ([("y", "past")], "only one axis may differ"),
    ],
)
def test_what_cannot_be_is_refused(pairs: list[tuple[str, str]], fault: str) -> None:
    graph = passing({"present": "past"}, before=(2, 1) if "two" in fault else (2, 4))
    with pytest.raises(ModelError, match=fault):
        keep_states(graph, pairs)


def test_what_users_write() -> None:
    assert parse_pair("stateN=state") == ("stateN", "state")
    for text in ("", "stateN", "=state", "stateN="):
        with pytest.raises(UsageError, match="write it as OUTPUT=INPUT"):
            parse_pair(text)
