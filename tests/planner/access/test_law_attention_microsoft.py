"""The law of access maps for attention of ONNX Runtime's own domain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.region import Array, Region, span
from tests.planner.access.law import Case, check_any_region, check_whole, declared, floats

OPERATORS = frozenset({"Attention", "GroupQueryAttention", "MultiHeadAttention", "QAttention"})

SOME = settings(max_examples=30)


def _case(op_type: str, inputs: list[Array | None], attributes: dict[str, Any], outputs: int = 1) -> Case:
    while inputs[-1] is None:
        inputs.pop()
    return Case(op_type, inputs, attributes, version=1, domain="com.microsoft", opset=17, outputs=outputs)


def _padding(draw: st.DrawFn, batch: int, rows: int, total: int, kinds: str) -> Array | None:
    """`kinds`: of "-" (none), "e" (ends), "s" (ends and starts), "k" (each key), "r" (each row and key)."""
    match draw(st.sampled_from(kinds), "padding"):
        case "e":
            return np.asarray(draw(st.lists(st.integers(1, total), min_size=batch, max_size=batch)), np.int32)
        case "s":
            return np.asarray(
                [total] * batch + [draw(st.integers(0, total - 1)) for _ in range(batch)], np.int32
            )
        case "k":
            return (np.random.default_rng(7).integers(0, 3, (batch, total)) > 0).astype(np.int32)
        case "r":
            return (np.random.default_rng(7).integers(0, 3, (batch, rows, total)) > 0).astype(np.int32)
    return None


def _added(draw: st.DrawFn, batch: int, heads: int, rows: int, total: int) -> Array | None:
    if not draw(st.booleans(), "added"):
        return None
    return floats(draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, heads])), rows, total, seed=8)


@st.composite
def multi_head(draw: st.DrawFn) -> Case:
    batch, heads, rows, size = (draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5)), 4)
    kind = draw(st.sampled_from(["self", "cross", "apart", "past"]), "kind")
    length = rows if kind in ("self", "past") else draw(st.integers(1, 5))
    value = size if kind in ("apart", "past") else draw(st.sampled_from([size, 2]))
    past = 3 if kind == "past" else 0
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": draw(st.integers(0, 1))}
    if draw(st.booleans()):
        attributes |= {"scale": 0.3, "mask_filter_value": -5.0}
    if kind == "apart":
        keys = [floats(batch, heads, length, n, seed=n) for n in (size, value)]
    else:
        keys = [floats(batch, length, heads * n, seed=n) for n in (size, value)]
    bias = floats(heads * (2 * size + value), seed=3) if draw(st.booleans()) else None
    total = past + length
    inputs: list[Array | None] = [
        floats(batch, rows, heads * size),
        *keys,
        bias,
        _padding(draw, batch, rows, total, "--ekr"),
    ]
    inputs.append(_added(draw, batch, heads, rows, total))
    if past:
        inputs += [floats(batch, heads, past, size, seed=n) for n in (5, 6)]
    outputs = 3 if past else draw(st.sampled_from([1, 3]))
    return _case("MultiHeadAttention", inputs, attributes, outputs)


@st.composite
def projected(draw: st.DrawFn) -> Case:
    batch, heads, rows, size = (draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5)), 4)
    past = draw(st.sampled_from([0, 0, 3]), "past")
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": draw(st.integers(0, 1))}
    value = size
    if not past and draw(st.booleans()):
        value = 2
        attributes["qkv_hidden_sizes"] = [heads * size, heads * size, heads * value]
    if draw(st.booleans()):
        attributes |= {"scale": 0.3, "mask_filter_value": -5.0}
    columns, total = heads * (2 * size + value), past + rows
    inputs: list[Array | None] = [floats(batch, rows, 5), floats(5, columns, seed=1), floats(columns, seed=2)]
    inputs.append(_padding(draw, batch, rows, total, "--eskr"))
    inputs.append(floats(2, batch, heads, past, size, seed=3) if past else None)
    inputs.append(None if past else _added(draw, batch, heads, rows, total))
    return _case(
        "Attention", inputs, attributes, 2 if past else draw(st.sampled_from([1, 1, 1 + (value == size)]))
    )


@st.composite
def quantised(draw: st.DrawFn) -> Case:
    batch, heads, rows, size = (draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5)), 4)
    past = draw(st.sampled_from([0, 0, 3]), "past")
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": draw(st.integers(0, 1))}
    columns, total, random = 3 * heads * size, past + rows, np.random.default_rng(4)
    each = draw(st.booleans(), "each column")
    scales = floats(columns, low=0.01, high=0.02) if each else np.asarray(0.01, np.float32)
    zeros = np.zeros(columns, np.int8) if each else np.asarray(3, np.int8)
    inputs: list[Array | None] = [
        random.integers(0, 255, (batch, rows, 5)).astype(np.uint8),
        random.integers(-99, 99, (5, columns)).astype(np.int8),
        floats(columns),
        np.asarray(0.02, np.float32),
        scales,
        _padding(draw, batch, rows, total, "--ek"),
        np.asarray(9, np.uint8),
        zeros,
        floats(2, batch, heads, past, size, seed=3) if past else None,
    ]
    return _case("QAttention", inputs, attributes, 2 if past else draw(st.sampled_from([1, 2])))


@st.composite
def group_query(draw: st.DrawFn) -> Case:
    batch, keys, group, size = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3)), 16
    past = draw(st.sampled_from([0, 4]), "past")
    rows = 1 if past else draw(st.integers(1, 4))
    queries, total = keys * group, past + rows
    lengths = draw(st.lists(st.integers(max(total - 2, 1), total), min_size=batch, max_size=batch))
    lengths[0] = total
    attributes: dict[str, Any] = {
        "num_heads": queries,
        "kv_num_heads": keys,
        "softcap": draw(st.sampled_from([0.0, 2.0])),
    }
    shapes = [(batch, rows, queries * size), (batch, rows, keys * size), (batch, rows, keys * size)]
    inputs: list[Array | None] = [floats(*shape, seed=n) for n, shape in enumerate(shapes)]
    if draw(st.booleans(), "packed"):
        inputs = [np.concatenate([i for i in inputs if i is not None], 2), None, None]
    inputs += [floats(batch, keys, past, size, seed=n) if past else None for n in (5, 6)]
    inputs += [np.asarray(lengths, np.int32) - 1, np.asarray([total], np.int32)]
    turned = draw(st.booleans(), "turned")
    inputs += [floats(8, size // 2, seed=n) if turned else None for n in (1, 2)]
    attributes["do_rotary"] = int(turned)
    places = np.tile(np.arange(past, total), (batch, 1))
    inputs.append(places if turned and draw(st.booleans(), "positions") else None)
    inputs.append(_added(draw, batch, queries, rows, total))
    inputs.append(floats(queries) if draw(st.booleans(), "sink") else None)
    return _case("GroupQueryAttention", inputs, attributes, 3 if past else draw(st.sampled_from([1, 3])))


@SOME
@given(case=st.one_of(multi_head(), projected(), quantised(), group_query()), data=st.data())
def test_any_attention(case: Case, data: st.DataObject) -> None:
    check_any_region(declared(case), data, tries=2)


def test_a_head_reads_its_columns_of_three_blocks() -> None:
    case = _case("Attention", [floats(1, 3, 5), floats(5, 24), floats(24)], {"num_heads": 2})
    access = declared(case).access
    assert [(axis.name, axis.quantum) for axis in access.axes()] == [("head", 4), ("sequence", 1)]
    second = Region.full((1, 3, 8)).replace(2, span((4, 8)))
    columns = span((4, 8), (12, 16), (20, 24))
    assert access.needs({0: second})[1:] == (Region((span((0, 5)), columns)), Region((columns,)))
    assert [node.op_type for node in access.localize({0: second})] == ["Attention"]
    row = Region.full((1, 3, 8)).replace(1, span((1, 2)))
    assert [node.op_type for node in access.localize({0: row})][-1] == "MultiHeadAttention"


def _threes(*counts: int) -> list[Array | None]:
    return [floats(2, 3, 8, seed=n) for n in counts]


WHOLE = [
    (
        "packed",
        _case("MultiHeadAttention", [*_threes(0, 1, 2), None, np.full(8, 3, np.int32)], {"num_heads": 2}),
    ),
    (
        "packed",
        _case(
            "Attention",
            [floats(2, 3, 5), floats(5, 12), floats(12), np.full(8, 3, np.int32)],
            {"num_heads": 2},
        ),
    ),
    (
        "present values",
        _case(
            "Attention",
            [floats(2, 3, 5), floats(5, 20), floats(20)],
            {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]},
            outputs=2,
        ),
    ),
]


@pytest.mark.parametrize(("why", "case"), WHOLE)
def test_what_is_whole_says_why(why: str, case: Case) -> None:
    opaque = check_whole(case).access.opaque
    assert opaque is not None and why in opaque
