"""Blobs: the bytes of a weight, or of the region of one, that a segment refers to by digest.

Rules: cutting, packing, hashing. Where blobs are kept is the agents' business.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np

from edgepart.planner.model.graph import Constant
from edgepart.planner.region import Array, Region

INLINE_BYTES = 1024
"""Constants up to this size stay inside the segment: shapes, axes, scales, which the runtime wants to see."""

SUB_BYTE = ("int2", "uint2", "int4", "uint4", "float4e2m1")
"""Several elements share a byte, so that there is no array of them to hand to a session: always inside the
segment."""


def is_inline(constant: Constant, region: Region) -> bool:
    """Whether that region of `constant` is written into the segment."""
    if constant.dtype == "string" or constant.dtype in SUB_BYTE:
        return True
    return nbytes_of(constant, region) <= INLINE_BYTES


def nbytes_of(constant: Constant, region: Region) -> int:
    return region.size * constant.nbytes // max(1, constant.region.size)


def cut(constant: Constant, region: Region) -> Array:
    """The packed, contiguous, little-endian elements of `region`; reads the constant."""
    array = np.asarray(region.crop(constant.load()).reshape(region.shape), order="C")
    return array.astype(array.dtype.newbyteorder("<"), copy=False) if sys.byteorder == "big" else array


def digest_of(constant: Constant, region: Region) -> str:
    """SHA-256 (hex) of the bytes that `cut` gives."""
    return hashlib.sha256(cut(constant, region).reshape(-1).view(np.uint8).data).hexdigest()
