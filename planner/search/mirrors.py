"""Mirrors: chooses for each device that keeps states another one that keeps a copy of them, so that they survive its loss.
Rules only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edgepart.planner.plans.plan import Plan, Program


def add_mirrors(plan: Plan, memory_bytes: Mapping[str, float]) -> tuple[Plan, str]:
    """The plan with a mirror for each of its devices that keeps states, and "". If there can be none, the plan as it is,
    and the reason. `memory_bytes` is what the plan may take of each device of the cluster.

    Devices of the plan itself come first: what they have need not travel again after a loss. Of several, the one that has
    the most memory left is taken, and the device with the largest states chooses first."""
    keeping = [program for program in plan.programs.values() if program.kept]
    if not keeping:
        return plan, "the model has no states"
    if not all(program.in_place for program in keeping):
        return plan, "only states that are written in place, row after row, can be mirrored"
    left = {name: nbytes - _peak_bytes(plan, name) for name, nbytes in memory_bytes.items()}
    mirrors: dict[str, str] = {}
    for program in sorted(keeping, key=lambda one: (-one.sequence_bytes, one.device)):
        able = [name for name in left if name != program.device and left[name] >= mirrored_bytes(program)]
        if not able:
            return plan, f"no device has memory left for a copy of the states of {program.device}"
        mirrors[program.device] = max(sorted(able), key=lambda name: (name in plan.programs, left[name]))
        left[mirrors[program.device]] -= mirrored_bytes(program)
    return replace(plan, mirrors=mirrors, programs=_with_memory(plan, mirrors)), ""


def mirrored_bytes(program: Program) -> int:
    """Bytes that a copy of all states of a program takes."""
    return program.sequences * program.sequence_bytes


def bytes_by_mirror(plan: Plan) -> dict[str, int]:
    """Bytes that the copies of other devices' states take on each device that has such."""
    found: dict[str, int] = {}
    for device, mirror in plan.mirrors.items():
        found[mirror] = found.get(mirror, 0) + mirrored_bytes(plan.programs[device])
    return found


def _with_memory(plan: Plan, mirrors: Mapping[str, str]) -> dict[str, Program]:
    """The programs with the predicted memory of what their devices mirror."""
    more = bytes_by_mirror(replace(plan, mirrors=mirrors))
    return {
        name: replace(
            program,
            kept_bytes=program.kept_bytes + more.get(name, 0),
            peak_memory_bytes=program.peak_memory_bytes + more.get(name, 0),
        )
        for name, program in plan.programs.items()
    }


def _peak_bytes(plan: Plan, device: str) -> int:
    program = plan.programs.get(device)
    return program.peak_memory_bytes if program is not None else 0
