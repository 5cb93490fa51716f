"""What a file says of the shapes of values: not believed where it is wrong, or where only a request can tell."""

from __future__ import annotations

from itertools import pairwise

from edgepart.planner.model.load import load_graph
from tests.planner.model.test_bad_models import lying, one
from tests.planner.model.test_load import node, value


def test_a_shape_that_the_file_has_wrong_is_the_operators_and_said_so() -> None:
    graph = load_graph(lying("h", (7, 7)).SerializeToString())
    assert graph.shape_of("h") == (4, 6)
    assert graph.notes == (
        "h: the file says that it has the shape [7, 7], but it has [4, 6], and the latter was taken",
    )


def test_many_shapes_that_the_file_has_wrong_are_counted() -> None:
    names = ["x", *(f"h{number}" for number in range(9)), "y"]
    model = one([node("Relu", before, after) for before, after in pairwise(names)], (4, 6))
    model.graph.value_info.extend(value(name, (7, 7), 1) for name in names[1:-1])
    *each, last = load_graph(model.SerializeToString()).notes
    assert [note.split(":")[0] for note in each] == ["h0", "h1", "h2"]
    assert last == "the file has the shapes of 6 more values wrong, too"


def test_a_shape_that_only_a_request_tells_is_not_taken_from_the_file() -> None:
    graph = load_graph(lying("h", (2, 5), operator="NonZero").SerializeToString())
    assert [graph.shape_of(name) for name in ("h", "y")] == [None, None]
