"""Blobs: the bytes of a weight, or of a region of a weight, to which a segment refers by digest. Pure rules
for cutting, packing and hashing them; agents store them.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np

from edgepart.planner.model.graph import Constant
from edgepart.planner.region import Array, Region

INLINE_BYTES = 1024
"""Constants up to this size stay inside the segment: shapes, axes and scales, whose values the runtime's optimiser uses."""

SUB_BYTE = ("int2", "uint2", "int4", "uint4", "float4e2m1")
"""Types of which several elements share a byte. A session cannot be given an array of such a type, so
constants of these types always stay inside the segment."""


def is_inline(constant: Constant, region: Region) -> bool:
    """Whether this region of `constant` is stored inside the segment."""
    if constant.dtype == "string" or constant.dtype in SUB_BYTE:
        return True
    return region_bytes(constant, region) <= INLINE_BYTES


def region_bytes(constant: Constant, region: Region) -> int:
    return region.size * constant.nbytes // max(1, constant.region.size)


def pack_constant(constant: Constant, region: Region) -> Array:
    """The packed, contiguous, little-endian elements of `region`; reads the constant."""
    array = np.asarray(region.crop(constant.load()).reshape(region.shape), order="C")
    return array.astype(array.dtype.newbyteorder("<"), copy=False) if sys.byteorder == "big" else array


def blob_digest(constant: Constant, region: Region) -> str:
    """SHA-256 (hex) of the bytes that `pack_constant` gives."""
    return hashlib.sha256(pack_constant(constant, region).reshape(-1).view(np.uint8).data).hexdigest()
