"""The law for ONNX Runtime's own QuantizeLinear and DequantizeLinear, which its quantisers write for 16-bit types."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.region import Array
from tests.planner.access.law import Case, check_any_region, declared, floats

OPERATORS = {"QuantizeLinear", "DequantizeLinear"}

SOME = settings(max_examples=5)


@pytest.mark.parametrize("kind", [np.uint8, np.int16])
@SOME
@given(data=st.data())
def test_quantised_as_a_whole_and_along_an_axis(kind: type, data: st.DataObject) -> None:
    axis = data.draw(st.sampled_from([None, 1, -1]), "axis")
    shape = (2, 3, 4)
    extent = () if axis is None else (shape[axis],)
    scale = np.random.default_rng(0).uniform(0.02, 0.1, extent).astype(np.float32)
    zero: Array = np.full(extent, 3, kind)
    chosen = {} if axis is None else {"axis": axis}
    quantise = Case("QuantizeLinear", [floats(*shape), scale, zero], chosen, 1, "com.microsoft", opset=17)
    quantised = declared(quantise)
    check_any_region(quantised, data)
    given_back = [quantised.results[0], scale, zero]
    check_any_region(
        declared(Case("DequantizeLinear", given_back, chosen, 1, "com.microsoft", opset=17)), data
    )
