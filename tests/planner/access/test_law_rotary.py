"""The law of access maps for what transformers have around attention: positions, embeddings, norms, gates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.region import Array
from tests.planner.access.law import Case, check_any_region, check_whole, declared, floats
from tests.planner.access.node_cases import node_cases

OPERATORS = frozenset(
    [
        "EmbedLayerNormalization",
        "QEmbedLayerNormalization",
        "RotaryEmbedding",
        "SimplifiedLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "SwiGLU",
    ]
)

FEW = settings(max_examples=4)
SOME = settings(max_examples=25)


def _microsoft(
    op_type: str, inputs: list[Array | None], attributes: dict[str, Any], outputs: int = 1
) -> Case:
    return Case(op_type, inputs, attributes, version=1, domain="com.microsoft", opset=17, outputs=outputs)


@st.composite
def rotary(draw: st.DrawFn) -> Case:
    batch, heads, rows = (draw(st.integers(1, 4)) for _ in range(3))
    size, flat, own = 16, draw(st.booleans(), "flat"), draw(st.booleans(), "microsoft")
    turned = draw(st.sampled_from([0, 8]), "turned")
    half = (turned or size) // 2
    x = floats(*((batch, rows, heads * size) if flat else (batch, heads, rows, size)))
    attributes: dict[str, Any] = {"interleaved": draw(st.integers(0, 1)), "rotary_embedding_dim": turned}
    if turned or (flat and (not own or draw(st.booleans()))):
        attributes["num_heads"] = heads
    places = np.random.default_rng(3).integers(0, 9, (batch, rows))
    tables = [floats(9, half, seed=n) for n in (1, 2)]
    if own:
        first = np.asarray([2], np.int64)
        inputs = [x, first if draw(st.booleans(), "first") else places, *tables]
        return _microsoft("RotaryEmbedding", [*inputs], attributes)
    if draw(st.booleans(), "placed"):
        return Case("RotaryEmbedding", [x, *tables, places], attributes, version=23)
    return Case(
        "RotaryEmbedding", [x, *(floats(batch, rows, half, seed=n) for n in (1, 2))], attributes, version=23
    )


@SOME
@given(case=rotary(), data=st.data())
def test_rotary_embedding(case: Case, data: st.DataObject) -> None:
    check_any_region(declared(case), data, tries=2)


@st.composite
def embedded(draw: st.DrawFn) -> Case:
    batch, rows, hidden = draw(st.integers(1, 3)), draw(st.integers(1, 5)), 6
    random = np.random.default_rng(5)
    words = random.integers(0, 11, (batch, rows)).astype(np.int32)
    segments = (
        random.integers(0, 2, (batch, rows)).astype(np.int32) if draw(st.booleans(), "segments") else None
    )
    mask = random.integers(0, 2, (batch, rows)).astype(np.int32) if draw(st.booleans(), "mask") else None
    shapes = [(11, hidden), (7, hidden), (2, hidden), (hidden,), (hidden,)]
    if draw(st.booleans(), "quantised"):
        tables: list[Array | None] = [random.integers(0, 255, shape).astype(np.uint8) for shape in shapes]
        scales: list[Array | None] = [np.asarray(0.01 * n, np.float32) for n in range(1, 6)]
        zeros: list[Array | None] = [np.asarray(n, np.uint8) for n in range(100, 105)]
        if segments is None:
            tables[2] = scales[2] = zeros[2] = None
        return _microsoft(
            "QEmbedLayerNormalization", [words, segments, *tables, mask, *scales, *zeros], {}, outputs=2
        )
    tables = [floats(*shape, seed=n) for n, shape in enumerate(shapes)]
    if segments is None:
        tables[2] = None
    places = random.integers(0, 7, (draw(st.sampled_from([1, batch])), rows)).astype(np.int32)
    given_places = [mask, places] if draw(st.booleans(), "places") else [mask]
    return _microsoft(
        "EmbedLayerNormalization",
        [words, segments, *tables, *given_places],
        {"epsilon": 1e-6},
        outputs=draw(st.sampled_from([2, 3])),
    )


@SOME
@given(case=embedded(), data=st.data())
def test_embeddings(case: Case, data: st.DataObject) -> None:
    check_any_region(declared(case), data, tries=2)


def _skips(*shape: int) -> Case:
    inputs: list[Array | None] = [floats(2, 4, 6), floats(*shape, seed=1), floats(6)]
    return _microsoft("SkipSimplifiedLayerNormalization", inputs, {"epsilon": 1e-6})


NORMS = [
    _skips(2, 4, 6),
    _skips(1, 4, 6),
    _skips(4, 6),
    _microsoft(
        "SkipSimplifiedLayerNormalization",
        [floats(8, 6), floats(8, 6, seed=1), floats(6), floats(6, seed=2)],
        {},
    ),
    Case(
        "SimplifiedLayerNormalization",
        [floats(2, 4, 6), floats(6)],
        {"axis": -1, "epsilon": 1e-4},
        version=17,
    ),
    Case("SimplifiedLayerNormalization", [floats(2, 4, 6), floats(4, 6)], {"axis": 1}, version=13),
    Case("SwiGLU", [floats(2, 3, 4), floats(2, 3, 4, seed=1)], {"alpha": 0.5}, version=28, reference=True),
    Case("SwiGLU", [floats(2, 3, 4), floats(2, 3, 4, seed=1)], version=28, reference=True),
]


@pytest.mark.parametrize("number", range(len(NORMS)))
@FEW
@given(data=st.data())
def test_norms_and_gates(number: int, data: st.DataObject) -> None:
    check_any_region(declared(NORMS[number]), data)


@settings(max_examples=1)
@given(data=st.data())
def test_the_cases_of_onnx(data: st.DataObject) -> None:
    cases = node_cases("RotaryEmbedding")
    assert len(cases) >= 8
    for case in cases.values():
        check_any_region(declared(case), data, tries=2)


def test_ragged_batches_are_whole() -> None:
    tables = [floats(9, 8, seed=n) for n in (1, 2)]
    case = _microsoft(
        "RotaryEmbedding",
        [floats(2, 2, 3, 16), np.zeros((2, 3), np.int64), *tables],
        {"is_packed_batching": 1},
    )
    opaque = check_whole(case).access.opaque
    assert opaque is not None and "packed" in opaque
