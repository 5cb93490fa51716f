"""Rates: how fast a device does each kind of work, as measured on it. Facts and pure rules.

A rate has a name and, if it depends on the size of the work, a size after a slash: "conv/8" is the rate of
convolutions that write 8 channels. Between two measured sizes, the rate is interpolated (rate and size on
logarithmic scales); below the smallest and above the largest size, the rate is constant. A bare name is the
rate for large sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, log

LARGE_SIZE = 64
"""The size, in channels or rows, that a bare name stands for. Rates hardly grow beyond this size."""

SUBSTITUTE_FAMILIES: Mapping[str, str] = {
    "stem": "conv",
    "large": "conv",
    "grouped": "pointwise",
    "int8": "gemm",
    "int8_conv": "conv",
}
"""Maps a family to another family, whose rate it takes if its own was not measured."""

STREAM = "elementwise"
"""The kind of operators that only move bytes: no other kind is faster, except WEIGHTS."""

WEIGHTS = "weights"
"""The kind of matrix products with one row, which read each weight once."""

COLUMNS = "columns"
"""The family of matrix products that write few columns."""


@dataclass(frozen=True)
class Curve:
    """A rate as a function of size."""

    points: tuple[tuple[float, float], ...]
    """Pairs (size, rate), sorted by size; at least one."""

    def at(self, size: float) -> float:
        """The rate at `size`.

        >>> Curve(((1.0, 10.0), (4.0, 40.0))).at(2.0)
        20.0
        """
        before = self.points[0]
        if size <= before[0]:
            return before[1]
        for point in self.points[1:]:
            if size <= point[0]:
                part = log(size / before[0]) / log(point[0] / before[0])
                return round(exp(log(before[1]) + part * log(point[1] / before[1])), 9)
            before = point
        return before[1]

    @property
    def last(self) -> float:
        """The rate for large sizes."""
        return self.points[-1][1]


def curves_by_name(rates: Mapping[str, float]) -> dict[str, Curve]:
    """The curve of each name. Raises ValueError for a size that is not a positive number.

    >>> curves_by_name({"conv": 8.0, "conv/8": 4.0})["conv"].points
    ((8.0, 4.0), (64.0, 8.0))
    """
    found: dict[str, dict[float, float]] = {}
    for key, rate in rates.items():
        name, slash, size = key.partition("/")
        where = float(size) if slash else float(LARGE_SIZE)
        if not 0 < where < float("inf"):
            raise ValueError(f"{key!r}: the size behind the slash has to be a positive number")
        found.setdefault(name, {})[where] = rate
    return {name: Curve(tuple(sorted(points.items()))) for name, points in found.items()}


@dataclass(frozen=True)
class Rates:
    """The measured speeds of one device."""

    families: Mapping[str, Curve]
    """FLOP/s by family of operators that mostly compute; sizes are channels written, or rows."""
    moves: Mapping[str, Curve]
    """Bytes/s, read and written, by kind of operators that mostly move data; sizes are bytes."""
    flops_per_s: float
    """FLOP/s of a family that was not measured."""
    memory_bytes_per_s: float
    """Bytes/s of a kind that was not measured."""
    _memory: dict[tuple[str, float, float], float] = field(default_factory=dict, compare=False, repr=False)

    def flops(self, family: str, size: float = 0.0, columns: float = 0.0) -> float:
        """The FLOP/s of `family`. A `size` or `columns` of 0 stands for a large number."""
        key = (family, size, columns)
        found = self._memory.get(key)
        if found is None:
            found = self._memory[key] = self._flops(family, size, columns)
        return found

    def _flops(self, family: str, size: float, columns: float) -> float:
        curve = self.families.get(family) or self.families.get(SUBSTITUTE_FAMILIES.get(family, ""))
        if curve is None:
            return self.flops_per_s
        narrow = self.families.get(COLUMNS) if columns else None
        part = min(1.0, narrow.at(columns) / narrow.last) if narrow else 1.0
        return part * (curve.at(size) if size else curve.last)

    def bytes_per_s(self, kind: str, nbytes: float) -> float | None:
        """Bytes/s of operators of `kind` that read and write `nbytes`; None if the kind was not measured."""
        curve = self.moves.get(kind)
        if curve is None:
            return None
        stream = self.moves.get(STREAM)
        return min(curve.at(nbytes), stream.at(nbytes)) if stream and kind != WEIGHTS else curve.at(nbytes)

    @property
    def weights_per_s(self) -> float:
        """Bytes/s of weights that are not in any cache."""
        curve = self.moves.get(WEIGHTS)
        return curve.last if curve else self.memory_bytes_per_s
