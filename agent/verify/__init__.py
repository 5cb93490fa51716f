"""Checks that a divided model gives the right answers: rehearsals, references, tolerances, tryouts and the ONNX backend.

May import: agent/cluster/state, agent/engines, agent/execution, agent/execution/runtime, agent/host, agent/serving,
agent/storage, agent/wire, planner/devices, planner/errors, planner/figures, planner/layout, planner/lowering,
planner/model, planner/model/rewrites, planner/planner, planner/plans, planner/region, planner/search.
"""

__all__ = [
    "admitted_programs",
    "backend",
    "engine_trials",
    "local_run",
    "reference",
    "reference_process",
    "rehearsal",
    "rounding_error",
    "same_answer",
    "sample_inputs",
    "tried_steps",
    "tryout",
]
