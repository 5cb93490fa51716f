"""Numbers of few bits, against ONNX Runtime's own quantiser and against what they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from edgepart.agent.quantise.blocks import quantise_matrix, quantise_rows
from tests.agent.quantise.models import matrix, model_of


@pytest.mark.parametrize(("kind", "bits"), [("int8", 8), ("int4", 4)])
@pytest.mark.filterwarnings("ignore")
def test_blocks_are_those_of_onnx_runtimes_quantiser(kind: str, bits: int) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    weight = matrix(128, 136)
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"], "product")], {"w": weight})
    quantiser = MatMulNBitsQuantizer(model, block_size=32, is_symmetric=bits == 8, bits=bits)
    quantiser.process()
    theirs = [
        numpy_helper.to_array(one) for one in quantiser.model.model.graph.initializer if one.name != "w"
    ]
    mine = quantise_matrix(weight, kind)
    wanted = [mine.packed, mine.scales, *([] if mine.middles is None else [mine.middles])]
    assert len(theirs) == len(wanted)
    for one, other in zip(wanted, theirs, strict=True):
        assert np.array_equal(one.ravel(), other.ravel())


@given(st.integers(1, 5000), st.integers(0, 2**32 - 1), st.sampled_from([np.float32, np.float16]))
def test_rows_are_within_half_a_step(count: int, seed: int, dtype: type) -> None:
    draw = np.random.default_rng(seed)
    table = (draw.standard_normal((count, 3)) * draw.choice([0, 1e-3, 1, 100], (count, 1))).astype(dtype)
    numbers, scales = quantise_rows(table)
    assert numbers.dtype == np.int8 and scales.dtype == dtype and scales.shape == (count, 1)
    steps = scales.astype(np.float64)
    # Scales in float16 are rounded, so that the largest numbers of a row may be one step of the scale off.
    allowed = steps / 2 * 1.001 + 127 * np.spacing(scales).astype(np.float64)
    if dtype is np.float32:
        most = np.abs(numbers.astype(int)).max(axis=1)
        assert {*most.tolist()} <= {0, 127}, "Each row has all steps, but for rows of zeros."
    assert (np.abs(numbers * steps - table.astype(np.float64)) <= allowed).all()
