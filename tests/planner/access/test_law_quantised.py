"""The law for quantised and packed operators of ONNX Runtime's own domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepart.planner.region import Array, Region, span
from tests.planner.access.law import Case, check_any_region, check_whole, declared, floats

MICROSOFT = "com.microsoft"
EXAMPLES = settings(max_examples=10)
FEW = settings(max_examples=5)

OPERATORS = frozenset(
    [
        "DynamicQuantizeMatMul",
        "FusedGemm",
        "GatherBlockQuantized",
        "MatMulBnb4",
        "MatMulInteger16",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "NhwcMaxPool",
        "QGemm",
        "QLinearAveragePool",
        "QLinearConcat",
        "QLinearConv",
        "QLinearGlobalAveragePool",
        "QLinearSoftmax",
        "QLinearWhere",
        "TransposeMatMul",
    ]
)


def _case(
    op_type: str, inputs: Sequence[Array | None], constants: Sequence[int] = (), **attributes: Any
) -> Case:
    return Case(
        op_type, inputs, attributes, version=1, domain=MICROSOFT, opset=17, constants=frozenset(constants)
    )


def _bytes(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def _small(*shape: int, seed: int = 0, kind: Any = np.int8) -> Array:
    """Seven bits: with eight, kernels for AVX2 saturate between products, each kernel in its own way."""
    return np.random.default_rng(seed).integers(-64, 64, shape).astype(kind)


def _scale(value: float) -> Array:
    return np.asarray(value, np.float32)


def _scales(*shape: int, seed: int = 0) -> Array:
    return floats(*shape, seed=seed, low=0.01, high=0.1)


def _zero(value: int, kind: Any = np.uint8) -> Array:
    return np.asarray(value, kind)


@EXAMPLES
@given(st.sampled_from([2, 4, 8]), st.sampled_from([16, 32]), st.sampled_from([40, 64, 96]), st.data())
def test_matmul_in_blocks(bits: int, block: int, inner: int, data: st.DataObject) -> None:
    columns, blocks = 5, -(-inner // block)
    flat = data.draw(st.booleans(), "flat scales")
    rows = data.draw(st.sampled_from([(), (3,), (2, 3)]), "rows")
    weights = _bytes(columns, blocks, block * bits // 8)
    scales = _scales(columns, blocks)
    inputs: list[Array | None] = [floats(*rows, inner), weights, scales.reshape(-1) if flat else scales]
    if data.draw(st.booleans(), "zero points"):
        zeros = _bytes(columns, -(-blocks * bits // 8), seed=1)
        inputs.append(zeros.reshape(-1) if flat else zeros)
    if data.draw(st.booleans(), "bias"):
        inputs += [*[None] * (5 - len(inputs)), floats(columns, seed=2)]
    level = data.draw(st.sampled_from([0, 1]), "accuracy")
    attributes = {"N": columns, "K": inner, "bits": bits, "block_size": block, "accuracy_level": level}
    constants = [n for n in range(1, len(inputs)) if inputs[n] is not None]
    check_any_region(declared(_case("MatMulNBits", inputs, constants, **attributes)), data, tries=2)


def test_parts_of_a_packed_sum_are_whole_bytes_of_zero_points() -> None:
    """Of four bits, two blocks of 16 share a byte: cuts fall on multiples of 32."""
    inputs = [floats(3, 96), _bytes(6, 6, 8), _scales(6, 6), _bytes(6, 3)]
    access = declared(_case("MatMulNBits", inputs, (1, 2, 3), N=6, K=96, bits=4, block_size=16)).access
    found = [(axis.name, axis.extent, axis.quantum, axis.reducer) for axis in access.axes()]
    assert found == [("batch", 3, 1, None), ("channel", 6, 1, None), ("inner", 96, 32, "sum")]
    part = access.reduction(access.axes()[-1]).part(span((32, 96))[0])
    wanted = {0: Region.box((0, 3), (2, 4))}
    assert part.needs(wanted) == (
        Region.box((0, 3), (32, 96)),
        Region.box((2, 4), (2, 6), (0, 8)),
        Region.box((2, 4), (2, 6)),
        Region.box((2, 4), (1, 3)),
    )
    assert part.flops(wanted) == 2 * 3 * 2 * 64


@FEW
@given(st.booleans(), st.sampled_from([0, 1]), st.data())
def test_matmul_of_four_bit_floats(deep: bool, kind: int, data: st.DataObject) -> None:
    weights = _bytes(192, 1) if deep else _bytes(192)
    attributes = {"N": 6, "K": 64, "block_size": 32, "quant_type": kind}
    case = _case("MatMulBnb4", [floats(2, 3, 64), weights, _scales(12)], (1, 2), **attributes)
    check_any_region(declared(case), data, tries=2)


@FEW
@given(st.sampled_from([(4,), (2, 2), ()]), st.data())
def test_gather_of_blocks(shape: tuple[int, ...], data: st.DataObject) -> None:
    indices = np.asarray(np.arange(4)[: int(np.prod(shape))] * 3 - 1, np.int64).reshape(shape)
    table = [_bytes(12, 16), indices, _scales(12, 2), _bytes(12, 1, seed=1)]
    attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": 16, "bits": 4}
    check_any_region(declared(_case("GatherBlockQuantized", table, (0, 2, 3), **attributes)), data, tries=2)


@EXAMPLES
@given(st.data())
def test_dynamic_matmul(data: st.DataObject) -> None:
    per = data.draw(st.sampled_from([(), (6,)]), "scales")
    inputs: list[Array | None] = [
        floats(2, 3, 8),
        _small(8, 6),
        np.asarray(_scales(6)[: per[0]] if per else 0.1),
    ]
    inputs[2] = np.asarray(inputs[2], np.float32)
    zeros = data.draw(st.booleans(), "zero points")
    inputs.append(np.zeros(per, np.int8) if zeros else None)
    inputs.append(floats(6, seed=3) if data.draw(st.booleans(), "bias") else None)
    checked = declared(_case("DynamicQuantizeMatMul", inputs))
    assert [axis.name for axis in checked.access.axes()] == ["feature"]
    check_any_region(checked, data, tries=2)


def test_the_scale_of_a_dynamic_matmul_is_that_of_all_rows() -> None:
    access = declared(_case("DynamicQuantizeMatMul", [floats(3, 8), _small(8, 6), _scale(0.1)])).access
    needs = access.needs({0: Region.box((1, 2), (2, 4))})
    assert needs == (Region.full((3, 8)), Region.box((0, 8), (2, 4)), Region(()))


@EXAMPLES
@given(st.data())
def test_matmul_to_float(data: st.DataObject) -> None:
    per = data.draw(st.sampled_from([(), (6,)]), "scales")
    batch = () if per else data.draw(st.sampled_from([(), (2,)]), "batch")
    scale = _scale(0.1) if not per else _scales(6)
    inputs: list[Array | None] = [_bytes(2, 3, 8), _small(*batch, 8, 6), _scale(0.05), scale]
    if data.draw(st.booleans(), "zero points"):
        inputs += [_zero(3), np.full(per, 2, np.int8)]
    if data.draw(st.booleans(), "bias"):
        inputs += [*[None] * (6 - len(inputs)), floats(6, seed=3)]
    check_any_region(declared(_case("MatMulIntegerToFloat", inputs)), data, tries=2)


@EXAMPLES
@given(st.integers(0, 1), st.integers(0, 1), st.booleans(), st.data())
def test_quantised_gemm(across_a: int, across_b: int, rounded: bool, data: st.DataObject) -> None:
    per = data.draw(st.sampled_from([(), (6,)]), "scales")
    shape = data.draw(st.sampled_from([(6,), (1, 6), (3, 1), None]), "addend")
    scale = _scale(0.1) if not per else _scales(6)
    addend = None if shape is None else _small(*shape, kind=np.int32)
    a, b = _bytes(*(8, 3) if across_a else (3, 8)), _small(*(6, 8) if across_b else (8, 6))
    inputs: list[Array | None] = [a, _scale(0.05), _zero(3), b, scale, np.full(per, 2, np.int8), addend]
    if rounded:
        inputs += [_scale(0.4), _zero(9)]
    checked = declared(_case("QGemm", inputs, transA=across_a, transB=across_b, alpha=0.5))
    assert [axis.reducer for axis in checked.access.axes()] == [None, None, *([] if rounded else ["sum"])]
    check_any_region(checked, data, tries=2)


@FEW
@given(
    st.sampled_from([{"activation": "Relu"}, {"activation": "LeakyRelu", "activation_alpha": 0.2}]), st.data()
)
def test_fused_gemm(activation: dict[str, Any], data: st.DataObject) -> None:
    """An activation comes after the sum, which is therefore not cut."""
    case = _case("FusedGemm", [floats(3, 8), floats(6, 8), floats(6)], transB=1, beta=0.5, **activation)
    checked = declared(case)
    assert [axis.name for axis in checked.access.axes()] == ["batch", "channel"]
    check_any_region(checked, data, tries=2)


def _windows(data: st.DataObject) -> dict[str, Any]:
    how = data.draw(st.sampled_from(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]), "auto_pad")
    strides = [data.draw(st.integers(1, 2), "stride") for _ in range(2)]
    if how != "NOTSET":
        return {"strides": strides, "auto_pad": how}
    return {"strides": strides, "pads": [data.draw(st.integers(0, 1), "pad") for _ in range(4)]}


@EXAMPLES
@given(st.sampled_from([1, 2, 4]), st.integers(0, 1), st.data())
def test_convolution(groups: int, last: int, data: st.DataObject) -> None:
    per = data.draw(st.sampled_from([(), (8,)]), "scales")
    shape = (2, 6, 5, 4) if last else (2, 4, 6, 5)
    scale = _scale(0.02) if not per else _scales(8)
    inputs: list[Array | None] = [
        _bytes(*shape),
        _scale(0.05),
        _zero(120),
        _small(8, 4 // groups, 3, 2),
        scale,
        np.zeros(per, np.int8),
        _scale(0.3),
        _zero(100),
        _small(8, kind=np.int32) if data.draw(st.booleans(), "bias") else None,
    ]
    constants = [n for n in range(1, 9) if inputs[n] is not None]
    attributes = {**_windows(data), "group": groups, "channels_last": last}
    checked = declared(_case("QLinearConv", inputs, constants, **attributes))
    names = {axis.index: axis.name for axis in checked.access.axes()}
    expected = ["batch", "height", "width", "channel"] if last else ["batch", "channel", "height", "width"]
    assert all(expected[index] == name for index, name in names.items())
    check_any_region(checked, data, tries=2)


@EXAMPLES
@given(st.data())
def test_max_pool_with_channels_last(data: st.DataObject) -> None:
    attributes = {**_windows(data), "kernel_shape": [3, 2], "ceil_mode": data.draw(st.integers(0, 1), "ceil")}
    if "auto_pad" in attributes:
        attributes["ceil_mode"] = 0
    check_any_region(declared(_case("NhwcMaxPool", [_bytes(2, 6, 5, 4)], **attributes)), data, tries=2)


@EXAMPLES
@given(st.integers(0, 1), st.integers(0, 1), st.data())
def test_average_pool(last: int, counted: int, data: st.DataObject) -> None:
    attributes = {**_windows(data), "kernel_shape": [3, 2], "ceil_mode": data.draw(st.integers(0, 1), "ceil")}
    if "auto_pad" in attributes:
        attributes["ceil_mode"] = 0
    inputs = [_bytes(2, 6, 5, 4), _scale(0.1), _zero(3), _scale(0.2), _zero(4)]
    case = _case("QLinearAveragePool", inputs, channels_last=last, count_include_pad=counted, **attributes)
    check_any_region(declared(replace(case, steps=1)), data, tries=2)


@FEW
@given(st.integers(0, 1), st.data())
def test_global_average_pool(last: int, data: st.DataObject) -> None:
    inputs = [_bytes(2, 6, 5, 4), _scale(0.1), _zero(3), _scale(0.2), _zero(4)]
    checked = declared(_case("QLinearGlobalAveragePool", inputs, channels_last=last))
    assert [(axis.name, axis.index) for axis in checked.access.axes()] == [
        ("batch", 0),
        ("channel", 3 if last else 1),
    ]
    check_any_region(checked, data, tries=2)


@EXAMPLES
@given(st.integers(-3, 2), st.sampled_from([11, 13]), st.data())
def test_softmax(axis: int, opset: int, data: st.DataObject) -> None:
    inputs = [_bytes(3, 4, 5), _scale(0.1), _zero(3), _scale(1 / 256), _zero(0)]
    checked = declared(_case("QLinearSoftmax", inputs, (1, 2, 3, 4), axis=axis, opset=opset))
    assert len(checked.access.axes()) == (axis % 3 if opset < 13 else 2)
    check_any_region(checked, data, tries=2)


@FEW
@given(st.data())
def test_where(data: st.DataObject) -> None:
    chosen = np.asarray([[True], [False], [True]])
    inputs = [
        chosen,
        _bytes(2, 3, 4),
        _scale(0.1),
        _zero(3),
        _bytes(4),
        _scale(0.2),
        _zero(4),
        _scale(0.2),
        _zero(1),
    ]
    check_any_region(declared(_case("QLinearWhere", inputs, (2, 3, 5, 6, 7, 8))), data, tries=2)


@EXAMPLES
@given(st.integers(-3, 2), st.data())
def test_concat(axis: int, data: st.DataObject) -> None:
    inputs = [_scale(0.15), _zero(7)]
    for n in range(data.draw(st.integers(1, 3), "parts")):
        shape = [2, 3, 4]
        shape[axis] = n + 1
        inputs += [_bytes(*shape, seed=n), _scale(0.1 + n / 20), _zero(n)]
    constants = [n for n in range(len(inputs)) if n < 2 or n % 3 != 2]
    check_any_region(declared(_case("QLinearConcat", inputs, constants, axis=axis)), data, tries=2)


def test_concat_reads_no_part_that_is_not_wanted() -> None:
    inputs = [_scale(0.1), _zero(1), _bytes(2, 3), _scale(0.1), _zero(1), _bytes(2, 4), _scale(0.2), _zero(2)]
    access = declared(_case("QLinearConcat", inputs, (0, 1, 3, 4, 6, 7), axis=1)).access
    needs = access.needs({0: Region.box((0, 2), (4, 6))})
    whole = Region(())
    assert needs == (whole, whole, None, None, None, Region.box((0, 2), (1, 3)), whole, whole)


OTHERS = [
    _case("MatMulInteger16", [_small(3, 8, kind=np.int16), _small(8, 6, kind=np.int16, seed=1)]),
    _case("TransposeMatMul", [floats(2, 5, 4), floats(2, 6, 5)], transA=1, transB=1, alpha=0.5),
]


@pytest.mark.parametrize("number", range(len(OTHERS)), ids=lambda n: f"{OTHERS[n].op_type}-{n}")
@settings(max_examples=4)
@given(data=st.data())
def test_others(number: int, data: st.DataObject) -> None:
    check_any_region(declared(OTHERS[number]), data)


@pytest.mark.parametrize(
    ("why", "case"),
    [
        (
            "several matrices",
            _case("MatMulIntegerToFloat", [_bytes(2, 3, 8), _small(2, 8, 6), _scale(0.05), _scales(6)]),
        ),
        (
            "order of its blocks",
            _case(
                "MatMulNBits",
                [floats(2, 32), _bytes(5, 2, 8), _scales(5, 2), None, np.zeros(32, np.int32)],
                (1, 2, 4),
                N=5,
                K=32,
                bits=4,
                block_size=16,
            ),
        ),
        (
            "several columns",
            _case(
                "MatMulBnb4",
                [floats(2, 48), _bytes(48), _scales(3)],
                (1, 2),
                N=2,
                K=48,
                block_size=32,
                quant_type=1,
            ),
        ),
    ],
)
def test_what_cannot_be_split_says_why(why: str, case: Case) -> None:
    access = check_whole(case).access
    assert access.opaque is not None and why in access.opaque
