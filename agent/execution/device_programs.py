"""Device programs: what this device computes by each plan, and the messages that came before their plan's program. Rules:
no door. Callers hold the executor's lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgepart.agent.cluster.state.bindings import parent_of
from edgepart.agent.execution.carried_states import PlanId
from edgepart.agent.execution.prepared import RunnableProgram
from edgepart.agent.execution.tasks import InstalledProgram, StepKind
from edgepart.agent.wire.inference import Tensors
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import InternalError
from edgepart.planner.plans.plan import Program

EarlyMessage = tuple[Tensors, Sequence[Value], str]
"""A message that came before its plan's program, its values, and the node that it came from."""


class DevicePrograms:
    """The programs of this device, by plan."""

    def __init__(self) -> None:
        self.installed: dict[PlanId, dict[StepKind, InstalledProgram]] = {}
        """The programs that requests follow, by the kind of steps that they make."""
        self.batches: dict[PlanId, Program] = {}
        """The programs that make steps in several sequences, as far as there are such, loaded or not."""
        self.early: dict[PlanId, list[EarlyMessage]] = {}
        """What came for the plans whose programs are being prepared."""

    def expect(self, plan: PlanId) -> None:
        """Keep the messages of a plan whose program is being prepared, until `install` or `leave`."""
        if plan not in self.installed:
            self.early.setdefault(plan, [])

    def install(
        self, plan: PlanId, installed: Mapping[StepKind, InstalledProgram], batch: Program | None
    ) -> list[EarlyMessage]:
        """Let requests follow these programs from now on; `batch` is the one that makes steps in several sequences, if
        there is one. Returns what came early. Raises InternalError if the plan's program is installed already."""
        if plan in self.installed:
            raise InternalError(f"{plan[0]} {plan[1]} is installed already")
        self.installed[plan] = dict(installed)
        if batch is not None:
            self.batches[plan] = batch
        return self.early.pop(plan, [])

    def add(self, plan: PlanId, kind: StepKind, installed: InstalledProgram) -> bool:
        """Let steps of a further kind follow this program. Returns False if the plan is not here any more."""
        if plan not in self.installed:
            return False
        self.installed[plan][kind] = installed
        return True

    def leave(self, plan: PlanId) -> tuple[list[RunnableProgram], list[EarlyMessage]]:
        """Forget a plan. Returns the programs that were installed, and what came early."""
        left = [one.prepared for one in self.installed.pop(plan, {}).values()]
        self.batches.pop(plan, None)
        return left, self.early.pop(plan, [])

    def usual(self, plan: PlanId) -> RunnableProgram | None:
        """The plan's usual program; None if it is not installed."""
        installed = self.installed.get(plan)
        return installed[StepKind.USUAL].prepared if installed is not None else None

    def computes(self, deployment: str) -> bool:
        """Whether a program of the deployment is installed."""
        return any(name == deployment for name, _ in self.installed)

    def needs_lane(self, name: str) -> bool:
        """Whether a program is installed of the deployment or one of its variants, which share a lane."""
        return any(parent_of(deployment) == name for deployment, _ in self.installed)
