"""Element types: our table says what the onnx package says, which an agent does not load."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from edgepart.agent.wire.dtypes import NUMBERS, element_dtype, element_name, is_sub_byte, onnx_number

ONNX = {name.lower(): number for name, number in TensorProto.DataType.items() if number}


def test_onnx_has_the_same_names_and_numbers() -> None:
    """An older onnx may lack the newest types."""
    assert ONNX.items() <= NUMBERS.items()
    assert list(NUMBERS.values()) == list(range(1, len(NUMBERS) + 1))


@pytest.mark.parametrize("name", ONNX)
def test_a_type_is_the_one_that_onnx_takes(name: str) -> None:
    dtype = element_dtype(name)
    assert dtype == element_dtype(name.upper()) == helper.tensor_dtype_to_np_dtype(ONNX[name])
    assert dtype is not None and element_name(dtype) == name and onnx_number(dtype) == ONNX[name]


def test_other_names_and_types() -> None:
    assert [element_dtype(name) for name in ("undefined", "sequence", "float32", "object", "")] == [None] * 5
    assert element_name(np.dtype("datetime64[s]")) == "datetime64[s]"
    assert onnx_number(np.dtype("<U3")) == TensorProto.STRING
    for none_of_onnx in ("datetime64[s]", ">i4"):
        with pytest.raises(KeyError):
            onnx_number(np.dtype(none_of_onnx))


def test_what_is_less_than_a_byte() -> None:
    found = {name for name in NUMBERS if (dtype := element_dtype(name)) is not None and is_sub_byte(dtype)}
    assert found == {"int2", "uint2", "int4", "uint4", "float4e2m1"} & {
        name for name in NUMBERS if element_dtype(name) is not None
    }
