"""Measurements of this device, its links, its segments and other agents' clocks, and the collection of traces.

May import: agent/cluster/state, agent/engines, agent/execution, agent/execution/runtime, agent/host, agent/net,
agent/storage, agent/trace, agent/wire, agent/workers, planner/devices, planner/errors, planner/figures, planner/plans,
planner/region.
"""

__all__ = [
    "card",
    "clock_exchange",
    "cpu_wait",
    "echoes",
    "engine_probe_process",
    "probe",
    "probe_process",
    "remeasuring",
    "segment_times",
    "starvation",
    "thread_probe",
    "trace_collector",
]
