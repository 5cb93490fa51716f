"""Numbers of few bits in place of floats. Door: ONNX Runtime's own quantiser makes the blocks, one matrix at a time.

ONNX Runtime's class around it (MatMulNBitsQuantizer) takes the whole model into memory, and needs the package onnx_ir.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnxruntime.capi import _pybind_state as native

from edgepart.agent.quantise.choice import BLOCK
from edgepart.agent.quantise.rewriting import BITS
from edgepart.planner.region import Array

ROWS_AT_ONCE = 4096
"""The rows of a table that are looked at at once, so that little of it is in memory."""


@dataclass(frozen=True)
class QuantisedMatrix:
    """A matrix in blocks of whole numbers, as MatMulNBits reads them."""

    packed: Array
    """[columns, blocks, bytes of a block]."""
    scales: Array
    """[columns, blocks]."""
    middles: Array | None
    """The zero points, packed: [columns, bytes]; None if the middle of each block is zero."""


def quantise_matrix(matrix: Array, kind: str) -> QuantisedMatrix:
    """The blocks of a matrix [inner, columns]. With int8 the middle of each block is zero; with int4 it is where the
    block's numbers lie best, as 16 steps are few."""
    bits, (inner, columns) = BITS[kind], matrix.shape
    count, centred = -(-inner // BLOCK), kind == "int8"
    packed = np.zeros((columns, count, BLOCK * bits // 8), np.uint8)
    scales = np.zeros((columns, count), matrix.dtype)
    middles = np.zeros((columns, -(-count * bits // 8)), np.uint8)
    quantise = native.quantize_matmul_8bits if bits == 8 else native.quantize_matmul_4bits
    quantise(packed, np.ascontiguousarray(matrix), scales, middles, BLOCK, columns, inner, centred)
    return QuantisedMatrix(packed, scales, None if centred else middles)


def quantise_rows(table: Array) -> tuple[Array, Array]:
    """The rows of a table as whole numbers of 8 bits, and the scale of each row: [rows, 1]."""
    numbers = np.empty(table.shape, np.int8)
    scales = np.empty((len(table), 1), table.dtype)
    for first in range(0, len(table), ROWS_AT_ONCE):
        rows = table[first : first + ROWS_AT_ONCE].astype(np.float32)
        most = np.abs(rows).max(axis=1, keepdims=True)
        scale = (most / 127).astype(table.dtype)
        steps = np.divide(rows, scale, out=np.zeros_like(rows), where=scale != 0)
        scales[first : first + len(rows)] = scale
        numbers[first : first + len(rows)] = np.clip(np.rint(steps), -127, 127)
    return numbers, scales
