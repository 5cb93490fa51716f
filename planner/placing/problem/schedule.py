"""Schedule: when what runs where, and what a placer found. Facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlacedTransfer:
    """A tensor on its way."""

    tensor: int
    """Index in the workload."""
    source: int
    target: int
    """Indices of machines."""
    start_s: float
    end_s: float


@dataclass(frozen=True)
class PlacementSchedule:
    """One sample through the machines."""

    placement: tuple[int, ...]
    """By task, the index of its machine."""
    start_s: tuple[float, ...]
    """The start of each task."""
    transfers: tuple[PlacedTransfer, ...]
    makespan_s: float
    """When the last task ends."""


@dataclass(frozen=True)
class PlacementFound:
    """What a placer answers."""

    placement: tuple[int, ...]
    value_s: float
    """The makespan for latency, and the largest load for throughput."""
    schedule: PlacementSchedule | None = None
    """None for throughput."""
    bound_s: float | None = None
    """No placement has a smaller value; None where nothing was proved."""
    replicas: tuple[tuple[int, ...], ...] = ()
    """By task, the machines that take turns at it, the one of `placement` first; () where each task is on one machine.
    Only for throughput."""
    why: str = ""
    """A sentence that says what decided it, and what was left out of the search."""

    @property
    def gap(self) -> float | None:
        """By how much of it the value may be too large; 0 for what is proved to be best."""
        if self.bound_s is None:
            return None
        return max(0.0, 1 - self.bound_s / self.value_s) if self.value_s else 0.0


@dataclass(frozen=True)
class Asked:
    """What a placement is to be good for, and what finding it may cost."""

    clock: Callable[[], float]
    """Seconds that pass, as whoever asks counts them."""
    objective: str = "latency"
    """The objective: "latency" or "throughput"."""
    budget_s: float = 10.0
    """The time for the search, about."""
