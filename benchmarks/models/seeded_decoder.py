"""Weights of a decoder drawn by a seed, in four bits: as large as a model of a billion parameters in each layer. Rules.

Its text means nothing. What counts is that its products have the sizes of those that people deploy.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import numpy as np

from benchmarks.models.decoder_graph import BLOCK, Blocks, DecoderShape
from edgepart.planner.region import Array

BILLION = DecoderShape(
    name="billion_int4",
    layers=8,
    hidden=2048,
    heads=32,
    kv_heads=8,
    size=64,
    inner=8192,
    vocabulary=49152,
    context=8192,
    epsilon=1e-5,
    base=500_000.0,
)
"""Half the layers of a model of a billion parameters, with the vocabulary of the tokenizer that is at hand."""

DEVIATION = 4.6
"""The standard deviation of numbers from 0 to 15, all equally likely."""


class SeededWeights:
    """Implements DecoderWeights. The numbers are drawn anew for each name, so that none depends on another."""

    def __init__(self, shape: DecoderShape = BILLION, seed: int = 0) -> None:
        self.shape = shape
        self._seed = seed

    def matrix(self, name: str) -> Array:
        outputs, inputs = self._extents(name)
        found: Array = self._rng(name).standard_normal((outputs, inputs), np.float32)
        return found

    def blocks(self, name: str) -> Blocks:
        outputs, inputs = self._extents(name)
        packed: Array = self._rng(name).integers(
            0, 256, (outputs, inputs // BLOCK, BLOCK // 2), dtype=np.uint8
        )
        scale = 1 / (DEVIATION * math.sqrt(inputs))
        return Blocks(packed, np.full((outputs, inputs // BLOCK), scale, np.float32), 4)

    def norm(self, name: str) -> Array:
        return np.ones(self.shape.hidden, np.float32)

    def _extents(self, name: str) -> tuple[int, int]:
        shape = self.shape
        wide, narrow = shape.heads * shape.size, shape.kv_heads * shape.size
        extents: Mapping[str, tuple[int, int]] = {
            "q": (wide, shape.hidden),
            "k": (narrow, shape.hidden),
            "v": (narrow, shape.hidden),
            "o": (shape.hidden, wide),
            "gate": (shape.inner, shape.hidden),
            "up": (shape.inner, shape.hidden),
            "down": (shape.hidden, shape.inner),
        }
        return extents.get(name.partition(".")[2], (shape.vocabulary, shape.hidden))

    def _rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, zlib.crc32(name.encode())])
