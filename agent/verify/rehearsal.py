"""Rehearsal: divides a model along a given axis over devices that are all in this process, and runs it. Door: it makes
sessions.

Checks of a model use a rehearsal to find its axes, the operators that are really split along an axis, and the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from edgepart.agent.execution.runtime.shared_segments import SegmentCompiler
from edgepart.agent.verify.local_run import LocalRun
from edgepart.agent.wire.tensors import Value
from edgepart.planner.devices.cluster import Cluster, Device
from edgepart.planner.errors import UsageError
from edgepart.planner.layout.strategy import Problem
from edgepart.planner.lowering.evidence import count_devices, divided_operators
from edgepart.planner.lowering.lower import lower, make_plan
from edgepart.planner.model.graph import Graph
from edgepart.planner.planner import Digests
from edgepart.planner.plans.check import check_plan
from edgepart.planner.plans.reduced_precision import EXACT
from edgepart.planner.search.force_axis import axis_names, force
from edgepart.planner.search.study import Study

SHARES = (0.5, 0.3, 0.2)
"""The shares of three unequal devices, which are used by default."""

MAX_DEVICES = 64


@dataclass(frozen=True)
class DividedModel:
    """A model divided along one axis, with its sessions."""

    split: Mapping[str, str]
    """The axis of each operator of which more than one device computes a part, by operator."""
    devices_used: int
    devices: LocalRun = field(repr=False)

    def run(self, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """Every output by name. Raises RequestError as LocalRun.run does."""
        return self.devices.run(inputs)


class Rehearsal:
    """One model with bound shapes, and devices that take parts of it in proportion to their shares."""

    def __init__(
        self,
        graph: Graph,
        shares: Sequence[float] = SHARES,
        *,
        level: Any = None,
        transfer_dtype: str = EXACT,
        compiler: SegmentCompiler | None = None,
    ) -> None:
        """`level` is an ort.GraphOptimizationLevel for all sessions; None is ONNX Runtime's default. `transfer_dtype` is
        the type to which float32 numbers are rounded between devices. With a compiler, segments run as agents run them.
        Raises UsageError if the shares are not valid."""
        if not 0 < len(shares) <= MAX_DEVICES or not all(math.isfinite(s) and s > 0 for s in shares):
            raise UsageError(
                f"shares {tuple(shares)}: give 1 to {MAX_DEVICES} numbers above 0, one for each device"
            )
        names = [f"device{n}" for n in range(len(shares))]
        cluster = Cluster(tuple(Device(name, "virtual", 1e9, 1e9, 1e12) for name in names))
        self.graph = graph
        self.shares = tuple(zip(names, map(float, shares), strict=True))
        self.study = Study(Problem(graph, cluster, names[0], transfer_dtype=transfer_dtype))
        self._level = level
        self._compiler = compiler
        self._digests: Digests = {}

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Every axis, of an output or reduced, that some operator can be split along."""
        return axis_names(self.study.memo)

    @cached_property
    def opaque(self) -> dict[str, str]:
        """Maps each operator that cannot be split at all to the reason."""
        accesses = self.study.memo.coarse.accesses
        reasons = ((op.name, accesses[op.name].opaque) for op in self.graph.operators)
        return {name: reason for name, reason in reasons if reason is not None}

    def divide(self, axis: str | None) -> DividedModel:
        """Divide every operator that has `axis` along it; None divides each operator along its first axis.

        Raises UsageError, which lists the axes, if there is none of that name, and InternalError if a plan breaks its rules
        or ONNX Runtime refuses a segment."""
        problem, accesses = self.study.memo.problem, self.study.memo.coarse.accesses
        strategy = force(self.study, axis, self.shares)
        plan = make_plan(problem, strategy, model_digest="", digests=self._digests, accesses=accesses)
        draft = lower(problem, strategy, accesses)
        return DividedModel(
            divided_operators(draft, strategy, accesses),
            count_devices(draft),
            LocalRun(check_plan(plan, self.graph), self.graph, level=self._level, compiler=self._compiler),
        )
