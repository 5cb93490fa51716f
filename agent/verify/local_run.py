"""Local run: runs a whole plan in this process, one device after another. A door: real sessions, but no network and no
threads of its own.

Each device does what an agent does: the schedules are those of agent/execution/schedule.py, the sessions those of
agent/execution/runtime/sessions.py, and the gateway's part that of requester.py. All sessions are on the CPU, as this
machine need not have the devices' engines. Sessions are made once; runs follow one another.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from edgepart.agent.engines.verdicts import on_cpu
from edgepart.agent.execution.copies import Scratch
from edgepart.agent.execution.runtime.sessions import Sessions
from edgepart.agent.execution.runtime.shared_segments import SegmentCompiler
from edgepart.agent.execution.schedule import Progress, make_schedule
from edgepart.agent.serving.active_plan import activate_plan, assemble_output, check_inputs, cut_inputs
from edgepart.agent.wire.dtypes import element_dtype
from edgepart.agent.wire.reduced_precision import RoundingTally, round_all
from edgepart.agent.wire.tensors import Value
from edgepart.planner.errors import InternalError
from edgepart.planner.model import blobs
from edgepart.planner.model.graph import Graph
from edgepart.planner.plans.plan import GATEWAY, Plan, Run

SequenceStates = dict[str, list[Value]]
"""The pieces that each device keeps of a sequence, in the order of `Program.kept`."""

DEVICE_THREADS = 1
"""Threads of each session: the devices take turns, and small segments gain nothing from more threads."""


class LocalRun:
    """The devices of one plan, all in this process."""

    def __init__(
        self,
        plan: Plan,
        graph: Graph,
        *,
        level: Any = None,
        threads: int = DEVICE_THREADS,
        compiler: SegmentCompiler | None = None,
    ) -> None:
        """Make all sessions, with a compiler as agents do. The weights come from `graph`, for which the plan was made.
        `level` is an ort.GraphOptimizationLevel; None is ONNX Runtime's default. Raises InternalError if ONNX Runtime
        refuses a segment."""
        sessions = Sessions(
            threads,
            lambda ref: blobs.pack_constant(graph.weight(ref.source), ref.region),
            level=level,
            warmed=False,
            compiler=compiler,
        )
        self.plan = plan
        self.computed_s: dict[str, float] = {}
        """Seconds that each device's segments took in the last run, by device."""
        self.exact = False
        """Whether runs round nothing, whatever the plan says."""
        self.rounding = RoundingTally()
        """Counts of the pieces rounded in all runs."""
        self._prepared = {
            name: sessions.prepare(on_cpu(program), plan.transfers) for name, program in plan.programs.items()
        }
        self._schedules = {
            name: make_schedule(one.program, plan.transfers, one.dtypes, one.kept)
            for name, one in self._prepared.items()
        }
        constants = {n: graph.constants[n].load() for n in plan.constant_outputs if n in graph.constants}
        self._scratch = Scratch()
        self._gateway = activate_plan(plan, {name: name for name in plan.programs}, constants)

    def begin(self) -> SequenceStates:
        """The states of a sequence before its first step: zeros."""
        return {
            name: [np.zeros(kept.read.region.shape, element_dtype(kept.dtype)) for kept in program.kept]
            for name, program in self.plan.programs.items()
        }

    def run(
        self,
        inputs: Mapping[str, Value],
        replica: int = 0,
        sequence: SequenceStates | None = None,
        rows: int = 1,
    ) -> dict[str, Value]:
        """Every output of the model by name, computed by one of the plan's replicas. The states of `sequence` are read and
        replaced; without it, a step is the first of a sequence. `rows` is the number of rows that the step adds, if it may
        be short. Raises RequestError if the inputs do not fit the model, or ONNX Runtime cannot run on them."""
        checked = check_inputs(self.plan.inputs, inputs)
        self.computed_s = dict.fromkeys(self.plan.programs, 0.0)
        states = self.begin() if sequence is None else sequence
        devices = {name: Progress(self._schedules[name]) for name in self.plan.parts[replica].devices}
        for name, progress in devices.items():
            progress.begin(states[name])
        mail = {number: values for _, number, values in cut_inputs(self._gateway, checked, replica)}
        answers: dict[int, Value] = {}
        for transfer in self._gateway.sides[replica].outgoing:
            devices[transfer.target].keep_pieces(transfer.number, mail[transfer.number])
        moving = True
        while moving:
            moving = False
            for name, progress in devices.items():
                while self._step(name, progress, devices, answers, replica):
                    moving = True
        if waiting := [name for name, progress in devices.items() if not progress.finished]:
            raise InternalError(f"devices {waiting} wait for each other for ever")
        states.update((name, progress.keep_state(rows=rows)) for name, progress in devices.items())
        return {
            info.name: assemble_output(self._gateway, info.name, answers, checked, replica)
            for info in self.plan.outputs
        }

    def _step(
        self,
        name: str,
        progress: Progress,
        devices: Mapping[str, Progress],
        answers: dict[int, Value],
        replica: int,
    ) -> bool:
        """Do the device's next step. Returns False if it has to wait, or has no step left."""
        work = progress.next_work()
        if work is None:
            return False
        values = work.values(self._scratch)
        if isinstance(work.step, Run):
            began = time.perf_counter()
            outputs = self._prepared[name].run(work.step.segment, values)
            self.computed_s[name] += time.perf_counter() - began
            progress.done(outputs)
            return True
        transfer = self.plan.transfers[work.step.transfer]
        number, target = transfer.number, transfer.target
        if transfer.dtypes and not self.exact:
            values = round_all(transfer.dtypes, values)
            self.rounding.count(transfer.dtypes, values)
        if target == GATEWAY:
            slots = self._gateway.sides[replica].slots
            answers.update((slots[number, n], value) for n, value in enumerate(values))
        else:
            devices[target].keep_pieces(number, values)
        progress.done()
        return True
