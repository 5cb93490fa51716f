"""Schedule: when and where each task runs, and the answer of a placer. Facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgepart.planner.placing.problem.networks import Networks


@dataclass(frozen=True, slots=True)
class PlacedTransfer:
    """The transfer of a tensor from one machine to another."""

    tensor: int
    """Index of the tensor in the workload."""
    source: int
    target: int
    """Indices of the two machines."""
    start_s: float
    end_s: float


@dataclass(frozen=True)
class PlacementSchedule:
    """The schedule of one sample: when each task starts, and all transfers."""

    placement: tuple[int, ...]
    """The index of each task's machine."""
    start_s: tuple[float, ...]
    transfers: tuple[PlacedTransfer, ...]
    makespan_s: float
    """The time at which the last task ends."""


@dataclass(frozen=True)
class PlacementFound:
    """The answer of a placer."""

    placement: tuple[int, ...]
    value_s: float
    """The makespan for latency, and the largest load for throughput."""
    schedule: PlacementSchedule | None = None
    """The schedule for latency; None for throughput."""
    bound_s: float | None = None
    """A lower bound: no placement has a smaller value. None if nothing was proved."""
    replicas: tuple[tuple[int, ...], ...] = ()
    """The machines that take turns at each task, the one of `placement` first; () if each task is on one
    machine. Only for throughput."""
    why: str = ""
    """A sentence that says what decided the placement, and what was left out of the search."""

    @property
    def gap(self) -> float | None:
        """The part of the value by which it may be too large; 0 if it is proved to be the best, None without a bound."""
        if self.bound_s is None:
            return None
        return max(0.0, 1 - self.bound_s / self.value_s) if self.value_s else 0.0


@dataclass(frozen=True)
class Asked:
    """The objective of a placement, and the time that the search for it may take."""

    clock: Callable[[], float]
    """Returns the seconds that have passed, as the caller counts them."""
    objective: str = "latency"
    """The objective: "latency" or "throughput"."""
    budget_s: float = 10.0
    """The approximate time for the search."""
    patient: bool = True
    """Whether the search goes on to the end of its budget even if nothing better has come for long."""
    tell: Callable[[float], None] = lambda value_s: None
    """Is called with values of placements that are found. The least of them is that of the best so far."""
    start: PlacementFound | None = None
    """What a placer that improves a placement may start from, in place of what it would ask others for."""
    networks: Networks | None = None
    """What runs the networks of placers that are guided by one. If None, these placers are not available."""
