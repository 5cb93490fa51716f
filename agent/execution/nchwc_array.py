"""Blocked: the order of values in memory that ONNX Runtime's convolutions compute in (NCHWc). Rules: arrays only.

A blocked array has the shape of its tensor, (N, C, H, W), and its bytes are those of (N, C / block, H, W, block): `block`
channels of one place lie side by side. C is a multiple of the block. 0 stands for no blocks: the plain order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgepart.planner.region import Array


@dataclass(frozen=True, slots=True)
class KeptBlocked:
    """The tensors that a program keeps blocked between its segments."""

    block: int = 0
    """Number of channels per block; 0 if no tensor is kept blocked."""
    tensors: frozenset[str] = frozenset()
    """The plan's tensors that all ports on this device read and write as blocked arrays."""

    def block_of(self, tensor: str) -> int:
        return self.block if tensor in self.tensors else 0


PLAIN = KeptBlocked()


def by_block(array: Array, block: int) -> Array:
    """A view of shape (N, C / block, block, H, W) of a blocked array."""
    batch, channels, height, width = array.shape
    return array.reshape(batch, channels // block, height, width, block).transpose(0, 1, 4, 2, 3)


def to_blocked(plain: Array, block: int) -> Array:
    """A blocked array of the same numbers."""
    made = np.empty(plain.shape, plain.dtype)
    view = by_block(made, block)
    view[...] = plain.reshape(view.shape)
    return made


def to_plain(blocked: Array, block: int) -> Array:
    """A plain array of the same numbers."""
    return by_block(blocked, block).reshape(blocked.shape)
