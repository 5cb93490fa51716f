"""Known plans: what a device knows of the plans by which states were made. Rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from edgepart.agent.execution.carried_states import PlanId
from edgepart.agent.wire.inference import Epoch
from edgepart.planner.errors import FrameError, StateLost
from edgepart.planner.plans.plan import Plan, Program


class KnownPlan(Protocol):
    """A plan that this device holds (HeldPlan)."""

    @property
    def plan(self) -> Plan: ...

    @property
    def nodes(self) -> Mapping[str, str]:
        """Node ids by device name."""


FindPlan = Callable[[str, Epoch], KnownPlan | None]
"""find(deployment, epoch) is a plan that this device holds; None if it does not."""


def known(find: FindPlan, plan: PlanId) -> KnownPlan:
    """The plan. Raises StateLost if this device does not hold it (any more)."""
    held = find(*plan)
    if held is None:
        raise StateLost(f"plan {plan[1]} of {plan[0]} is not held here")
    return held


def program_of(held: KnownPlan, plan: PlanId, node: str) -> tuple[str, Program]:
    """A node's program that keeps states, and its device's name. Raises FrameError if it has none in the plan."""
    for device, program in held.plan.programs.items():
        if held.nodes.get(device) == node and program.kept:
            return device, program
    raise FrameError(f"node {node} keeps no states by plan {plan[1]} of {plan[0]}")
