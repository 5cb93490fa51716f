"""Engine: one execution provider of ONNX Runtime on one device of a box, at one precision, as it was measured. Facts.

The CPU's own provider has no Engine: the figures of the Device are its figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from edgepart.planner.devices.rates import SUBSTITUTE_FAMILIES, Rates, curves_by_name

CPU = ""
"""The name, in plans, of a device's CPU provider."""
EXACT = "float32"
"""The precision of engines whose answers are the CPU's but for the order of additions."""


@dataclass(frozen=True)
class Engine:
    """How fast an engine computes, and what it takes to move values to it and back."""

    name: str
    """The engine's name, unique on its device: "openvino-cpu"."""
    provider: str
    """The name of its provider in ONNX Runtime."""
    families: Mapping[str, float] = field(default_factory=dict)
    """Maps each family of operators that the engine computes to its FLOP/s, as `Device.families` does. Operators of other
    families cannot run on it."""
    moves: Mapping[str, float] = field(default_factory=dict)
    """Maps each kind of operators that mostly move data, and that the engine can run, to its bytes/s."""
    flops_per_s: float = 1e9
    """FLOP/s on convolutions, for operators that name no measured family."""
    memory_bytes_per_s: float = 1e9
    """Bytes/s achieved by memory-bound operators."""
    segment_s: float = 0.0
    """The fixed cost of starting one segment on it."""
    kernel_s: float = 0.0
    """The fixed cost of each operator."""
    copy_s: float = 0.0
    """The fixed cost of copying one value to the engine's memory or from it."""
    copy_bytes_per_s: float | None = None
    """The rate of these copies; None for an engine that works in the CPU's memory, where nothing is copied."""
    memory_bytes: float | None = None
    """The engine's own memory; None if it uses the device's."""
    precision: str = EXACT
    """The type in which it computes what models have in float32. An engine of another precision rounds, and is used only
    where the user allows it."""
    threads: int = 1
    lacks: frozenset[str] = frozenset()
    """Names of operators, of the model that is planned, that the engine was found not to take."""
    drift: float = 1.0
    """The factor by which trials of the model that is planned took longer on the engine than calibrated, compared with what
    they took on the CPU; the figures above are those with it."""
    untried: bool = False
    """Whether the engine has yet to be tried with the model that is planned. It is then given stages for which it is not
    predicted to be the quickest, so that its drift is found."""
    refused: frozenset[str] = frozenset()
    """Digests of segments that the engine crashed on, hung on, failed on, answered wrongly or computed more slowly than the
    CPU, which computes them."""

    @cached_property
    def rates(self) -> Rates:
        """The measured speeds, for look-ups by family or kind, and by size."""
        return Rates(
            curves_by_name(self.families),
            curves_by_name(self.moves),
            self.flops_per_s,
            self.memory_bytes_per_s,
        )

    def computes(self, family: str, kind: str) -> bool:
        """Whether the engine can run operators of `family`; of `kind`, if that is not "" (planner/cost/work.py)."""
        if kind:
            return kind in self.rates.moves
        known = self.rates.families
        return family in known or SUBSTITUTE_FAMILIES.get(family, "") in known

    def copying_s(self, values: int, nbytes: float) -> float:
        """Seconds to copy so many values, of `nbytes` together, to the engine's memory or from it."""
        return 0.0 if self.copy_bytes_per_s is None else values * self.copy_s + nbytes / self.copy_bytes_per_s

    def with_drift(self, drift: float) -> Engine:
        """The same engine, on which everything takes `drift` times as long as calibrated."""
        return replace(self.slowed(drift / self.drift), drift=drift)

    def slowed(self, slower: float) -> Engine:
        """The same engine, on which everything takes `slower` times as long."""
        return replace(
            self,
            flops_per_s=self.flops_per_s / slower,
            memory_bytes_per_s=self.memory_bytes_per_s / slower,
            segment_s=self.segment_s * slower,
            kernel_s=self.kernel_s * slower,
            families={name: rate / slower for name, rate in self.families.items()},
            moves={name: rate / slower for name, rate in self.moves.items()},
            copy_s=self.copy_s * slower,
            copy_bytes_per_s=self.copy_bytes_per_s and self.copy_bytes_per_s / slower,
        )
