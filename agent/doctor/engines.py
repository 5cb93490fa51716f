"""Engines: what this box computes with, for people: its engines, those that it does without, and why. Rules."""

from __future__ import annotations

from collections.abc import Iterator

from edgepart.agent.cluster.state.cards import MeasuredDevice
from edgepart.agent.doctor.checkup import GOOD, NOTE, Check
from edgepart.agent.engines.installed import RUNTIMES, runtimes_in
from edgepart.agent.engines.verdicts import count_refusals
from edgepart.planner.figures import format_count

AGAIN = "it is tried again when another onnxruntime is installed; --providers cpu does without engines"


def judge_runtime(installed: str) -> Check | None:
    """The check of the packages that hold ONNX Runtime (installed.py); None if there is one, as there should be."""
    found = runtimes_in(installed)
    if len(found) < 2:
        return None
    wanted = next((name for name in found if name != RUNTIMES), found[0])
    return Check(
        "engines",
        NOTE,
        f"{' and '.join(found)} are both installed, and have overwritten each other's files",
        f"pip uninstall {' '.join(found)}, then pip install --no-deps {wanted}",
    )


def judge_engines(measured: MeasuredDevice) -> Iterator[Check]:
    """The checks of the engines on a device's card."""
    names = [engine.name for engine in measured.device.engines]
    beside = f", and with {', '.join(names)}" if names else ""
    yield Check("engines", GOOD, f"computes with its CPU{beside}")
    for name, why in measured.left_out.items():
        yield Check("engines", NOTE, f"{name} is not used: {why}")
    for last, count in count_refusals(measured.refused):
        text = (
            f"{last.engine} is not used for {format_count(count, 'segment')}, which the CPU computes; the last is "
            f"{last.segment[:8]}, on which it {last.outcome}: {last.why}"
        )
        yield Check("engines", NOTE, text, AGAIN)
