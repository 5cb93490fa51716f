"""docs/operators.md agrees with the registry, and its figures are computed correctly."""

from __future__ import annotations

import pytest
from benchmarks.costs import costs_of
from benchmarks.models import zoo_model
from benchmarks.models.real import REAL
from benchmarks.operators import (
    MODELS_HEADING,
    PAGE,
    line_of,
    listed,
    model_line,
    model_lines,
    operator_sections,
    rows,
)
from benchmarks.uses import Found, all_found
from onnx import TensorProto, helper

from edgepart.planner.access.registry import DECLARED, OPAQUE
from edgepart.planner.model.load import load_graph

UP_TO_DATE = "run `make docs` (and before it `python -m benchmarks.uses` if operators were declared)"


@pytest.fixture(scope="module")
def found() -> list[Found]:
    return all_found()


def test_the_operators_tables_are_up_to_date(found: list[Found]) -> None:
    committed, _, _ = PAGE.read_text().partition(MODELS_HEADING)
    assert committed == "\n".join(operator_sections(found)) + "\n", UP_TO_DATE


def test_every_declared_operator_is_seen_to_be_split(found: list[Found]) -> None:
    shown = rows(found)
    assert not {key for key in DECLARED if not shown[key].along and not shown[key].reduced}, UP_TO_DATE


def test_reasons_are_clauses_that_a_reader_understands() -> None:
    assert not {key: text for key, text in OPAQUE.items() if len(text.split()) < 3 or text.endswith(".")}


@pytest.mark.parametrize("name", [*REAL, "ort_logreg_iris", "ort_mul_1", "ort_sigmoid", "light_squeezenet"])
def test_the_models_rows_are_up_to_date(name: str) -> None:
    """Only models that need not be made first."""
    assert model_lines(PAGE.read_text())[name] == model_line(name), UP_TO_DATE


def test_every_model_has_a_row() -> None:
    assert list(model_lines(PAGE.read_text())) == listed()


def test_flops_are_counted_by_axis() -> None:
    """MatMul [4, 6] x [6, 1]: 48 FLOPs, divided by rows or by a sum; NonZero, which cannot be divided."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["c"], "product"),
        helper.make_node("NonZero", ["c"], ["d"], "where"),
    ]
    given = [value("a", TensorProto.FLOAT, (4, 6)), value("b", TensorProto.FLOAT, (6, 1))]
    graph = helper.make_graph(nodes, "two", given, [value("d", TensorProto.INT64, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    costs = costs_of(load_graph(model.SerializeToString()))
    assert costs.by_axis == {"batch": 48, "inner": 48}
    assert set(costs.opaque_by_type) == {"NonZero"}
    assert costs.unsplit_flops == 0
    assert line_of("two", costs).startswith("| two | 4.9e-08 | batch 98 %, inner 98 % | 2 %: NonZero 2 % |")


def test_a_loop_is_as_costly_as_its_steps() -> None:
    model = zoo_model("loop_decoder_small")
    costs = costs_of(load_graph(model.path))
    assert costs.opaque_by_type["Scan"] >= 8 * 2 * (2 * 16 * 16)  # tokens, with two matrices for each
    assert costs.opaque_by_type["Loop"] >= 4 * 2 * 16 * 16  # steps, with one matrix that is a weight
