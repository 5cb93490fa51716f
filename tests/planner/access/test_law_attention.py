"""The law of access maps for attention: batches, heads, rows, keys, values' columns, masks of every kind, and the past."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from edgepart.planner.region import Array, Region, span
from tests.planner.access.law import Case, check_any_region, check_law, declared, floats
from tests.planner.access.node_cases import node_cases

OPERATORS = frozenset({"Attention", "FlexAttention"})

FEW = settings(max_examples=4)
HALF = np.float16


def _truths(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 3, shape) > 0


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Attention with anything that its schema allows and the runtime runs."""
    flat, past = draw(st.booleans(), "flat"), draw(st.sampled_from([0, 0, 1, 3]), "past")
    batch, keys, group = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rows, length, size, value = (draw(st.integers(1, 5)) for _ in range(4))
    kind = draw(st.sampled_from([np.float32, np.float32, HALF]), "type")
    total, queries = past + length, keys * group
    attributes: dict[str, Any] = {
        "is_causal": draw(st.integers(0, 1)),
        "softcap": draw(st.sampled_from([0.0, 2.0])),
    }
    if draw(st.booleans()):
        attributes |= {"scale": 0.3, "softmax_precision": 1}
    if flat:
        attributes |= {"q_num_heads": queries, "kv_num_heads": keys}
        shapes: list[tuple[int, ...]] = [
            (batch, rows, queries * size),
            (batch, length, keys * size),
            (batch, length, keys * value),
        ]
    else:
        shapes = [(batch, queries, rows, size), (batch, keys, length, size), (batch, keys, length, value)]
    inputs: list[Array | None] = [floats(*shape, seed=n).astype(kind) for n, shape in enumerate(shapes)]
    inputs.append(
        _mask(draw(st.sampled_from(["", "bool", "float"]), "mask"), draw, (batch, queries, rows, total), kind)
    )
    version = draw(st.sampled_from([23, 24]))
    outputs = 1
    if past:
        inputs += [floats(batch, keys, past, n, seed=9).astype(kind) for n in (size, value)]
        outputs = 3
    elif version == 24 and draw(st.booleans()):
        counts = draw(st.lists(st.integers(0, total), min_size=batch, max_size=batch))
        inputs += [None, None, np.asarray(counts, np.int64)]
    else:
        outputs = draw(st.sampled_from([1, 1, 3]))
    if outputs == 3 and draw(st.booleans()):
        outputs, attributes["qk_matmul_output_mode"] = 4, draw(st.integers(0, 3))
    return Case("Attention", inputs, attributes, version=version, outputs=outputs)


def _mask(kind: str, draw: st.DrawFn, full: tuple[int, ...], dtype: Any) -> Array | None:
    if not kind:
        return None
    lead = [draw(st.sampled_from([1, extent])) for extent in full[:2]]
    shape = (*lead[draw(st.integers(0, 2)) :], *full[2:])
    return _truths(*shape) if kind == "bool" else floats(*shape, seed=5).astype(dtype)


@settings(max_examples=60)
@given(case=cases(), data=st.data())
def test_any_attention(case: Case, data: st.DataObject) -> None:
    check_any_region(declared(case), data, tries=2)


@settings(max_examples=1)
@given(data=st.data())
def test_the_cases_of_onnx_that_the_runtime_can_run(data: st.DataObject) -> None:
    tried = 0
    for name, case in node_cases("Attention").items():
        if case.version < 25 and "padded_kv" not in name and "bf16" not in name:
            note(name)
            check_any_region(declared(case), data, tries=2)
            tried += 1
    assert tried > 60


BY_DEFINITION = [
    *(Case("Attention", [floats(2, 4, 3, 4), floats(2, 2, 5, 4), floats(2, 2, 5, 3)],
           {"is_causal": causal, "left_window_size": 1, "right_window_size": right}, version=25, reference=True)
      for causal, right in ((1, -1), (0, 1))),
    Case("FlexAttention", [floats(2, 4, 3, 4), floats(2, 2, 5, 4), floats(2, 2, 5, 3)], {"scale": 0.3}, version=1,
         domain="ai.onnx.preview", opset=26, reference=True),
]  # fmt: skip
"""Operators that the runtime lacks, by ONNX's reference."""


@pytest.mark.parametrize("number", range(len(BY_DEFINITION)))
@FEW
@given(data=st.data())
def test_what_the_runtime_lacks(number: int, data: st.DataObject) -> None:
    check_any_region(declared(BY_DEFINITION[number]), data)


def test_the_axes_of_attention() -> None:
    """A group of query heads goes with its head of keys; keys are reduced where nothing but the output is made."""
    flat = Case(
        "Attention",
        [floats(2, 4, 24), floats(2, 6, 12), floats(2, 6, 12)],
        {"q_num_heads": 6, "kv_num_heads": 3},
        version=23,
    )
    found = {axis.name: axis for axis in declared(flat).access.axes()}
    assert list(found) == ["batch", "head", "sequence", "key"]
    assert (found["head"].index, found["head"].extent, found["head"].quantum) == (2, 24, 8)
    assert found["key"].reducer == "log-sum-exp"
    apart = Case(
        "Attention", [floats(1, 6, 4, 8), floats(1, 3, 5, 8), floats(1, 3, 5, 4)], version=23, outputs=3
    )
    axes = declared(apart).access.axes()
    assert [(axis.name, axis.places, axis.each) for axis in axes] == [
        ("head", (1, 1, 1), (2, 1, 1)),
        ("sequence", (2, None, None), (1, 0, 0)),
        ("feature", (3, None, 3), (1, 0, 1)),
    ]


def test_causal_rows_read_no_later_keys() -> None:
    case = Case(
        "Attention",
        [floats(1, 2, 6, 4), *(floats(1, 2, 6, 4, seed=n) for n in (1, 2))],
        {"is_causal": 1},
        version=23,
    )
    access = declared(case).access
    first, last = (Region.full((1, 2, 6, 4)).replace(2, span(rows)) for rows in ((0, 2), (4, 6)))
    assert access.needs({0: first}) == (first, first, first)
    assert access.needs({0: last})[1] == Region.full((1, 2, 6, 4))
    assert access.flops({0: first}) < access.flops({0: last})
    assert [node.op_type for node in access.localize({0: first})] == ["Attention"]
    assert [node.op_type for node in access.localize({0: last})] == ["Greater", "Identity", "Attention"]


def test_outputs_that_want_different_heads_are_made_apart() -> None:
    case = Case(
        "Attention",
        [floats(1, 4, 3, 4), *(floats(1, 4, 5, 4, seed=n) for n in (1, 2))],
        version=23,
        outputs=3,
    )
    access = declared(case).access
    part, whole = Region.full((1, 4, 3, 4)).replace(1, span((0, 1))), Region.full((1, 4, 5, 4))
    local = access.localize({0: part, 1: whole})
    assert [node.op_type for node in local].count("Attention") == 2
    assert access.flops({0: part, 1: whole}) < 0.6 * access.flops({0: Region.full((1, 4, 3, 4)), 1: whole})
    check_law(declared(case), {0: part, 1: whole, 2: part.replace(2, span((0, 2)))})
