"""Engines for people: what a box computes with, what it does without, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgepart.agent.cluster.state.cards import MeasuredDevice
from edgepart.agent.doctor.checkup import GOOD, NOTE
from edgepart.agent.doctor.engines import judge_engines, judge_runtime
from edgepart.agent.engines.verdicts import CRASHES, LIES, EngineVerdict
from edgepart.planner.devices.cluster import Device
from edgepart.planner.devices.engine import Engine

PLAIN = MeasuredDevice(Device("pi", "bcm2711", 1e10, 4e9, 3e9))


def test_a_box_without_engines_computes_with_its_cpu() -> None:
    (check,) = judge_engines(PLAIN)
    assert (check.level, check.text, check.do) == (GOOD, "computes with its CPU", "")


def test_what_is_left_out_and_what_is_refused_is_named_with_the_reason() -> None:
    refused = (
        EngineVerdict("lab", "a" * 64, LIES, "differs"),
        EngineVerdict("lab", "b" * 64, CRASHES, "SIGSEGV"),
        EngineVerdict("lab", "c" * 64, CRASHES, "SIGABRT"),
    )
    device = replace(PLAIN.device, engines=(Engine("lab", "LabExecutionProvider"),))
    first, *notes = judge_engines(replace(PLAIN, device=device, left_out={"gpu": "absent"}, refused=refused))
    assert first.text == "computes with its CPU, and with lab"
    assert [check.level for check in notes] == [NOTE, NOTE, NOTE]
    assert notes[0].text == "gpu is not used: absent"
    assert notes[1].text == (
        "lab is not used for 1 segment, which the CPU computes; the last is aaaaaaaa, on which it lies: differs"
    )
    assert notes[2].text == (
        "lab is not used for 2 segments, which the CPU computes; the last is cccccccc, on which it crashes: SIGABRT"
    )
    assert notes[1].do


@pytest.mark.parametrize(
    ("installed", "remedy"),
    [
        ("", None),
        ("onnxruntime 1.23.0, openvino 2026.0", None),
        ("onnxruntime-gpu 1.23.0, onnxruntime-extensions 0.14", None),
        ("onnxruntime 1.23.0, onnxruntime-gpu 1.22.0", "pip install --no-deps onnxruntime-gpu"),
    ],
)
def test_two_builds_of_onnx_runtime_are_one_too_many(installed: str, remedy: str | None) -> None:
    check = judge_runtime(installed)
    assert (check is None) == (remedy is None)
    assert check is None or str(remedy) in check.do
